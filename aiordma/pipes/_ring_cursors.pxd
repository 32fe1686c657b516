# Declarations of _ring_cursors.pyx (both cursors of a stream).
from libc.stdint cimport uint32_t, uint64_t

from ..proto.cdc cimport CdcConnection, CdcMessage
from ..proto.cursor cimport RxWindow, TxWindow

cdef enum:
    CDC_BYTES = 44
    # state flags (proto/cdc.py, StateFlag)
    SENDING_DONE = 0x80
    CLOSED = 0x40
    ABNORMAL_CLOSE = 0x20

cdef class RingCursors:
    """Where both rings of a stream stand, and what the two ends have announced of it."""
    cdef TxWindow tx                        # how far we have written into the peer's ring, how far it has read
    cdef RxWindow rx                        # how far the peer has written into ours, how far we have read
    cdef CdcConnection cdc                  # None until connect()
    cdef CdcMessage incoming
    cdef uint32_t unannounced               # bytes placed since the last CDC
    cdef bint update_wanted                 # something else than bytes is to be announced
    cdef uint64_t sent, received            # CDC messages
    cdef uint32_t active_at                 # when the last of them came or went (CompletionPoller.second)
    cdef uint32_t high_water                # most bytes that waited in our ring
    cdef uint32_t recent_high_water         # the same since the ring's size was judged last

    cdef int connect(self, uint32_t peer_token, uint32_t tx_size) except -1
    cdef void write(self, unsigned char *message, uint32_t second) noexcept
    cdef bint parse(self, const unsigned char *message, uint32_t length) noexcept
    cdef int apply(self) noexcept
    cdef bint set_local(self, unsigned int flags) noexcept
    cdef object position(self)

    cdef inline bint has_update(self) noexcept:
        return self.update_wanted or self.unannounced > 0

    cdef inline bint local_has(self, unsigned int flags) noexcept:
        return self.cdc is not None and (self.cdc.local_state & flags) != 0

    cdef inline bint peer_has(self, unsigned int flags) noexcept:
        return self.cdc is not None and (self.cdc.peer_state & flags) != 0
