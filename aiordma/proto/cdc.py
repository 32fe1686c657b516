# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""CDC: the 44-byte message by which the two ends of a connection exchange their cursors (RFC 7609,
appendix A; Linux ``net/smc/smc_cdc.h``).

A CDC message states everything anew (absolute cursors, all flags), so one that waits may be replaced by the
newest.
:class:`CdcMessage` is the format, :class:`CdcConnection` the state of one connection: it takes a message and
    answers with a mask of what changed, and writes the message with our own state.

The last four of the format's reserved bytes carry a check word over all fields: a cursor with a wrong bit may
look like a right one, and would hand bytes to the reader that were never sent. The wire has its own checksum
(ICRC); this one covers what comes before and after it. A message without it (zero, as Linux sends) is taken
as it is, and Linux gets none.

Compiled as well (``cdc.pxd``), on the rules of ``cursor.py``.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from .codes import Code
from .errors import RemoteProtocolError

if TYPE_CHECKING:
    from .cursor import RxWindow, TxWindow

MESSAGE_BYTES: Final = 44
MESSAGE_TYPE: Final = 0xFE


class ProdFlag(enum.IntFlag):
    """Flags about the sender's producing end (byte 24)."""

    WRITE_BLOCKED = 0x80
    """A writer waits for room in the receiver's ring."""
    URGENT_PENDING = 0x40
    URGENT_PRESENT = 0x20
    UPDATE_REQUESTED = 0x10
    """Answer with your consumer cursor at once."""
    FAILOVER_VALIDATION = 0x08
    """The sequence number names the last message known to have arrived before a move to another link."""


class StateFlag(enum.IntFlag):
    """Flags about the sender's connection (byte 25)."""

    SENDING_DONE = 0x80
    """No data will follow (half close)."""
    CLOSED = 0x40
    """The sender has closed the connection in good order."""
    ABNORMAL_CLOSE = 0x20
    """The sender has given the connection up; data may be lost."""


class Change(enum.IntFlag):
    """What a received message changed."""

    DATA = 0x01
    """Bytes arrived in our ring."""
    CREDIT = 0x02
    """Room came back in the peer's ring."""
    UPDATE_DUE = 0x04
    """A CDC message must be sent now: the peer waits for our consumer cursor."""
    PEER_DONE = 0x08
    """The peer will send no more data (once)."""
    PEER_CLOSED = 0x10
    """The peer has closed (once)."""
    PEER_ABORTED = 0x20
    """The peer has given up (once)."""
    STALE = 0x40
    """Not newer than what is known: dropped."""
    INVALID = 0x80
    """The peer broke the protocol; ``CdcConnection.fault`` is how. The connection must be aborted."""
    FAILOVER = 0x100
    """A failover validation."""


# The same as C integers, for the compiled methods here and in the modules that cimport them.
CHANGE_DATA = 0x01
CHANGE_CREDIT = 0x02
CHANGE_UPDATE_DUE = 0x04
CHANGE_PEER_DONE = 0x08
CHANGE_PEER_CLOSED = 0x10
CHANGE_PEER_ABORTED = 0x20
CHANGE_STALE = 0x40
CHANGE_INVALID = 0x80
CHANGE_FAILOVER = 0x100

FAULT_NONE = 0
FAULT_CONSUMER = 1
FAULT_PRODUCER = 2
FAULT_DATA_AFTER_END = 3
_FAULTS = (
    "no fault",
    "its consumer cursor is outside the ring, went back, or is ahead of what was sent",
    "its producer cursor is outside the ring, went back, or would overwrite unread data",
    "it sent data after saying that it would send no more",
)


