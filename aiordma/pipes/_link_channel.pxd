# Declarations of _link_channel.pyx: whole messages on a link.
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from ._link_channel_life cimport ChannelLife

@cython.final
cdef class MessageChannel(ChannelLife):
    cdef int64_t blocked_at         # since when a send lacks something, by the loop's clock
    cdef int quota                  # messages left to send in this turn
    cdef bint in_turn
    cdef bint ask, asked            # to report to the peer that we wait for credit; it was reported
    cdef readonly uint64_t times_blocked, credits_sent
    cdef readonly uint32_t active_at    # when a message came or went (CompletionPoller.second); 0: none has

    cdef int refuse(self) except -1
    cdef int blocked(self, int why) except -1
    cdef int receive(self, const unsigned char *message, uint32_t length) except -1
    cdef int follow(self, int verdict) except -1
