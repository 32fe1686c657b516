# Declarations of _qp.pyx (station 3 of the path of a byte, and the receiving half of a link).
from libc.stdint cimport uint32_t, uint64_t

from .._cq cimport CompletionOwner
from ._fairness cimport SendQueueWaiter
from ._verbs cimport aio_chain, ibv_qp, ibv_wc
from ..proto.seqack cimport SeqAckWindow

cdef enum:
    MESSAGE_BYTES = 64      # room of one outgoing control message (CDC and LLC are 44 bytes, 4 more on iWARP)
    SQ_RESERVE = 8          # send WRs kept back for NOP acks and keepalive: data must never be able to block them
    KIND_RECEIVE = 0        # kinds of wr_id
    KIND_SEND = 1
    KIND_KEEPALIVE = 2
    CDC_TYPE = 0xFE
    SAYS_LAST = 2           # of says_held: what is held goes by the next post, all of it

ctypedef void (*says_held_fn)(ibv_qp *, int) noexcept nogil
ctypedef void (*notes_fn)(ibv_qp *, uint64_t) noexcept nogil
ctypedef void (*wills_fn)(ibv_qp *, const void *, uint32_t, uint32_t) noexcept nogil

cdef bint is_announced_ack(unsigned char first) noexcept

cdef class Hook:
    """The filter (_filter.pyx): while it is attached, everything on a link passes through it."""
    cdef int post(self, aio_chain *chain) except -1     # instead of the device; also counts sq_posted
    cdef int arrived(self, const unsigned char *message, uint32_t length, uint32_t seq) except -1
    cdef int end(self) except -1                        # the link has failed

cdef class Flow(SendQueueWaiter):
    """What messages with an alert token are dispatched to: the rings of a stream, or a channel."""
    cdef QueuePair qp
    cdef readonly uint32_t token            # this end's: the peer puts it into every message to this flow
    cdef bint queued                        # is in waiting_flows, for credit or the end of the tick
    cdef int on_cdc(self, const unsigned char *message, uint32_t length) except -1
    cdef int on_channel(self, const unsigned char *message, uint32_t length) except -1
    # 1: nothing left to post; 0: out of credit, stays first; 2: more to post, after the others.
    cdef int flush(self) except -1
    cdef bint is_quiet(self) noexcept       # flush() only posts: it calls nothing of the program's
    # Its WRITEs up to this byte, or its oldest READ, have completed.
    cdef void on_fragment_done(self, uint64_t until) noexcept
    cdef int on_broken(self, object reason) except -1
    # Whether a message with this token of the peer's, or a request for this remote address, is the flow's (0: none).
    cdef bint speaks_to(self, uint32_t token, uint64_t remote_addr) noexcept

cdef class LlcFlow(Flow):
    """Link control messages that found no credit: one place in waiting_flows for all of them."""
    cdef object waiting
    cdef uint64_t sent                      # of those that were given to queue_llc()

