# Table of contents of _inbox.pyx: the receiving half of a channel.
from libc.stdint cimport uint32_t, uint64_t

from ._rendezvous cimport PullingConnection
from ..proto.message cimport ReceiveBudget

cdef class ReceivingConnection(PullingConnection):
    cdef ReceiveBudget inc
    cdef readonly uint32_t max_message_bytes
    cdef object inbox               # deque of what has come and cannot be handed over yet: bytes, or Pull
    cdef object _on_message
    cdef bint delivering
    cdef bint tell, peer_wants      # what was handed over is to be told; the peer waits to hear it
    cdef bint closed                # by this end's user
    cdef bint peer_ended, distrusted
    cdef readonly uint64_t messages_received, bytes_received, large_received

    cdef int begin(self, uint32_t max_message_bytes, uint32_t receive_bytes) except -1
    cdef int violation(self, str text) except -1
    cdef int end(self, object error) except -1
    cdef int fail_by_user(self, object error) except -1
    cdef int receive_small(self, const unsigned char *message, uint32_t length) except -1
    cdef int receive_announcement(self, const unsigned char *message, uint32_t length) except -1
    cdef int hand_over(self, object message, uint32_t size, bint large) except -1
    cdef int deliver(self) except -1
    cdef int drop_inbox(self) except -1
