"""TCP failover in the middle of a stream: the messages that the two ends exchange on its TCP connection, and
the cursors computed from them (X-RDMA calls the TCP path *Mock*).

Each end stops its own ring first, then sends one :class:`Leave`: the bytes it has sent, how many of them are
certain to be in the peer's ring, and how many have certainly arrived in its own. From both messages, both
ends compute the same byte for each direction, at which the stream continues in frames (``frames.py``). The
reader takes everything before it from the ring and everything after it from TCP.

:class:`CursorExchange` is one end of this. It does no I/O, and its owner never reads more from the TCP
connection than :attr:`CursorExchange.missing`, so that no byte of the stream is mistaken for a message.
"""

from __future__ import annotations

import enum
import struct
from typing import TypeAlias

from .cdc import StateFlag
from .codes import Code, describe
from .errors import LocalProtocolError, RemoteProtocolError
from .frozen import Frozen

_LAYOUT = struct.Struct(">4sBBBxIIQQQ4s")
MESSAGE_BYTES = _LAYOUT.size
MAGIC, _END = b"AIOC", b"COIA"
_VERSION = 1
_TYPE_LEAVE, _TYPE_REFUSE = 1, 2
_KNOWN_FLAGS = int(StateFlag.SENDING_DONE | StateFlag.CLOSED)


class Leave(Frozen):
    """This end has left RDMA. Sent once by each end, after its last WRITE."""

    token: int
    """Alert token of the receiving end (32 bits): it identifies the flow."""
    sent: int
    """Bytes of the stream that the sender of this message has sent in total."""
    placed: int
    """How many of them are certain to be in the receiver's ring."""
    arrived: int
    """Bytes of the other direction that have certainly arrived at the sender of this message."""
    flags: int = 0
    """``SENDING_DONE`` and ``CLOSED`` of :class:`~aiordma.proto.cdc.StateFlag`."""
    code: int = 0
    """The reason (``Code``)."""

    def encode(self) -> bytes:
        """The bytes on TCP."""
        return _LAYOUT.pack(
            MAGIC, _VERSION, _TYPE_LEAVE, self.flags, self.token, self.code, self.sent, self.placed,
            self.arrived, _END,
        )  # fmt: skip


class Refuse(Frozen):
    """This end does not fail over, so the stream ends. A reset of the TCP connection follows."""

    token: int
    code: int

    def encode(self) -> bytes:
        """The bytes on TCP."""
        return _LAYOUT.pack(MAGIC, _VERSION, _TYPE_REFUSE, 0, self.token, self.code, 0, 0, 0, _END)


def decode(data: bytes) -> Leave | Refuse:
    """The message in ``MESSAGE_BYTES`` bytes.

    :raises RemoteProtocolError: no such message, or a field has an invalid value.
    """
    if len(data) != MESSAGE_BYTES:
        raise RemoteProtocolError(f"leaving RDMA: {len(data)} bytes, a message has {MESSAGE_BYTES}")
    magic, version, kind, flags, token, code, sent, placed, arrived, end = _LAYOUT.unpack(data)
    if magic != MAGIC or end != _END or data[7]:
        raise RemoteProtocolError(
            f"unexpected bytes on the TCP connection beside the RDMA stream: {data[:8].hex(' ')} ..."
        )
    if version != _VERSION:
        raise RemoteProtocolError(f"leaving RDMA: version {version} is not known here")
    if kind == _TYPE_REFUSE:
        if flags or sent or placed or arrived:
            raise RemoteProtocolError("leaving RDMA: a refusal with cursors")
        return Refuse(token, code)
    if kind != _TYPE_LEAVE:
        raise RemoteProtocolError(f"leaving RDMA: message type {kind} is not known")
    if flags & ~_KNOWN_FLAGS or (flags & StateFlag.CLOSED and not flags & StateFlag.SENDING_DONE):
        raise RemoteProtocolError(f"leaving RDMA: flags 0x{flags:02x} cannot be")
    if placed > sent:
        raise RemoteProtocolError(f"leaving RDMA: {placed} bytes placed of {sent} sent")
    return Leave(token, sent, placed, arrived, flags, code)


