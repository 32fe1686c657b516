"""What the machine asks of its owner beside what its parts in the product do, in the given order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiordma.proto.life.outputs import Output

if TYPE_CHECKING:
    from .states import Leg

__all__ = [
    "Abandon",
    "Announce",
    "Finished",
    "FreeRing",
    "LeftRdma",
    "PeerLostLink",
    "ReadAhead",
    "ReceiveFrom",
    "Rejoined",
    "ReleaseTcp",
    "Resend",
    "Resume",
    "SendBy",
    "StopSending",
    "SuspectLink",
]


class StopSending(Output):
    """Post one last cursor message on these rings, and nothing after it. When all that was posted has
    completed, or the link has failed, report ``quiesced()``."""

    ring: int


class Resume(Output):
    """The stream does not leave these rings after all. Believe the newest of the cursor messages that have
    come since they quiesced; its flags are known here."""

    ring: int


class Announce(Output):
    """Send a cursor message with these flags. Report ``delivered()`` when the peer's device has it."""

    ring: int
    flags: int
    """``StateFlag`` of ``proto/cdc.py``."""


class FreeRing(Output):
    """Nothing writes into this ring any more, and nothing of it will be read: release its memory."""

    ring: int


class PeerLostLink(Output):
    """The peer's end of the link has failed: break this end of it, too."""

    ring: int


class SuspectLink(Output):
    """The TCP connection has ended: probe the link of these rings."""

    ring: int


class Resend(Output):
    """Send the bytes from this one on by TCP, in frames: it is not certain that the peer has them."""

    send_from: int


class SendBy(Output):
    """What the user sends goes here from now on."""

    leg: Leg


class ReceiveFrom(Output):
    """What is received comes from here, once all before it has been read. Report ``drained()`` then."""

    leg: Leg
    read_until: int | None
    """Of the rings before it: the byte up to which they are read. None: they are no rings."""


class LeftRdma(Output):
    """The stream is on TCP."""

    code: int
    """Why (``Code``)."""
    by_peer: bool


class Rejoined(Output):
    """The stream is on rings again, as far as the peer is concerned."""

    ring: int


class ReadAhead(Output):
    """Whether to read from TCP what the user has not asked for, up to what is awaited behind it."""

    on: bool


class ReleaseTcp(Output):
    """The TCP connection carries no frames any more. It stays open and silent, beside the rings."""


class Abandon(Output):
    """The attempt to return has failed: drop the work for it. Rings that were reported are freed apart."""

    code: int
    text: str


class Finished(Output):
    """Nothing of the stream is left."""