class CdcMessage:
    """One message, as numbers. Fields start as zeros; :meth:`parse` and the owner fill them."""

    def __init__(self) -> None:
        self.seq = 0
        self.token = 0
        self.prod_wrap = 0
        self.prod_count = 0
        self.cons_wrap = 0
        self.cons_count = 0
        self.prod_flags = 0
        self.state_flags = 0
        self.check = 0

    def parse(self, data: bytes, size: int) -> int:
        """Read ``size`` bytes at ``data`` (a pointer when compiled: ``size`` must be true).

        Returns 0, or -1 when this is no CDC message: then nothing changes. Reserved bytes are ignored, as
        every reader of the format must.
        """
        if size != 44 or data[0] != 0xFE or data[1] != 44:
            return -1
        if is_damaged(data):
            return -1
        self.seq = data[2] << 8 | data[3]
        self.token = _u32(data, 4)
        self.prod_wrap = data[10] << 8 | data[11]
        self.prod_count = _u32(data, 12)
        self.cons_wrap = data[18] << 8 | data[19]
        self.cons_count = _u32(data, 20)
        self.prod_flags = data[24]
        self.state_flags = data[25]
        self.check = _u32(data, 40)
        return 0

    def write(self, out: bytearray) -> None:
        """Write 44 bytes to ``out`` (a pointer when compiled: the room must be there)."""
        out[0] = 0xFE
        out[1] = 44
        _put_u16(out, 2, self.seq)
        _put_u32(out, 4, self.token)
        _put_u16(out, 8, 0)
        _put_u16(out, 10, self.prod_wrap)
        _put_u32(out, 12, self.prod_count)
        _put_u16(out, 16, 0)
        _put_u16(out, 18, self.cons_wrap)
        _put_u32(out, 20, self.cons_count)
        out[24] = self.prod_flags
        out[25] = self.state_flags
        _put_u16(out, 26, 0)
        _put_u32(out, 28, 0)
        _put_u32(out, 32, 0)
        _put_u32(out, 36, 0)
        _put_u32(out, 40, self.check)

    @staticmethod
    def decode(data: bytes | bytearray | memoryview) -> CdcMessage:
        """The message in ``data``, for tools and tests.

        :raises RemoteProtocolError: not a CDC message.
        """
        message = CdcMessage()
        raw = bytes(data)
        if message.parse(raw, len(raw)) < 0:
            raise RemoteProtocolError(
                f"CDC: {len(raw)} bytes beginning with {raw[:2].hex(' ')} are no CDC message",
                Code.PROTOCOL_VIOLATION,
            )
        return message

    def encode(self) -> bytes:
        """The 44 bytes, for tools and tests."""
        out = bytearray(44)
        self.write(out)
        return bytes(out)


def _u32(data: bytes, at: int) -> int:
    high = data[at]
    return high << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]


def _put_u16(out: bytearray, at: int, value: int) -> None:
    out[at] = value >> 8
    out[at + 1] = value & 0xFF


def _put_u32(out: bytearray, at: int, value: int) -> None:
    out[at] = value >> 24
    out[at + 1] = value >> 16 & 0xFF
    out[at + 2] = value >> 8 & 0xFF
    out[at + 3] = value & 0xFF


def is_damaged(data: bytes) -> int:
    """1 when 44 bytes at ``data`` carry a check word that does not fit. Nothing in such a message can be
    trusted, not even its receiver's token."""
    check = _u32(data, 40)
    return 1 if check != 0 and check != _check_word(data) else 0


def _check_word(data: bytes) -> int:
    """Over the first 28 bytes; never zero. A wrong bit, and any row of wrong bits in one word, changes it."""
    word = (
        _u32(data, 0)
        ^ _turned(_u32(data, 4), 5)
        ^ _turned(_u32(data, 8), 10)
        ^ _turned(_u32(data, 12), 15)
        ^ _turned(_u32(data, 16), 20)
        ^ _turned(_u32(data, 20), 25)
        ^ _turned(_u32(data, 24), 30)
    )
    return 1 if word == 0 else word


def _turned(word: int, by: int) -> int:
    return (word & (0x7FFFFFFF >> (by - 1))) << by | word >> (32 - by)


