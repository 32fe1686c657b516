# Declarations of _rendezvous.pyx: the large messages of channels.
cimport cython
from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t

from ..datapath._fairness cimport SendQueueWaiter
from ..datapath._qp cimport Flow, QueuePair

@cython.final
cdef class Sources:
    """What this end keeps until its peer has pulled it."""
    cdef object memory              # contracts.RendezvousMemory
    cdef object announced           # deque of (running total, block)

    cdef object fill(self, const unsigned char *body, uint32_t length)
    cdef int add(self, object block, uint32_t total) except -1
    cdef int release(self, uint32_t reported) except -1
    cdef int release_all(self) except -1

@cython.final
cdef class Pull:
    """One announced message on its way here."""
    cdef object block               # the sink; None before it begins, and if the user has named another place
    cdef object placement           # where the user wants the body (placement.py), once asked; None: in the sink
    cdef uint64_t sink              # where the READs go, and the key for that
    cdef uint32_t lkey
    cdef bint asked, begun
    cdef bint direct                # the READs go where the user wants them, and there is no block
    cdef bytes head
    cdef bytes copy                 # where it is put together, if the sink has room for one READ only; else None
    cdef object share               # counts the copy, for as long as it is referred to
    cdef unsigned char *start       # of the message in the sink, or in the copy
    cdef uint32_t staged            # bytes of the READ into such a sink
    cdef uint64_t remote_addr
    cdef uint32_t rkey, remote_bytes, posted
    cdef uint32_t under_way         # READs posted and not completed
    cdef bint cancelled

    cdef inline uint32_t pad(self) noexcept:
        """Bytes before the head, so that the body, which is long, begins at a multiple of 64."""
        return -<uint32_t>PyBytes_GET_SIZE(self.head) & 63

    cdef inline uint64_t room(self) noexcept:
        return <uint64_t>self.pad() + PyBytes_GET_SIZE(self.head) + self.remote_bytes

    cdef inline uint32_t size(self) noexcept:
        return <uint32_t>PyBytes_GET_SIZE(self.head) + self.remote_bytes

    cdef inline bint complete(self) noexcept:
        return self.posted == self.remote_bytes and self.under_way == 0

@cython.final
cdef class Puller(SendQueueWaiter):
    """The READs of one link: its channels take turns, fragment by fragment."""
    cdef QueuePair qp
    cdef object turns               # deque of Pulls with READs to be posted
    cdef list ended                 # Pulls with a pull that has ended
    cdef uint32_t reads             # under way

    cdef int add(self, Pulls pulls) except -1
    cdef int pump(self) except -1

@cython.final
cdef class Pulls:
    """The pulls of one channel."""
    cdef Flow flow                  # the channel
    cdef object memory              # contracts.RendezvousMemory
    cdef Puller puller
    cdef object placer              # contracts.Placer of the channel's user, or None
    cdef object to_read             # deque of Pulls with READs to be posted
    cdef object reading             # deque of Pulls with READs under way
    cdef uint32_t fragment          # most bytes of one READ
    cdef uint32_t reads             # under way
    cdef bint wanted                # the channel's user takes messages now
    cdef bint in_turns, noted

    cdef bint can_read(self) noexcept
    cdef int begin(self, Pull pull) except -1
    cdef int go_on(self) except -1
    cdef object lend(self, Pull pull)
    cdef int fill(self, Pull pull) except -1
    cdef int withdraw(self, object placement) except -1
    cdef int let_go(self, Pull pull) except -1
    cdef int cancel(self, Pull pull) except -1
    cdef int link_failed(self) except -1
    cdef bint covers(self, uint64_t remote_addr) noexcept
    cdef bint may_read(self)
    cdef bint ask(self, Pull pull) except -1
    cdef object take_part(self, Pull pull)
    cdef bint find_sink(self, Pull pull) except -1
    cdef int post_read(self) except -1
    cdef int read_done(self) noexcept
