# cython: language_level=3, boundscheck=False, wraparound=False
"""The flows of a link and its receiving half: station 3 of the path of a byte (_send_queue.pyx posts).

A :class:`QueuePair` is one RC QP with the X-RDMA seq-ack window (``proto/seqack.py``) in the immediate data of every
SEND. The window counts receives that the peer has posted, so RNR cannot happen. Its credit returns when a message has
been dispatched and its receive posted again, and never depends on an application. Flows that find no credit wait in
``waiting_flows``, first come, first served; each is there once however much it has to send, because CDC messages carry
absolute cursors.
"""
import logging
import random
from array import array
from collections import deque

from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from .._cq cimport CompletionPoller
from ._send_queue cimport KIND_KEEPALIVE, KIND_RECEIVE, SendQueue, expects_fn, notes_fn, says_held_fn, wills_fn
from ._verbs cimport (
    IBV_WC_RDMA_READ,
    IBV_WC_RECV,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM,
    IBV_WC_WR_FLUSH_ERR,
    aio_chain,
    aio_chain_is_read,
    aio_chain_signal_last,
    ibv_qp,
    ibv_wc,
)
from ..proto.cdc cimport is_damaged
from ..proto.seqack cimport SeqAckWindow

from ..errors import Code, CompletionError, LinkError, RemoteProtocolError, VerbsError
from ..verbs.memory.budget import MemoryLimitError

cdef extern from "<arpa/inet.h>" nogil:
    uint32_t ntohl(uint32_t)

logger = logging.getLogger("aiordma.link")

cdef enum:
    CDC_BYTES = 44
    CHANNEL_FIRST = 0xC0        # messages of channels (_link_channel.pyx): 12 bytes of header at least
    CHANNEL_LAST = 0xCF
    CHANNEL_HEADER_BYTES = 12
    ANNOUNCE_ACK = 0x0A
    # Control messages that may wait on a link: for each flow an offer of a ring, its answer and the ring's name, once in
    # each direction of its bytes; besides, what is said of tickets (255 at most), and of flows that have ended since.
    LLC_MOST = 1024
    LLC_FOR_EACH_FLOW = 8


cdef bint is_announced_ack(unsigned char first) noexcept:
    return first & 0xf == ANNOUNCE_ACK and first != CDC_TYPE


cdef class Flow(SendQueueWaiter):
    @property
    def qp_num(self) -> int:
        """Number of the queue pair that it runs on."""
        return self.qp.qp_num

    cdef int on_cdc(self, const unsigned char *message, uint32_t length) except -1:
        return self.on_broken(
            RemoteProtocolError("the peer broke the protocol: cursors of a stream for something else"))

    cdef int on_channel(self, const unsigned char *message, uint32_t length) except -1:
        return self.on_broken(
            RemoteProtocolError("the peer broke the protocol: a message of a channel for something else"))

    cdef int flush(self) except -1:
        raise NotImplementedError

    cdef bint is_quiet(self) noexcept:
        return False

    cdef void on_fragment_done(self, uint64_t until) noexcept:
        pass

    cdef int on_broken(self, object reason) except -1:
        raise NotImplementedError

    cdef bint speaks_to(self, uint32_t token, uint64_t remote_addr) noexcept:
        return False


cdef class LlcFlow(Flow):
    def __cinit__(self):
        self.waiting = deque()

    cdef int on_room(self) except -1:
        return 0

    cdef int flush(self) except -1:
        while self.waiting:
            if len(self.waiting) == 1 and self.qp.can_message():
                self.qp.say_last(self.queued)
            if not self.qp.send_llc(self.waiting[0]):
                return 0
            self.waiting.popleft()
            self.sent += 1
        return 1