class CdcConnection:
    """The CDC state of one connection: both rings, both sequence numbers, both ends' flags.

    :param tx: our writing end of the peer's ring.
    :param rx: our reading end of our ring.
    :param peer_token: the alert token that the peer gave; every message we send carries it.
    """

    def __init__(self, tx: TxWindow, rx: RxWindow, peer_token: int) -> None:
        self.tx = tx
        self.rx = rx
        self.peer_token = peer_token
        self.tx_seq = 0
        self.rx_seq = 0
        self.local_state = 0
        self.peer_state = 0
        self.request_update = 0
        self.fault = 0
        #: 1: messages carry the check word; 0: its place is empty, as other implementations of SMC expect it.
        self.checked = 1

    def receive(self, message: CdcMessage) -> int:  # noqa: C901, PLR0912  # hot: one pass over all fields
        """Take a message of the peer. Returns a mask of ``Change`` bits (``CHANGE_*`` for compiled callers).

        After ``INVALID`` and after ``PEER_ABORTED`` every further message is ``STALE``.
        """
        step = (message.seq - self.rx_seq) & 0xFFFF
        if step == 0 or step >= 0x8000 or self.fault != 0 or self.peer_state & 0x20:
            return CHANGE_STALE
        freed = self.tx.peer_consumed(message.cons_wrap, message.cons_count)
        if freed < 0:
            self.fault = FAULT_CONSUMER
            return CHANGE_INVALID
        arrived = self.rx.peer_produced(message.prod_wrap, message.prod_count)
        if arrived < 0:
            self.fault = FAULT_PRODUCER
            return CHANGE_INVALID
        if arrived > 0 and self.peer_state & 0xC0:
            self.rx.prod -= arrived  # nothing behind the end is to be read
            self.fault = FAULT_DATA_AFTER_END
            return CHANGE_INVALID
        self.rx_seq = message.seq

        changed = 0
        if arrived > 0:
            changed |= CHANGE_DATA
        if freed > 0:
            changed |= CHANGE_CREDIT
        if message.prod_flags & 0x08:
            changed |= CHANGE_FAILOVER
        # Behind an urgent byte, Linux sends nothing until it is told that everything was read.
        self.rx.peer_blocked = (1 if message.prod_flags & 0x80 else 0) | (
            2 if message.prod_flags & 0x60 else self.rx.peer_blocked & 2
        )
        if message.prod_flags & 0x10:
            self.rx.requested = 1
        if self.rx.update_due():
            changed |= CHANGE_UPDATE_DUE

        # A closed peer sends no more either: its end of data is reported before its close.
        state = message.state_flags | (0x80 if message.state_flags & 0x40 else 0)
        fresh = state & ~self.peer_state
        if fresh:
            self.peer_state |= state & 0xE0
            if fresh & 0x80:
                changed |= CHANGE_PEER_DONE
            if fresh & 0x40:
                changed |= CHANGE_PEER_CLOSED
            if fresh & 0x20:
                changed |= CHANGE_PEER_ABORTED
        return changed

    def write(self, out: bytearray) -> None:
        """Write the message with our state of now, with the next sequence number, as 44 bytes to ``out``.

        Call it when the message is posted, not when the need for it arises: from here on the state counts as
        sent.
        """
        self.tx_seq = (self.tx_seq + 1) & 0xFFFF
        out[0] = 0xFE
        out[1] = 44
        _put_u16(out, 2, self.tx_seq)
        _put_u32(out, 4, self.peer_token)
        _put_u16(out, 8, 0)
        _put_u16(out, 10, self.tx.wrap())
        _put_u32(out, 12, self.tx.count())
        _put_u16(out, 16, 0)
        _put_u16(out, 18, self.rx.wrap())
        _put_u32(out, 20, self.rx.count())
        out[24] = (0x80 if self.tx.blocked else 0) | (0x10 if self.request_update else 0)
        out[25] = self.local_state
        _put_u16(out, 26, 0)
        _put_u32(out, 28, 0)
        _put_u32(out, 32, 0)
        _put_u32(out, 36, 0)
        _put_u32(out, 40, _check_word(out) if self.checked else 0)  # type: ignore[arg-type]  # bytes-like
        self.tx.blocked_told = self.tx.blocked
        self.request_update = 0
        self.rx.mark_told()

    def foretell(self, out: bytearray) -> None:
        """Write the message that :meth:`write` would write now. Nothing counts as sent."""
        seq = self.tx_seq
        update = self.request_update
        blocked = self.tx.blocked_told
        told = self.rx.told
        requested = self.rx.requested
        self.write(out)
        self.tx_seq = seq
        self.request_update = update
        self.tx.blocked_told = blocked
        self.rx.told = told
        self.rx.requested = requested

    def set_local_state(self, flags: int) -> int:
        """Add ``StateFlag`` bits to what we send. Returns 1 when they are new: a message must carry them."""
        fresh = flags & ~self.local_state & 0xE0
        self.local_state |= fresh
        return 1 if fresh else 0

    def fault_text(self) -> str:
        """What the peer did wrong, for the error message."""
        return _FAULTS[self.fault]
