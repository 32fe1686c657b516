# cython: language_level=3, boundscheck=False, wraparound=False
"""Both cursors of a stream over rings: how far each is, and what the two ends have announced to each other.

There is no I/O here. A ring pipe (``_ring.pyx``) decides when a cursor message is posted; the windows and the message
format are ``proto/cursor.py`` and ``proto/cdc.py``.
"""
from libc.stdint cimport uint32_t

from ..proto.cdc cimport CHANGE_DATA, CdcConnection, CdcMessage
from ..proto.cursor cimport RxWindow, TxWindow

from typing import NamedTuple


class RingPosition(NamedTuple):
    """Where the two rings of a stream stand. Cursors are as in CDC messages: (wrap, count)."""

    #: how far the peer has written into our ring, how far it was read
    rx_produced: tuple[int, int]
    rx_consumed: tuple[int, int]
    #: how far we have written into the peer's ring, and how far the peer has read, as it announced
    tx_produced: tuple[int, int]
    tx_consumed: tuple[int, int]
    #: state flags of CDC messages: what each end has announced
    local_flags: int
    peer_flags: int
    #: second of the loop's clock in which the last cursor message came or went; 0: none has
    active_at: int


cdef class RingCursors:
    def __init__(self, uint32_t rx_size):
        self.rx = RxWindow(rx_size)
        self.incoming = CdcMessage()

    cdef int connect(self, uint32_t peer_token, uint32_t tx_size) except -1:
        """The peer's ring is known."""
        self.tx = TxWindow(tx_size)
        self.cdc = CdcConnection(self.tx, self.rx, peer_token)
        return 0

    cdef void write(self, unsigned char *message, uint32_t second) noexcept:
        """Write the next CDC message; it announces everything.

        :param second: the moment, as CompletionPoller.second has it.
        """
        self.cdc.write(message)
        self.active_at = second
        self.unannounced = 0
        self.update_wanted = False
        self.sent += 1

    cdef bint parse(self, const unsigned char *message, uint32_t length) noexcept:
        """Read a CDC message of the peer's; False: it is malformed."""
        return self.incoming.parse(message, length) >= 0

    cdef int apply(self) noexcept:
        """Believe the message just parsed. What it changed: the CHANGE flags of ``proto/cdc.py``."""
        cdef int changes = self.cdc.receive(self.incoming)
        self.received += 1
        if changes & CHANGE_DATA and self.rx.available() > self.recent_high_water:
            self.recent_high_water = self.rx.available()
            if self.recent_high_water > self.high_water:
                self.high_water = self.recent_high_water
        return changes

    cdef bint set_local(self, unsigned int flags) noexcept:
        """Add to our own state; whether that is news to the peer."""
        return self.cdc.set_local_state(flags)

    cdef object position(self):
        """A RingPosition; None until connect()."""
        cdef RxWindow rx = self.rx
        cdef TxWindow tx = self.tx
        if tx is None:
            return None
        return RingPosition(
            ((rx.prod >> rx.shift) & 0xFFFF, rx.prod & rx.turn), (rx.wrap(), rx.count()),
            (tx.wrap(), tx.count()), ((tx.cons >> tx.shift) & 0xFFFF, tx.cons & tx.turn),
            self.cdc.local_state, self.cdc.peer_state, self.active_at)
