# Declarations of _link_channel_receive.pyx: the receiving half of a channel.
cimport cython
from libc.stdint cimport uint32_t, uint64_t

from .._cq cimport CompletionPoller
from ..proto.message cimport ReceiveBudget
from ._rendezvous cimport Pull, Pulls

# What a method of Inbox returns: whether the channel goes on. If not, Inbox.take_error() has the reason.
cdef enum:
    GOES_ON = 0
    PEER_FAILED = 1         # the peer sent what it may not send, or what can never be received
    USER_FAILED = 2         # on_message raised the error

cdef object broken_rule(str text)

@cython.final
cdef class Inbox:
    cdef CompletionPoller cq
    cdef ReceiveBudget budget
    cdef Pulls pulls
    cdef object waiting             # deque of what has come and cannot be handed over yet: bytes, or Pull
    cdef object on_message
    cdef object error
    cdef uint32_t max_message_bytes
    cdef bint credit_due            # credit is to be reported to the peer
    cdef bint peer_waits            # the peer has reported that it waits for credit
    cdef bint delivering
    cdef uint64_t message_count, byte_count, large_count, placed_count

    cdef void set_on_message(self, object callback)
    cdef object take_error(self)
    cdef int refuse(self, str text) except -1
    cdef int receive_small(self, const unsigned char *body, uint32_t size) except -1
    cdef int receive_announcement(self, const unsigned char *message, uint32_t length) except -1
    cdef int hand_over(self, object message, uint32_t size, bint large, object placement=*) except -1
    cdef int deliver(self) except -1
    cdef object bring(self, Pull pull)
    cdef bint keep_whole(self) except -1
    cdef int drop(self) except -1
