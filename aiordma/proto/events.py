"""What the negotiation's state machines (``handshake.py``) ask their owner to do, in the given order."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .frozen import Frozen

if TYPE_CHECKING:
    from .clc import Accept, Claim, Confirm, Proposal


class Send(Frozen):
    """Write these bytes to the TCP connection."""

    data: bytes
    """One CLC message."""


class Proposed(Frozen):
    """Server: prepare an answer, then call ``ready(accept)`` or ``refuse(code)``."""

    proposal: Proposal
    """What the client proposes."""


class Accepted(Frozen):
    """Client: bring this end up, then call ``ready(confirm)`` or ``refuse(code)``."""

    accept: Accept
    """What the server offers."""


class Confirmed(Frozen):
    """Server: bring this end up, then call ``established()``, ``refuse(code)`` or ``broken(text)``."""

    confirm: Confirm
    """What the client agreed to."""


class Claimed(Frozen):
    """Server: find the ticket, then call ``established()``, ``refuse(code)`` or ``broken(text)``."""

    claim: Claim
    """What the client claims."""


class UseRdma(Frozen):
    """The end: both ends use RDMA. The TCP connection stays open and silent."""


class LinkLost(Frozen):
    """The end, client only: the server has agreed, lost the link, and takes the connection from RDMA to this
    TCP connection (``failover.py``). Do the same."""

    rest: bytes
    """What has come of the server's message: the failover's."""


class UseTcp(Frozen):
    """The end: this TCP connection carries the stream."""

    code: int
    """The deciding reason."""
    peer: int | None
    """The peer's diagnosis when it declined, None when this end decided or the peer speaks plain TCP."""
    rest: bytes
    """Bytes of the application's stream that have arrived already; they come first."""
    kind: int | None = None
    """The kind of connection that the peer expects, if it declined for that and said so."""


class PlainPeer(Frozen):
    """The end, client only: the peer does not know the negotiation. Close this connection, connect again and
    speak plain TCP; the application's stream never sees negotiation bytes."""

    text: str
    """What the peer did instead of answering."""
    spoke: bool = False
    """It has said something else. One that is busy, or is just being started anew, is silent or closes."""


class Failed(Frozen):
    """The end: close the connection and report an error; what the peer believes is not known."""

    code: int
    """The reason as a number."""
    text: str
    """What happened."""


Event: TypeAlias = (
    Send | Proposed | Accepted | Confirmed | Claimed | UseRdma | LinkLost | UseTcp | PlainPeer | Failed
)
