# Table of contents of _large.pyx: the large messages of channels.
from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t

from ..datapath._qp cimport Flow, QueuePair
from ..datapath._fairness cimport SendQueueWaiter

cdef class Announced:
    """What this end keeps until its peer has pulled it."""
    cdef object memory              # messagememory.MessageMemory of the link group
    cdef object blocks              # deque of (running total, block)

    cdef object place(self, const unsigned char *body, uint32_t length)
    cdef int add(self, object block, uint32_t total) except -1
    cdef int release(self, uint32_t told) except -1
    cdef int drop(self) except -1

cdef class Pull:
    """One announced message on its way here."""
    cdef object block               # where it goes; None before it begins
    cdef bytes head
    cdef unsigned char *start       # of the message in the block
    cdef uint64_t remote_addr
    cdef uint32_t rkey, remote_bytes, posted
    cdef uint32_t under_way         # READs posted and not completed
    cdef bint cancelled

    cdef inline uint32_t pad(self) noexcept:
        """Bytes before the head: so that the body, which is long, begins at a multiple of 64."""
        return -<uint32_t>PyBytes_GET_SIZE(self.head) & 63

    cdef inline uint64_t room(self) noexcept:
        return <uint64_t>self.pad() + PyBytes_GET_SIZE(self.head) + self.remote_bytes

    cdef inline bint complete(self) noexcept:
        return self.posted == self.remote_bytes and self.under_way == 0

cdef class Puller(SendQueueWaiter):
    """The READs of one link: its connections take turns, fragment by fragment."""
    cdef QueuePair qp
    cdef object turns               # deque of connections with something to pull
    cdef list ready                 # connections that a completed READ concerns
    cdef uint32_t reads             # under way

    cdef int add(self, PullingConnection connection) except -1
    cdef int pump(self) except -1

cdef class PullingConnection(Flow):
    cdef object memory              # messagememory.MessageMemory of the link group
    cdef Puller puller
    cdef object pulls               # deque of Pulls with READs to be posted
    cdef object pulling             # deque of Pulls with READs under way
    cdef uint32_t fragment          # most bytes of one READ
    cdef uint32_t reads             # under way
    cdef bint in_turns, noted

    cdef int prepare(self, QueuePair qp, object memory, uint32_t fragment) except -1
    cdef bint takes_messages(self)
    cdef int after_reads(self) except -1
    cdef int pull(self, Pull pull) except -1
    cdef int pull_on(self) except -1
    cdef object take_up(self, Pull pull)
    cdef int cancel(self, Pull pull) except -1
    cdef int forget_reads(self) except -1
    cdef bint pulls_from(self, uint64_t remote_addr) noexcept
    cdef bint wants_to_pull(self)
    cdef int post_read(self) except -2
