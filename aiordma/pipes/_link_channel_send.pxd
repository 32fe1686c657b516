# Declarations of _link_channel_send.pyx: the sending half of a channel.
cimport cython
from libc.stdint cimport uint32_t, uint64_t

from ..datapath._qp cimport QueuePair
from ..proto.message cimport SendBudget
from ._link_channel_receive cimport Inbox
from ._rendezvous cimport Sources

# What Outbox.send() returns: what it lacks.
cdef enum:
    WANT_NOTHING = 0        # it was sent
    WANT_LINK = 1           # credit of the link's window, or room in its send queue
    WANT_CREDIT = 2         # credit of the channel
    WANT_MEMORY = 3         # memory for a source

@cython.final
cdef class Outbox:
    cdef QueuePair qp
    cdef Inbox inbox                # every header reports its credit
    cdef Sources sources            # what the peer has to pull
    cdef SendBudget budget          # None until connect()
    cdef uint32_t peer_token, small_most, max_message_bytes
    cdef uint64_t message_count, byte_count, large_count

    cdef void connect(self, uint32_t peer_token, uint32_t budget, uint32_t message_bytes)
    cdef int send(self, const unsigned char *head, Py_ssize_t head_bytes, const unsigned char *body,
                  Py_ssize_t body_bytes, bint may_post) except -1
    cdef int announce(self, const unsigned char *head, uint32_t head_bytes, const unsigned char *body,
                      uint32_t body_bytes) except -1
    cdef void write_header(self, unsigned char *room, unsigned char kind, unsigned char flags) noexcept
    cdef int post_control(self, unsigned char kind, unsigned char flags, bint signal) except -1
