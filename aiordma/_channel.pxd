# Table of contents of _channel.pyx: whole messages on a link.
from libc.stdint cimport uint32_t, uint64_t

from ._cq cimport Starving
from ._qp cimport Connection, QueuePair
from .proto.message cimport ReceiveBudget, SendBudget

cdef class Pull:
    """One announced message on its way here."""
    cdef MessageChannel channel
    cdef object block               # where it goes; None before it begins
    cdef bytes head
    cdef unsigned char *start       # of the message in the block
    cdef uint64_t remote_addr
    cdef uint32_t rkey, remote_bytes, posted
    cdef uint32_t under_way         # READs posted and not completed
    cdef bint cancelled

    cdef inline bint complete(self) noexcept:
        return self.posted == self.remote_bytes and self.under_way == 0

cdef class Puller(Starving):
    """The READs of one link: its channels take turns, fragment by fragment."""
    cdef QueuePair qp
    cdef object turns               # deque of channels with something to pull
    cdef list ready                 # channels that a completed READ concerns
    cdef uint32_t reads             # under way

    cdef int add(self, MessageChannel channel) except -1
    cdef int pump(self) except -1

cdef class MessageChannel(Connection):
    cdef SendBudget out             # None until connect()
    cdef ReceiveBudget inc
    cdef object memory              # messagememory.MessageMemory of the link group
    cdef object _own
    cdef Puller puller
    cdef uint32_t peer_token, small_most, fragment
    cdef readonly uint32_t max_message_bytes
    cdef object announced           # deque of (running total, block): what the peer has to pull
    cdef object inbox               # deque of what has come and cannot be handed over yet: bytes, or Pull
    cdef object pulls               # deque of Pulls with READs to be posted
    cdef object pulling             # deque of Pulls with READs under way
    cdef uint32_t reads             # under way
    cdef object _on_message, _on_writable, _on_closed
    cdef readonly object error
    cdef public object on_finished
    cdef int want                   # why try_send() returned False; see WANT_*
    cdef int quota                  # messages left to send in this turn
    cdef bint in_turn, in_turns, noted, delivering
    cdef bint ask, asked, tell, peer_wants
    cdef bint closed                # by this end's user
    cdef bint over                  # on_closed was called, or is due no more
    cdef bint ending, close_told, abort_told, aborting, peer_ended, distrusted, finished
    cdef uint32_t closing_position
    cdef readonly uint64_t messages_sent, messages_received, bytes_sent, bytes_received
    cdef readonly uint64_t large_sent, large_received, times_blocked, credits_sent

    cdef int _send(self, const unsigned char *head, Py_ssize_t head_bytes, const unsigned char *body,
                   Py_ssize_t body_bytes) except -1
    cdef int _announce(self, const unsigned char *head, uint32_t head_bytes, const unsigned char *body,
                       uint32_t body_bytes) except -1
    cdef int refuse(self) except -1
    cdef int blocked(self, int why) except -1
    cdef void write_header(self, unsigned char *room, unsigned char kind, unsigned char flags) noexcept
    cdef int post_control(self, unsigned char kind, unsigned char flags) except -1
    cdef int writable(self) except -1
    cdef int receive_small(self, const unsigned char *message, uint32_t length) except -1
    cdef int receive_announcement(self, const unsigned char *message, uint32_t length) except -1
    cdef int receive_close(self, bint abort) except -1
    cdef int hand_over(self, object message, uint32_t size, bint large) except -1
    cdef int deliver(self) except -1
    cdef object take_up(self, Pull pull)
    cdef bint wants_to_pull(self)
    cdef int post_read(self) except -2
    cdef int after_reads(self) except -1
    cdef int drop_inbox(self) except -1
    cdef int drop_announced(self) except -1
    cdef int release_announced(self) except -1
    cdef int violation(self, str text) except -1
    cdef int end(self, object error) except -1
    cdef int begin_ending(self, bint abort) except -1
    cdef int finish_if_done(self) except -1
