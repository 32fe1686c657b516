# Declarations of _link_channel_life.pyx: what a message channel on a link belongs to, and its end.
from libc.stdint cimport uint32_t

from ..datapath._qp cimport Flow
from ._link_channel_receive cimport Inbox
from ._link_channel_send cimport Outbox
from ._rendezvous cimport Pulls, Sources

cdef class ChannelLife(Flow):
    cdef object __weakref__
    cdef Outbox outbox
    cdef Inbox inbox                # what the user has not been given yet
    cdef Sources sources            # what the peer has to pull
    cdef Pulls pulls                # what is announced in the inbox
    cdef object _own
    cdef readonly object error
    cdef object lost                # why the peer is gone, while what had come before waits for the user
    cdef public object on_writable, on_finished
    cdef object end_report          # to on_closed
    cdef int want                   # why try_send() returned False; see WANT_*
    cdef bint closed                # by this end's user
    cdef bint peer_ended, distrusted
    cdef bint over                  # it has ended, in one way or another
    cdef bint ending, close_sent, abort_sent, aborting, finished
    cdef uint32_t closing_position

    cdef int writable(self) except -1
    cdef int deliver(self) except -1
    cdef int fail_by_user(self, object error) except -1
    cdef int receive_close(self, bint abort) except -1
    cdef int violation(self, str text) except -1
    cdef int distrust(self, object reason) except -1
    cdef int lose(self, object reason) except -1
    cdef int end(self, object error) except -1
    cdef bint close_is_due(self) noexcept
    cdef int begin_ending(self, bint abort) except -1
    cdef int finish_if_done(self) except -1
    cdef int finish(self) except -1