class Ledger(Frozen):
    """The cursors of one end's rings once it has stopped sending."""

    sent: int
    """Bytes sent in total; those from ``placed`` on are kept."""
    placed: int
    """How many of them are certain to be in the peer's ring."""
    freed: int
    """How many of them the peer has announced as read."""
    arrived: int
    """Bytes that are certainly in our ring, or were read from it."""
    announced: int
    """How many of them we announced to the peer as read: it could send at most one ring more."""
    ring: int
    """Size of our ring."""
    flags: int
    """State of our end (``StateFlag``), announced or about to be."""
    peer_flags: int
    """State that the peer has announced."""


class Quiesce(Frozen):
    """Stop sending over RDMA; once nothing is in flight, call :meth:`CursorExchange.quiesced`."""


class Send(Frozen):
    """Write these bytes to the TCP connection."""

    data: bytes


class Agreed(Frozen):
    """Continue over TCP."""

    send_from: int
    """First byte to send over TCP; those from here to ``Ledger.sent`` are sent again."""
    read_until: int
    """The peer's first byte that arrives over TCP; those before it are in our ring."""
    peer_flags: int
    """State that the peer has announced for its end."""
    code: int
    """The reason why the stream left RDMA (``Code``)."""
    by_peer: bool
    """The peer left first."""


class Broken(Frozen):
    """The stream is over."""

    reason: str
    fault: bool = False
    """The peer broke the protocol."""


Event: TypeAlias = Quiesce | Send | Agreed | Broken


class State(enum.Enum):
    """Progress of the failover."""

    ON_RDMA = "on RDMA"
    QUIESCING = "quiescing"
    WAITING = "waiting for the peer"
    AGREED = "on TCP"
    BROKEN = "over"


