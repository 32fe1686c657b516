# Table of contents of _channel.pyx: whole messages on a link.
from libc.stdint cimport uint32_t, uint64_t

from ._link_channel_receive cimport ReceivingConnection
from ._rendezvous cimport Announced
from ..proto.message cimport SendBudget

cdef class MessageChannel(ReceivingConnection):
    cdef SendBudget out             # None until connect()
    cdef object _own
    cdef uint32_t peer_token, small_most
    cdef Announced announced        # what the peer has to pull
    cdef object _on_writable, _on_closed
    cdef readonly object error
    cdef public object on_finished
    cdef int want                   # why try_send() returned False; see WANT_*
    cdef int quota                  # messages left to send in this turn
    cdef bint in_turn
    cdef bint ask, asked            # to tell the peer that we wait for credit; it was told
    cdef bint over                  # on_closed was called, or is due no more
    cdef bint ending, close_told, abort_told, aborting, finished
    cdef uint32_t closing_position
    cdef readonly uint64_t messages_sent, bytes_sent, large_sent, times_blocked, credits_sent

    cdef int _send(self, const unsigned char *head, Py_ssize_t head_bytes, const unsigned char *body,
                   Py_ssize_t body_bytes) except -1
    cdef int _announce(self, const unsigned char *head, uint32_t head_bytes, const unsigned char *body,
                       uint32_t body_bytes) except -1
    cdef int refuse(self) except -1
    cdef int blocked(self, int why) except -1
    cdef void write_header(self, unsigned char *room, unsigned char kind, unsigned char flags) noexcept
    cdef int post_control(self, unsigned char kind, unsigned char flags) except -1
    cdef int writable(self) except -1
    cdef int receive_close(self, bint abort) except -1
    cdef int begin_ending(self, bint abort) except -1
    cdef int finish_if_done(self) except -1
