"""What a stream's life asks of its owner, in the given order."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ..frozen import Frozen

if TYPE_CHECKING:
    from ..rejoin import Event as RejoinEvent
    from .states import Leg

__all__ = [
    "Abandon",
    "Announce",
    "Broken",
    "CloseTcp",
    "Finished",
    "FreeRing",
    "LeftRdma",
    "Negotiate",
    "Output",
    "PeerLostLink",
    "Put",
    "ReadAhead",
    "ReceiveFrom",
    "Rejoined",
    "ReleaseTcp",
    "Resend",
    "ResetTcp",
    "Resume",
    "SendBy",
    "StopSending",
    "SuspectLink",
]


class StopSending(Frozen):
    """Post one last cursor message on these rings, and nothing after it. When all that was posted has
    completed, or the link has failed, report ``quiesced()``."""

    ring: int


class Resume(Frozen):
    """The stream does not leave these rings after all. Believe the newest of the cursor messages that have
    come since they quiesced; its flags are known here."""

    ring: int


class Announce(Frozen):
    """Send a cursor message with these flags. Report ``delivered()`` when the peer's device has it."""

    ring: int
    flags: int
    """``StateFlag`` of ``proto/cdc.py``."""


class FreeRing(Frozen):
    """Nothing writes into this ring any more, and nothing of it will be read: release its memory."""

    ring: int


class PeerLostLink(Frozen):
    """The peer's end of the link has failed: break this end of it, too."""

    ring: int


class SuspectLink(Frozen):
    """The TCP connection has ended: probe the link of these rings."""

    ring: int


class Resend(Frozen):
    """Send the bytes from this one on by TCP, in frames: it is not certain that the peer has them."""

    send_from: int


class SendBy(Frozen):
    """What the user sends goes here from now on."""

    leg: Leg


class ReceiveFrom(Frozen):
    """What is received comes from here, once all before it has been read. Report ``drained()`` then."""

    leg: Leg
    read_until: int | None
    """Of the rings before it: the byte up to which they are read. None: they are no rings."""


class LeftRdma(Frozen):
    """The stream is on TCP."""

    code: int
    """Why (``Code``)."""
    by_peer: bool


class Rejoined(Frozen):
    """The stream is on rings again, as far as the peer is concerned."""

    ring: int


class Put(Frozen):
    """Write these bytes to the TCP connection, behind what waits there: a message or a frame."""

    data: bytes


class ReadAhead(Frozen):
    """Whether to read from TCP what the user has not asked for, up to what is awaited behind it."""

    on: bool


class ReleaseTcp(Frozen):
    """The TCP connection carries no frames any more. It stays open and silent, beside the rings."""


class CloseTcp(Frozen):
    """Close the TCP connection in order."""


class ResetTcp(Frozen):
    """Close the TCP connection so that the peer gets an error."""


class Negotiate(Frozen):
    """Work for the devices (:class:`~aiordma.proto.events.Proposed` and so on); None: make a Proposal.
    Report ``proposed()``, ``prepared()``, ``established()`` or ``refused()``."""

    event: RejoinEvent | None


class Abandon(Frozen):
    """The attempt to return has failed: drop the work for it. Rings that were reported are freed apart."""

    code: int
    text: str


class Broken(Frozen):
    """The stream is over: after what has arrived, the user gets this error."""

    reason: str
    fault: bool = False
    """The peer broke the protocol."""


class Finished(Frozen):
    """Nothing of the stream is left."""


Output: TypeAlias = (
    StopSending
    | Resume
    | Announce
    | FreeRing
    | PeerLostLink
    | SuspectLink
    | Resend
    | SendBy
    | ReceiveFrom
    | LeftRdma
    | Rejoined
    | Put
    | ReadAhead
    | ReleaseTcp
    | CloseTcp
    | ResetTcp
    | Negotiate
    | Abandon
    | Broken
    | Finished
)
