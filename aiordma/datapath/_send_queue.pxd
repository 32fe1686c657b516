# Declarations of _send_queue.pyx (posting on a link).
from libc.stdint cimport uint32_t, uint64_t

from .._cq cimport CompletionOwner
from ._fairness cimport SendQueueWaiter
from ._verbs cimport aio_chain, ibv_qp
from ..proto.seqack cimport SeqAckWindow

cdef enum:
    MESSAGE_BYTES = 64      # room of one outgoing control message (CDC and LLC are 44 bytes, 4 more on iWARP)
    SQ_RESERVE = 8          # send WRs kept back for NOP acks and keepalive: data must never be able to block them
    KIND_RECEIVE = 0        # kinds of wr_id
    KIND_SEND = 1
    KIND_KEEPALIVE = 2
    SAYS_LAST = 2           # of says_held: what is held goes by the next post, all of it

ctypedef void (*says_held_fn)(ibv_qp *, int) noexcept nogil
ctypedef void (*notes_fn)(ibv_qp *, uint64_t) noexcept nogil
ctypedef void (*expects_fn)(ibv_qp *, uint32_t) noexcept nogil
ctypedef void (*wills_fn)(ibv_qp *, const void *, uint32_t, uint32_t) noexcept nogil

cdef class Hook:
    """The filter (_faults.pyx): while it is attached, everything on a link passes through it."""
    cdef int post(self, aio_chain *chain) except -1     # instead of the device; also counts sq_posted
    cdef int arrived(self, const unsigned char *message, uint32_t length, uint32_t seq) except -1
    cdef int end(self) except -1                        # the link has failed

cdef class SendQueue(CompletionOwner):
    cdef ibv_qp *qp
    cdef SeqAckWindow window
    cdef Hook hook                          # None except in tests and fault drills
    cdef uint32_t sq_depth, sq_posted, sq_retired, sq_unsignalled, sq_signal_every
    cdef uint32_t reservations              # flows with a reservation in the send queue
    cdef readonly uint32_t max_inline
    cdef readonly uint32_t qp_num
    cdef bint with_imm                      # False on iWARP: the 32 bits lead the message
    cdef readonly bint failed
    cdef says_held_fn says_held             # tells the peer's device that something is held back; NULL: another device
    cdef bint held                          # as it was said last
    cdef wills_fn wills                     # leaves the peer a message, should this process end; NULL: another device
    cdef bint willed                        # that is all that is held
    cdef uint32_t staged                    # flows with messages that are not even placed
    cdef expects_fn expects                 # says which key of the peer's comes next; NULL: another device
    cdef notes_fn notes                     # leaves a number to the peer, should this process end; NULL: another device
    cdef const volatile uint64_t *astray    # the device's count of WRITEs not carried out while they were posted
    cdef uint64_t astray_seen, no_count
    cdef bint refused                       # the device has refused a request: the link fails, in the loop's next turn at last
    cdef bint diverted                      # requests go to the hook; or nowhere, once one was refused
    cdef bint ack_watched                   # on_ack_owed() was called, and watch_ack() not yet
    cdef object waiting_flows               # deque of flows with something to post, first come first served
    cdef object reads_out                   # iWARP: deque of the send queue positions of READs that are under way
    cdef uint32_t sq_completed              # iWARP: the farthest send queue position that has completed
    # Messages longer than a control message are built in scratch memory where the device takes them inline, else in
    # registered slots; long_until tells at which position of the send queue each is free again.
    cdef unsigned char *long_memory
    cdef uint32_t long_bytes, long_slots, long_lkey, longs_sent
    cdef uint32_t *long_until
    cdef uint64_t message_addr
    cdef uint32_t message_lkey
    cdef readonly uint64_t messages_sent, messages_received, nops_sent, nops_received, writes_posted, bytes_written
    cdef readonly uint64_t credit_waits, wr_waits, keepalives_sent, keepalives_done

    cdef inline uint32_t sq_free(self) noexcept:
        return self.sq_depth - (self.sq_posted - self.sq_retired)

    cdef inline bint is_done(self, uint32_t position) noexcept:
        """Whether what was posted up to this position has completed, however long ago: both counts wrap, and what is under
        way lies between them."""
        return self.sq_posted - position >= self.sq_posted - self.sq_retired

    cdef inline bint can_message(self) noexcept:
        return self.window.credit() > 0 and self.sq_free() > SQ_RESERVE

    cdef inline bint can_send_data(self, bint queued) noexcept:
        """Whether there is credit for a message that has not waited: each waiting flow gets one first, and the last
        credit is for control messages."""
        cdef uint32_t kept = <uint32_t>len(self.waiting_flows) - (1 if queued else 0)
        kept += 1 if self.window.window > 1 else 0
        return self.window.credit() > kept and self.sq_free() > SQ_RESERVE

    cdef inline bint can_send_in_turn(self) noexcept:
        return self.window.credit() > (1 if self.window.window > 1 else 0) and self.sq_free() > SQ_RESERVE

    cdef unsigned char *long_room(self) noexcept
    cdef int send_long(self, unsigned char *room, uint32_t length) except -1
    cdef unsigned int next_flags(self, bint signal)
    cdef unsigned char *message_room(self) noexcept
    cdef void add_message(self, aio_chain *chain, uint32_t length, bint signal)
    cdef void add_write(self, aio_chain *chain, uint64_t addr, uint32_t length, uint32_t lkey, uint64_t remote_addr,
                        uint32_t rkey)
    cdef int post(self, aio_chain *chain) except -1
    cdef int lose_count(self, object reason) except -1
    cdef int end_hook(self) except -1
    cdef uint32_t _done_up_to(self, uint32_t position, bint is_read) noexcept
    cdef void _add_send(self, aio_chain *chain, uint32_t length, bint signal, uint32_t imm)
    cdef uint64_t _send_id(self, aio_chain *chain) noexcept
    cdef int ack_if_due(self) except -1
    cdef void say_held(self, bint some) noexcept
    cdef void say_last(self, bint queued) noexcept
    cdef bint may_will(self, bint queued) noexcept
    cdef void will(self, const unsigned char *message, uint32_t length) noexcept
    cdef void note_read(self) noexcept
    cdef void expect(self, uint32_t rkey) noexcept
    cdef void wait_for_room(self, SendQueueWaiter flow)
