"""What a part of a stream's life asks of its owner, in the given order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..frozen import Frozen

if TYPE_CHECKING:
    from ..rejoin import Event as RejoinEvent


class Output(Frozen):
    """Base of them."""


class Put(Output):
    """Write these bytes to the TCP connection, behind what waits there: a message or a frame."""

    data: bytes


class CloseTcp(Output):
    """Close the TCP connection in order."""


class ResetTcp(Output):
    """Close the TCP connection so that the peer gets an error."""


class Negotiate(Output):
    """Work for the devices (:class:`~aiordma.proto.events.Proposed` and so on); None: make a Proposal.
    Report ``proposed()``, ``prepared()``, ``established()`` or ``refused()``."""

    event: RejoinEvent | None


class Broken(Output):
    """The stream is over: after what has arrived, the user gets this error."""

    reason: str
    fault: bool = False
    """The peer broke the protocol."""
