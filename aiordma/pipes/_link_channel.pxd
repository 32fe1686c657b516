# Declarations of _link_channel.pyx: whole messages on a link.
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from ..datapath._qp cimport Flow
from ._link_channel_receive cimport Inbox
from ._link_channel_send cimport Outbox
from ._rendezvous cimport Pulls, Sources

@cython.final
cdef class MessageChannel(Flow):
    cdef object __weakref__
    cdef Outbox outbox
    cdef Inbox inbox                # what the user has not been given yet
    cdef Sources sources            # what the peer has to pull
    cdef Pulls pulls                # what is announced in the inbox
    cdef object _own
    cdef readonly object error
    cdef public object on_writable, on_finished
    cdef object end_report          # to on_closed
    cdef int want                   # why try_send() returned False; see WANT_*
    cdef int64_t blocked_at         # since when, by the loop's clock
    cdef int quota                  # messages left to send in this turn
    cdef bint in_turn
    cdef bint ask, asked            # to report to the peer that we wait for credit; it was reported
    cdef bint closed                # by this end's user
    cdef bint peer_ended, distrusted
    cdef bint over                  # it has ended, in one way or another
    cdef bint ending, close_sent, abort_sent, aborting, finished
    cdef uint32_t closing_position
    cdef readonly uint64_t times_blocked, credits_sent
    cdef readonly uint32_t active_at    # when a message came or went (CompletionPoller.second); 0: none has

    cdef int refuse(self) except -1
    cdef int blocked(self, int why) except -1
    cdef int writable(self) except -1
    cdef int receive(self, const unsigned char *message, uint32_t length) except -1
    cdef int follow(self, int verdict) except -1
    cdef int deliver(self) except -1
    cdef int fail_by_user(self, object error) except -1
    cdef int receive_close(self, bint abort) except -1
    cdef int violation(self, str text) except -1
    cdef int distrust(self, object reason) except -1
    cdef int end(self, object error) except -1
    cdef bint close_is_due(self) noexcept
    cdef int begin_ending(self, bint abort) except -1
    cdef int finish_if_done(self) except -1
    cdef int finish(self) except -1
