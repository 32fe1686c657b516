# Declarations of _qp.pyx (station 3 of the path of a byte: the flows of a link, and its receiving half).
from libc.stdint cimport uint32_t, uint64_t

from ._fairness cimport SendQueueWaiter
from ._send_queue cimport KIND_RECEIVE, SendQueue
from ._verbs cimport aio_chain, aio_post_recv, ibv_wc

cdef enum:
    CDC_TYPE = 0xFE

cdef bint is_announced_ack(unsigned char first) noexcept

cdef class Flow(SendQueueWaiter):
    """What messages with an alert token are dispatched to: the rings of a stream, or a channel."""
    cdef QueuePair qp
    cdef readonly uint32_t token            # this end's: the peer puts it into every message to this flow
    cdef bint queued                        # is in waiting_flows, for credit or the end of the tick
    cdef int on_cdc(self, const unsigned char *message, uint32_t length) except -1
    cdef int on_channel(self, const unsigned char *message, uint32_t length) except -1
    # 1: nothing left to post; 0: out of credit, stays first; 2: more to post, after the others. Meanwhile enqueue() does
    # nothing for this flow: what it calls may leave it more to post.
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

cdef class QueuePair(SendQueue):
    cdef object owner                       # link.Link: LLC messages, failure
    cdef object keep
    cdef uint64_t recv_addr
    cdef uint32_t recv_bytes, recv_count, recv_lkey
    cdef bint check_words                   # CDC messages carry aiordma's own (proto/cdc.py)
    cdef uint32_t unread                    # flows with bytes that have been announced, and not been read
    cdef bint asked_end, end_shows          # what shows_end() has found, once it was asked
    cdef bint left_whole                    # it failed because the peer's process ended, which had sent all it accepted
    cdef uint64_t left_note                 # ... and behind how many of this end's messages it had read everything
    cdef bint receives_late                    # it failed, but the peer did not break the protocol
    cdef bint flushing
    cdef list flows
    cdef object free_tokens
    cdef uint32_t generation
    cdef LlcFlow llc
    cdef object fragments                   # deque of (position, Flow, byte, count): WRITEs from registered memory, READs
    # READs: how many the QP may have outstanding (max_rd_atomic), and what posts them.
    cdef public uint32_t max_reads
    cdef SendQueueWaiter puller
    cdef readonly uint64_t last_received       # completions that prove the peer alive; the keepalive compares it

    cdef int post_fragment(self, Flow flow, aio_chain *chain, uint64_t until, uint32_t count=*) except -1
    cdef void retire_fragments(self)
    cdef inline int offer(self, uint32_t slot) noexcept:
        """Post a receive; 0, or an errno."""
        return aio_post_recv(self.qp, self.tag | (<uint64_t>KIND_RECEIVE << 28) | slot,
                             self.recv_addr + <uint64_t>slot * self.recv_bytes, self.recv_bytes, self.recv_lkey)

    cdef int _post_receive(self, uint32_t slot) except -1       # or the link fails: look at `failed`
    cdef int _on_error(self, ibv_wc *wc, uint32_t kind) except -1
    cdef void enqueue(self, Flow flow)
    cdef int flush_quiet(self) except -1
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
    cdef bint shows_end(self) except -1
    cdef int fail(self, object reason) except -1