cdef class QueuePair(CompletionOwner):
    cdef ibv_qp *qp
    cdef SeqAckWindow window
    cdef Hook hook                          # None except in tests and fault drills
    cdef object owner                       # link.Link: LLC messages, failure
    cdef object keep
    cdef uint64_t recv_addr, message_addr
    cdef uint32_t recv_bytes, recv_count, recv_lkey, message_lkey
    cdef uint32_t sq_depth, sq_posted, sq_retired, sq_unsignalled, sq_signal_every
    cdef uint32_t reservations              # flows with a reservation in the send queue
    cdef readonly uint32_t max_inline
    cdef readonly uint32_t qp_num
    cdef bint with_imm                      # False on iWARP: the 32 bits lead the message
    cdef bint check_words                   # CDC messages carry aiordma's own (proto/cdc.py)
    cdef readonly bint failed
    cdef says_held_fn says_held             # tells the peer's device that something is held back; NULL: another device
    cdef bint held                          # as it was said last
    cdef wills_fn wills                     # leaves the peer a message, should this process end; NULL: another device
    cdef bint willed                        # that is all that is held
    cdef uint32_t staged                    # flows with messages that are not even placed
    cdef notes_fn notes                     # leaves a number to the peer, should this process end; NULL: another device
    cdef uint32_t unread                    # flows with bytes that have been announced, and not been read
    cdef bint left_whole                    # it failed because the peer's process ended, which had sent all it accepted
    cdef uint64_t left_note                 # ... and behind how many of this end's messages it had read everything
    cdef bint receives_late                    # it failed, but the peer did not break the protocol
    cdef bint flushing
    cdef bint refused                       # the device has refused a request: the link fails, in the loop's next turn at last
    cdef bint ack_watched                   # on_ack_owed() was called, and watch_ack() not yet
    cdef list flows
    cdef object free_tokens
    cdef uint32_t generation
    cdef LlcFlow llc
    cdef object waiting_flows               # deque of flows with something to post, first come first served
    cdef object reads_out                   # iWARP: deque of the send queue positions of READs that are under way
    cdef uint32_t sq_completed              # iWARP: the farthest send queue position that has completed
    cdef object fragments                   # deque of (position, Flow, byte, count): WRITEs from registered memory, READs
    # Messages longer than a control message are built in scratch memory where the device takes them inline, else in
    # registered slots; long_until tells at which position of the send queue each is free again.
    cdef unsigned char *long_memory
    cdef uint32_t long_bytes, long_slots, long_lkey, longs_sent
    cdef uint32_t *long_until
    # READs: how many the QP may have outstanding (max_rd_atomic), and what posts them.
    cdef public uint32_t max_reads
    cdef SendQueueWaiter puller
    cdef readonly uint64_t messages_sent, messages_received, nops_sent, nops_received, writes_posted, bytes_written
    cdef readonly uint64_t credit_waits, wr_waits, keepalives_sent, keepalives_done
    cdef const volatile uint64_t *astray    # the device's count of WRITEs not carried out while they were posted
    cdef uint64_t astray_seen, no_count
    cdef readonly uint64_t last_received       # completions that prove the peer alive; the keepalive compares it

    cdef inline uint32_t sq_free(self) noexcept:
        return self.sq_depth - (self.sq_posted - self.sq_retired)

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
    cdef int post_fragment(self, Flow flow, aio_chain *chain, uint64_t until, uint32_t count=*) except -1
    cdef void retire_fragments(self)
    cdef uint32_t _done_up_to(self, uint32_t position, bint is_read) noexcept
    cdef int _post_receive(self, uint32_t slot) except -1
    cdef void _add_send(self, aio_chain *chain, uint32_t length, bint signal, uint32_t imm)
    cdef uint64_t _send_id(self, aio_chain *chain) noexcept
    cdef int _on_error(self, ibv_wc *wc, uint32_t kind) except -1
    cdef int ack_if_due(self) except -1
    cdef void enqueue(self, Flow flow)
    cdef int flush_quiet(self) except -1
    cdef void say_held(self, bint some) noexcept
    cdef void say_last(self, Flow flow) noexcept
    cdef bint may_will(self, Flow flow) noexcept
    cdef void will(self, const unsigned char *message, uint32_t length) noexcept
    cdef void note_read(self) noexcept
    cdef void wait_for_room(self, Flow flow)
    cdef object flow_at(self, uint32_t token)
    cdef int register(self, Flow flow) except -1
    cdef void unregister(self, Flow flow)
    cdef int on_receive(self, ibv_wc *wc) except -1
    cdef int receive_late(self, ibv_wc *wc, uint32_t slot) except -1
    cdef int dispatch_late(self, const unsigned char *message, uint32_t length) except -1
    cdef int _fail_window(self, int verdict) except -1
    cdef int finish(self, bint announced, uint32_t seq) except -1
    cdef int after_receive(self) except -1
    cdef int _give_to_hook(self, const unsigned char *message, uint32_t length, uint32_t slot, uint32_t seq) except -1
    cdef int on_sent(self, ibv_wc *wc) except -1
    cdef int dispatch(self, const unsigned char *message, uint32_t length) except -1
    cdef int fail(self, object reason) except -1