cdef class QueuePair(SendQueue):
    """The data path of one link.

    :param qp: address of the ``struct ibv_qp``, in RTS (or in RTR with the receives to be posted by :meth:`start`).
    :param window: messages in flight each way, a power of two; the peer's is the same (negotiated).
    :param recv_addr, recv_bytes, recv_count, recv_lkey: the receive slots; ``recv_count >= window + reserve``.
    :param message_addr, message_lkey: ``sq_depth`` slots of 64 bytes for outgoing control messages.
    :param owner: gets ``on_llc(bytes)``, ``on_ack_owed()``, ``explain(reason)`` and ``on_failed(reason)``.
    :param keep: objects that own the C structures, kept alive as long as this one.
    :param astray: address of the device's count of WRITEs that it did not execute when they were posted; 0: none.
    :param says_held: address of the device's function by which a peer learns, should this process be killed, whether it
        held something back; 0: none.
    :param wills, notes: addresses of the device's functions that leave such a peer a message and a number; 0: none.
    :param expects: address of the device's function that asks ahead what a key of the peer's opens; 0: none.
    """

    def __init__(self, CompletionPoller cq, uintptr_t qp, uint32_t qp_num, SeqAckWindow window, *, object owner,
                 object keep, uint64_t recv_addr, uint32_t recv_bytes, uint32_t recv_count, uint32_t recv_lkey,
                 uint64_t message_addr, uint32_t message_lkey, uint32_t sq_depth, uint32_t max_inline, bint with_imm,
                 uintptr_t astray=0, uintptr_t says_held=0, uintptr_t wills=0,
                 uintptr_t notes=0, uintptr_t expects=0):
        self.qp = <ibv_qp *>qp
        self.qp_num = qp_num
        self.window = window
        self.owner = owner
        self.keep = keep
        self.recv_addr, self.recv_bytes, self.recv_count = recv_addr, recv_bytes, recv_count
        self.recv_lkey = recv_lkey
        self.message_addr, self.message_lkey = message_addr, message_lkey
        self.sq_depth = sq_depth
        # Signalling a quarter of the queue keeps completions rare and still returns slots long before the end.
        self.sq_signal_every = max(1, sq_depth // 8)
        self.max_inline = max_inline
        self.with_imm = with_imm
        self.check_words = True
        self.astray = <const volatile uint64_t *>astray if astray else &self.no_count
        self.astray_seen = self.astray[0]
        self.says_held = <says_held_fn>says_held
        self.wills = <wills_fn>wills
        self.notes = <notes_fn>notes
        self.expects = <expects_fn>expects
        self.flows = []
        # Numbers in an array, not in a list: after thousands of streams, one small object of each would keep the
        # page that its neighbours have left.
        self.free_tokens = array("H")
        self.generation = random.randrange(0x10000)
        self.waiting_flows = deque()
        self.llc = LlcFlow()
        self.llc.qp = self
        self.fragments = deque()
        self.reads_out = deque()
        cq.attach(self)

    def start(self) -> None:
        """Post all receives, before the peer may send (before the QP goes to RTR). :raises VerbsError:"""
        cdef uint32_t slot
        cdef int rc
        for slot in range(self.recv_count):
            rc = self.offer(slot)
            if rc:
                self.cq.detach(self)
                raise VerbsError(rc, "ibv_post_recv")
        self.say_held(False)

    cdef int _post_receive(self, uint32_t slot) except -1:
        # Without it the peer would have a credit less, and a gap in its window that never closes: the link fails.
        cdef int rc = self.offer(slot)
        return self.fail(VerbsError(rc, "ibv_post_recv")) if rc else 0

    # ---- flows of this link

    cdef int register(self, Flow flow) except -1:
        """Give the flow its alert token: an index, and a number that counts up so that a stale token matches no flow. A
        random number would match now and then: on a busy link messages cross the end of a flow every second, the index is
        reused at once, and one in 65535 random numbers repeats. Raises MemoryLimitError when none is left."""
        cdef uint32_t index
        if self.free_tokens:
            index = self.free_tokens.pop()
            self.flows[index] = flow
        else:
            index = len(self.flows)
            if index > 0xffff:
                raise MemoryLimitError("more than 65536 connections on one link", Code.LIMIT_REACHED)
            self.flows.append(flow)
        self.generation = self.generation % 0xffff + 1      # never 0: a token of 0 is no flow's
        flow.token = (self.generation << 16) | index
        flow.qp = self
        return 0

    cdef void unregister(self, Flow flow):
        cdef uint32_t index = flow.token & 0xffff
        if index < <uint32_t>len(self.flows) and self.flows[index] is flow:
            self.flows[index] = None
            self.free_tokens.append(index)
        if flow.queued:
            flow.queued = False
            self.waiting_flows.remove(flow)
            if not self.waiting_flows:
                self.say_held(False)
        self.cq.fair_queue.remove(flow)

    cdef object flow_at(self, uint32_t token):
        cdef uint32_t index = token & 0xffff
        if index < <uint32_t>len(self.flows):
            found = self.flows[index]
            if found is not None and (<Flow>found).token == token:
                return found
        return None

    def flow_of(self, uint32_t token) -> Flow | None:
        """The flow with this alert token; None: it is gone."""
        return self.flow_at(token)

    @property
    def flow_count(self) -> int:
        return len(self.flows) - len(self.free_tokens)

    # ---- control messages

    cdef int post_failed(self, object error) except -1:
        return self.fail(error)

    def queue_llc(self, bytes message) -> int:
        """Send a link control message, in turn with the flows when there is no credit now. The message's number, for
        :meth:`llc_waits`.

        A peer that goes on asking and takes no answers loses the link. So who asks does not ask again before its
        earlier question has gone: peers that are stopped must not look like that.
        """
        cdef LlcFlow llc = self.llc
        cdef uint64_t most
        if self.failed:
            return 0
        if not llc.queued and self.send_llc(message):
            llc.sent += 1
            return llc.sent
        most = LLC_MOST + LLC_FOR_EACH_FLOW * <uint64_t>self.flow_count
        if <uint64_t>len(llc.waiting) >= most:
            self.fail(RemoteProtocolError(
                f"the peer broke the protocol: it goes on asking and takes no answers ({most} control messages wait "
                "for it to receive them)", Code.PROTOCOL_VIOLATION))
            return 0
        llc.waiting.append(message)
        self.enqueue(llc)
        return llc.sent + <uint64_t>len(llc.waiting)

    def llc_waits(self, uint64_t number) -> bool:
        """Whether this message of :meth:`queue_llc` waits for credit."""
        return number > self.llc.sent and not self.failed

    @property
    def llc_waiting(self) -> int:
        """Control messages that wait for credit."""
        return len(self.llc.waiting)

    # ---- flows with something to post

    cdef void enqueue(self, Flow flow):
        if not flow.queued and not self.failed:
            self.waiting_flows.append(flow)     # first: a thread that helps a blocked loop may look behind any call
            flow.queued = True
            if len(self.waiting_flows) == 1:
                self.say_held(True)
                self.cq.mark_dirty(self)
            elif self.willed:
                self.say_held(True)

    cdef bint flush_beside(self) except -1:
        if self.flushing:
            return False
        if self.hook is None:
            self.flush_quiet()
        return True

    cdef int flush_quiet(self) except -1:
        """Those flows that only post. The others stay, and all keep their order: once round."""
        cdef Flow flow
        cdef Py_ssize_t i
        cdef bint goes_on = not self.failed
        for i in range(len(self.waiting_flows)):
            flow = self.waiting_flows[0]
            if goes_on and not self.refused and flow.is_quiet():
                if flow.flush() != 0:
                    self.waiting_flows.popleft()
                    flow.queued = False
                    continue
                self.credit_waits += 1
                goes_on = False
            self.waiting_flows.rotate(-1)
        if not self.waiting_flows:
            self.say_held(False)
        return 0

    cdef int flush(self) except -1:
        cdef Flow flow
        cdef int verdict
        if self.flushing:
            return 0
        self.flushing = True
        try:
            while self.waiting_flows and not self.failed:
                flow = self.waiting_flows[0]
                verdict = flow.flush()
                if verdict == 0:
                    # It stays first; acknowledgements and completions of sends call flush() again.
                    self.credit_waits += 1
                    break
                if not self.waiting_flows or self.waiting_flows[0] is not flow:
                    continue        # a callback of its user ended it
                if verdict == 2:
                    self.waiting_flows.rotate(-1)
                else:
                    self.waiting_flows.popleft()
                    flow.queued = False
        finally:
            self.flushing = False
        if not self.waiting_flows:
            self.say_held(False)
        return 0

    # ---- completions

    cdef int on_completion(self, ibv_wc *wc) except -1:
        cdef uint32_t kind = (wc.wr_id >> 28) & 0xf
        if wc.status != IBV_WC_SUCCESS:
            return self._on_error(wc, kind)
        if kind == KIND_RECEIVE:
            return self.on_receive(wc)
        if kind == KIND_KEEPALIVE:
            self.keepalives_done += 1
            self.last_received += 1
        return self.on_sent(wc)

    cdef int _on_error(self, ibv_wc *wc, uint32_t kind) except -1:
        if self.failed:
            return 0            # flushed after the failure that was reported already
        if wc.status == IBV_WC_WR_FLUSH_ERR:
            # No request of this end failed first: no later completion has a better reason.
            return self.fail(LinkError(
                f"the device stopped QP {self.qp_num}: the peer is gone, or it broke the rules of RDMA (a message too "
                "large, memory that is not its own)"))
        operation = "RECV" if kind == KIND_RECEIVE else "SEND/WRITE/READ"
        return self.fail(CompletionError(wc.status, wc.vendor_err, operation, self.qp_num))

    cdef int on_sent(self, ibv_wc *wc) except -1:
        cdef uint32_t position = wc.wr_id & 0xfffffff
        if not self.with_imm:
            position = self._done_up_to(position, wc.opcode == IBV_WC_RDMA_READ)
        # Positions count modulo 2^28.
        self.sq_retired += (position - self.sq_retired) & 0xfffffff
        if self.fragments:
            self.retire_fragments()
        if self.waiting_flows:
            self.flush()
        if self.puller is not None:
            self.puller.on_room()
        self.cq.serve_waiters()
        return 0

    cdef int post_fragment(self, Flow flow, aio_chain *chain, uint64_t until, uint32_t count=1) except -1:
        """Post a chain with READs, or with WRITEs of registered memory: it counts as ``count`` of the engine's outstanding
        fragments until it completes, so its last WR is signalled."""
        aio_chain_signal_last(chain)
        self.sq_unsignalled = 0
        self.post(chain)
        if self.failed or self.refused:
            return 0
        try:
            self.fragments.append((self.sq_posted, flow, until, count))
            self.cq.fragments += count
            if not self.with_imm and aio_chain_is_read(chain):
                self.reads_out.append(self.sq_posted)
        except MemoryError:
            self.lose_count(None)
        return 0

    cdef void retire_fragments(self):
        while self.fragments:
            position, flow, until, count = self.fragments[0]
            if not self.failed and <int>(self.sq_retired - <uint32_t>position) < 0:
                break
            self.fragments.popleft()
            self.cq.fragments -= <uint32_t>count
            (<Flow>flow).on_fragment_done(until)

    cdef int on_receive(self, ibv_wc *wc) except -1:
        cdef uint32_t slot = wc.wr_id & 0xfffffff
        cdef uint32_t length = wc.byte_len, imm
        cdef const unsigned char *message
        cdef int verdict
        cdef bint announced
        if self.failed:
            return self.receive_late(wc, slot)
        self.last_received += 1
        message = <const unsigned char *><uintptr_t>(self.recv_addr + <uint64_t>slot * self.recv_bytes)
        if slot >= self.recv_count or length > self.recv_bytes:
            return self.fail(RemoteProtocolError(f"receive completion for slot {slot} with {length} bytes"))
        if wc.opcode != IBV_WC_RECV or bool(wc.wc_flags & IBV_WC_WITH_IMM) != self.with_imm:
            return self.fail(RemoteProtocolError(
                "the peer broke the protocol: a message by another operation than SEND "
                f"{'with' if self.with_imm else 'without'} immediate data "
                f"(opcode {wc.opcode}, flags 0x{wc.wc_flags:x})"))
        if self.with_imm:
            imm = ntohl(wc.imm_data)
        else:
            if length < 4:
                return self.fail(RemoteProtocolError(f"message of {length} bytes, too short for its sequence and ack"))
            imm = (<uint32_t>message[0] << 24) | (<uint32_t>message[1] << 16) | (<uint32_t>message[2] << 8) | message[3]
            message += 4
            length -= 4
        if length == 0:
            self.nops_received += 1
            verdict = self.window.receive_nop(imm)
            if verdict < 0:
                return self._fail_window(verdict)
            self._post_receive(slot)
        else:
            self.messages_received += 1
            verdict = self.window.receive(imm)
            if verdict < 0:
                return self._fail_window(verdict)
            if self.hook is not None:
                return self._give_to_hook(message, length, slot, imm >> 16)
            self.dispatch(message, length)
            if self.failed:
                return 0
            # The peer may count on the receive only after it is posted again.
            announced = is_announced_ack(message[0])
            self._post_receive(slot)
            self.finish(announced, imm >> 16)
        return self.after_receive()

    cdef int _fail_window(self, int verdict) except -1:
        return self.fail(RemoteProtocolError(f"the peer broke the protocol: {SeqAckWindow.fault_text(verdict)}"))

    cdef int finish(self, bint announced, uint32_t seq) except -1:
        """The message was dispatched: the peer may send one more."""
        if announced:
            # An acknowledgement itself: to acknowledge it in turn would never end.
            return self.window.complete_quiet(seq)
        return self.window.complete(seq)

    cdef int after_receive(self) except -1:
        if self.waiting_flows and self.can_message():
            self.flush()
        if self.window.owed and not self.ack_watched and not self.failed:
            self.ack_watched = True
            self.owner.on_ack_owed()
        return self.ack_if_due()

    cdef int receive_late(self, ibv_wc *wc, uint32_t slot) except -1:
        """A message that had arrived when the link failed, and is polled afterwards. Its sender may rely on the
        delivery: a stream's last cursors still count."""
        cdef uint32_t lead = 0 if self.with_imm else 4
        cdef const unsigned char *message
        if slot >= self.recv_count or wc.opcode != IBV_WC_RECV or wc.byte_len < lead:
            return 0
        message = <const unsigned char *><uintptr_t>(self.recv_addr + <uint64_t>slot * self.recv_bytes) + lead
        return self.dispatch_late(message, wc.byte_len - lead)

    cdef int dispatch_late(self, const unsigned char *message, uint32_t length) except -1:
        if not self.receives_late or length != CDC_BYTES or message[0] != CDC_TYPE:
            return 0
        return self.dispatch(message, CDC_BYTES)

    cdef int _give_to_hook(self, const unsigned char *message, uint32_t length, uint32_t slot, uint32_t seq) except -1:
        """The hook takes a copy, and calls dispatch() and finish() now or later."""
        self.hook.arrived(message, length, seq)
        if self.failed:
            return 0
        self._post_receive(slot)
        return self.after_receive()

    cdef int dispatch(self, const unsigned char *message, uint32_t length) except -1:
        cdef uint32_t token
        cdef object found
        cdef bint channel = CHANNEL_FIRST <= message[0] <= CHANNEL_LAST
        if not channel and message[0] != CDC_TYPE:
            self.owner.on_llc(message[:length])
            return 0
        if channel:
            if length < CHANNEL_HEADER_BYTES:
                return self.fail(
                    RemoteProtocolError(f"message of a channel of {length} bytes, shorter than its header"))
        elif length != CDC_BYTES:
            return self.fail(RemoteProtocolError(f"CDC message of {length} bytes, must be {CDC_BYTES}"))
        token = (<uint32_t>message[4] << 24) | (<uint32_t>message[5] << 16) | (<uint32_t>message[6] << 8) | message[7]
        found = self.flow_at(token)
        if found is not None:
            if channel:
                return (<Flow>found).on_channel(message, length)
            return (<Flow>found).on_cdc(message, length)
        if not channel and is_damaged(message):
            # Its token may be damaged, too: any flow may have lost it.
            return self.fail(RemoteProtocolError("a cursor message arrived damaged"))
        # A message to a flow that is gone: it crossed the last one of this end.
        return 0

    # ---- failure

    cdef int fail(self, object reason) except -1:
        """Break everything on this link, once. The device may use its memory until the QP is flushed or destroyed."""
        cdef Py_ssize_t index
        if self.failed:
            return 0
        self.failed = True
        self.end_hook()
        self.waiting_flows.clear()
        self.llc.waiting.clear()
        self.llc.queued, self.llc.qp = False, None      # breaks a reference cycle
        self.retire_fragments()
        try:
            reason = self.owner.explain(reason)
            self.left_whole = not isinstance(reason, RemoteProtocolError) and self.owner.peer_left_whole()
            if self.left_whole and self.notes != NULL and self.hook is None:
                self.left_note = self.owner.peer_left_note()
        except BaseException as error:
            self.left_whole = False
            self.cq.report(error)   # the flows must learn of the failure all the same
        self.receives_late = self.hook is None and not isinstance(reason, RemoteProtocolError)
        for index in range(len(self.flows)):
            found = self.flows[index]
            if found is not None:
                (<Flow>found).queued = False
                try:
                    (<Flow>found).on_broken(reason)
                except BaseException as error:
                    self.cq.report(error)   # and so must the others
        self.owner.on_failed(reason)
        return 0

    cdef bint shows_end(self) except -1:
        """Whether the device takes, at the other end, what this process has left when it ends, and shows its end."""
        if not self.asked_end:
            self.asked_end, self.end_shows = True, self.owner.shows_end
        return self.end_shows

    def break_link(self, reason: BaseException) -> None:
        """Fail from outside: TCP connection lost, keepalive, operator. Messages that arrived before are dispatched."""
        if not self.failed:
            self.cq.drain()
        self.fail(reason)

    def detach_from_cq(self) -> None:
        self.cq.detach(self)