class CursorExchange:
    """One end of a failover. Times are seconds of any clock.

    :param token: our alert token, which the peer's message must contain.
    :param peer_token: the peer's alert token, which our message contains.
    :param timeout: time limit for the whole failover; 0 or less: failover is off.
    :param stopped: the limit while the peer's host answers and its process does not, if that is longer.
    """

    def __init__(self, token: int, peer_token: int, timeout: float, stopped: float = 0.0) -> None:
        self.state = State.ON_RDMA
        self.deadline: float | None = None
        self._token, self._peer_token, self._timeout = token, peer_token, timeout
        self._stopped = max(stopped, timeout)
        self._left_at = 0.0
        self._code = 0
        self._by_peer = False
        self._ledger: Ledger | None = None
        self._leave: Leave | None = None
        self._head = b""

    @property
    def missing(self) -> int:
        """Bytes of the peer's message that are still to be read; never read more from TCP."""
        if self._leave is not None or self.state is State.BROKEN:
            return 0
        return MESSAGE_BYTES - len(self._head)

    @property
    def peer_code(self) -> int:
        """The peer's reason to leave (``Code``); 0 while unknown."""
        return self._leave.code if self._leave is not None else 0

    def leave(self, code: int, now: float) -> list[Event]:
        """Leave RDMA at this end, for ``code``. Does nothing if that is in progress or done."""
        if self.state is not State.ON_RDMA:
            return []
        if self._timeout <= 0:
            return self._break("TCP failover is switched off")
        self._code = code
        self._left_at = now
        self.deadline = now + self._timeout
        self.state = State.QUIESCING
        return [Quiesce()]

    def quiesced(self, ledger: Ledger, *, link_failed: bool = False) -> list[Event]:
        """Nothing of ours is in flight any more.

        :param link_failed: for the reason that our end of the link has failed. What was posted may still land
            then, until the peer's end fails, too: so the peer is told, whatever we leave for.
        :raises LocalProtocolError: there was no :class:`Quiesce`.
        """
        if self.state is not State.QUIESCING:
            raise LocalProtocolError(f"quiesced() while {self.state.value}")
        self._ledger = ledger
        self.state = State.WAITING
        message = Leave(
            self._peer_token,
            ledger.sent,
            ledger.placed,
            ledger.arrived,
            ledger.flags,
            Code.LINK_LOST if link_failed else self._code,
        )
        return [Send(message.encode()), *self._compare()]

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Process bytes of the TCP connection, at most :attr:`missing`.

        :raises LocalProtocolError: there were more.
        """
        if len(data) > self.missing:
            raise LocalProtocolError(f"{len(data)} bytes where {self.missing} were missing")
        self._head += data
        start = self._head[: len(MAGIC)]
        if start != MAGIC[: len(start)]:
            return self._break(
                f"{len(data)} unexpected bytes on the TCP connection beside the RDMA stream", fault=True
            )
        if len(self._head) < MESSAGE_BYTES:
            if self.deadline is None:
                self.deadline = now + max(self._timeout, 1.0)  # a started message must be completed
            return []
        try:
            message = decode(self._head)
        except RemoteProtocolError as error:
            return self._break(str(error), fault=True)
        if message.token != self._token:
            return self._break("the peer leaves RDMA on another connection than this", fault=True)
        if isinstance(message, Refuse):
            return self._break(f"the peer does not fail over to TCP ({describe(message.code)})")
        self._leave = message
        if self.state is State.ON_RDMA:
            self._by_peer = True
            self.deadline = None
            events = self.leave(message.code, now)
            if self._timeout <= 0:
                return [Send(Refuse(self._peer_token, Code.FAILOVER_OFF).encode()), *events]
            return events
        return self._compare()

    def eof(self, reason: str) -> list[Event]:
        """The TCP connection ended or failed."""
        return self._break(reason) if self.state is not State.AGREED else []

    def on_timer(self, now: float, *, host_answers: bool = False) -> list[Event]:
        """Process the clock; does nothing before :attr:`deadline`.

        :param host_answers: the peer's host has acknowledged our message on TCP. So the peer's process has
            not run since: it would have answered.
        """
        if self.deadline is None or now < self.deadline or self.state in (State.AGREED, State.BROKEN):
            return []
        if host_answers and self.state is State.WAITING:
            waited = now - self._left_at
            if waited < self._stopped:
                self.deadline = min(now + self._timeout, self._left_at + self._stopped)
                return []
            return self._break(
                f"the peer's process has not run for {waited:.0f} s, while its host answers on TCP "
                "(AIORDMA_STOPPED_PEER_MS is how long to wait for it)"
            )
        step = "this end's work requests did not complete" if self.state is State.QUIESCING else "no answer"
        return self._break(f"{step} within {self._timeout:g} s when the stream was to fail over to TCP")

    def _compare(self) -> list[Event]:
        """Once both messages are available, check the peer's against our ledger."""
        own, peer = self._ledger, self._leave
        if own is None or peer is None:
            return []
        if not own.freed <= peer.arrived <= own.sent:
            return self._break(
                f"of {own.sent} bytes sent and {own.freed} reported as read, "
                f"{peer.arrived} cannot have arrived",
                fault=True,
            )
        if not own.arrived <= peer.sent <= own.announced + own.ring:
            return self._break(
                f"with {own.arrived} bytes arrived and room up to {own.announced + own.ring}, "
                f"the peer cannot have sent {peer.sent}",
                fault=True,
            )
        if own.peer_flags & _KNOWN_FLAGS & ~peer.flags or (
            own.peer_flags & StateFlag.SENDING_DONE and peer.sent != own.arrived
        ):
            return self._break("the peer takes back that it sends no more", fault=True)
        self.state = State.AGREED
        return [
            Agreed(
                max(own.placed, peer.arrived),
                max(peer.placed, own.arrived),
                peer.flags,
                peer.code if self._by_peer else self._code,
                self._by_peer,
            )
        ]

    def _break(self, reason: str, *, fault: bool = False) -> list[Event]:
        if self.state in (State.BROKEN, State.AGREED):
            return []
        self.state = State.BROKEN
        return [Broken(reason, fault)]
