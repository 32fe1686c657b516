# cython: language_level=3, boundscheck=False, wraparound=False
"""What the rules of a filter (``proto/filter.py``) do to one link.

The filter acts in two places. *Out*: between the link and the device, where a rule does what a device or a network can
do, and nothing that an RC queue pair excludes: requests keep their order, a lost one takes all behind it along, and it
ends in the completion error that a device reports. *In*: between the window and the flow of a message that has
arrived. The window has counted it and its receive is posted again, so the link stays whole whatever a rule does.

Send queue positions, message slots and mirrors of a request that is held or lost stay in use, as while a device
retries. The filter is detached from a link only when nothing is held.
"""
from collections import deque

from libc.stdint cimport uint32_t, uint64_t, uintptr_t

cdef extern from "arpa/inet.h" nogil:
    uint32_t ntohl(uint32_t value)

from ._qp cimport CDC_TYPE, Flow, QueuePair, is_announced_ack
from ._send_queue cimport KIND_KEEPALIVE, Hook
from ._verbs cimport (
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND_WITH_IMM,
    aio_chain,
    aio_chain_post,
    aio_chain_take,
    aio_wr_is_atomic,
    aio_wr_remote_addr,
)

from ..errors import CompletionError, VerbsError
from ..proto.filter import STATUS_NAMES as _STATUS_NAMES
from ..proto.filter import Act, Direction, Op

cdef object OUT = Direction.OUT, IN = Direction.IN
cdef object CDC = Op.CDC, LLC = Op.LLC, MESSAGE = Op.MESSAGE, NOP = Op.NOP
cdef object WRITE = Op.WRITE, READ = Op.READ, KEEPALIVE = Op.KEEPALIVE
cdef object DROP = Act.DROP, DELAY = Act.DELAY, DUPLICATE = Act.DUPLICATE, REORDER = Act.REORDER
cdef object CORRUPT = Act.CORRUPT, RNR = Act.RNR, ERROR = Act.ERROR, DISCONNECT = Act.DISCONNECT

cdef enum:
    # Types of SMC's link control messages are below this; CDC and the messages of channels are above.
    FIRST_TYPE_ABOVE_LLC = 0x80


cdef class Held:
    cdef int keep_bytes(self) except -1:
        """Copy inline payload: the caller reuses it once the request is posted."""
        if self.data is None and self.chain.wr[0].send_flags & IBV_SEND_INLINE and self.chain.sge[0].length:
            self.replace_bytes((<const char *><uintptr_t>self.chain.sge[0].addr)[:self.chain.sge[0].length])
        return 0

    cdef int replace_bytes(self, bytes data) except -1:
        self.data = data
        self.chain.sge[0].addr = <uint64_t><uintptr_t><const char *>data
        return 0


cdef class LinkFilter(Hook):
    """The filter at work on one link.

    :param link: ``peer``, ``side``, ``call_later(seconds, callback)`` and ``cut()``, which moves the QP to ERROR.
    :param decide: ``decide(direction, op, size, peer=, side=, connection=)``, a ``Decision`` or None.
    """

    def __init__(self, QueuePair qp, object link, object decide):
        self.qp, self.link, self.decide = qp, link, decide
        self.out = deque()
        self.pending = deque()
        self.timers = set()

    @property
    def idle(self) -> bool:
        """Nothing is held: the hook can be taken off."""
        busy = self.holding or self.cut or self.blocked or self.running or self.posting
        return not busy and self.swapped is None

    def attach(self) -> None:
        """Pass everything on the link through the filter. In any thread, as detach()."""
        self.qp.hook = self
        self.qp.diverted = True

    def detach(self) -> bool:
        """Let the link work without the filter, unless something is held; whether that was so."""
        if self.idle:
            self.qp.hook = None
            self.qp.diverted = self.qp.refused
        return self.qp.hook is None

    cdef int end(self) except -1:
        """The link has failed: drop what is held."""
        self.over = True
        for handle in self.timers:
            handle.cancel()
        self.timers.clear()
        self.out.clear()
        self.pending.clear()
        self.swapped = None
        return 0

    def _after(self, double milliseconds, callback) -> None:
        if milliseconds == float("inf"):
            return

        def due() -> None:
            self.timers.discard(handle)
            if not self.over:
                callback()

        handle = self.link.call_later(milliseconds / 1000, due)
        self.timers.add(handle)

    # ---- out: requests to the device

    cdef int post(self, aio_chain *chain) except -1:
        cdef Held held
        cdef int i
        self.qp.sq_posted += chain.length
        self.posting = True
        try:
            for i in range(chain.length):
                if self.cut or self.over:
                    break
                held = Held()
                aio_chain_take(chain, i, &held.chain)
                if self.tap is not None:
                    self._tell(held)
                if self.holding:
                    held.keep_bytes()
                    self.out.append(held)
                else:
                    self._send(held)
        finally:
            self.posting = False
        return 0

    cdef object _op_of(self, Held held, uint32_t *size):
        cdef uint32_t lead = 0 if self.qp.with_imm else 4
        size[0] = held.chain.sge[0].length if held.chain.wr[0].num_sge else 0
        if held.chain.wr[0].opcode == IBV_WR_RDMA_WRITE:
            return KEEPALIVE if ((held.chain.wr[0].wr_id >> 28) & 0xf) == KIND_KEEPALIVE else WRITE
        if held.chain.wr[0].opcode == IBV_WR_RDMA_READ or aio_wr_is_atomic(&held.chain):
            return READ     # an atomic operation fetches, too
        if size[0] <= lead:
            size[0] = 0
            return NOP
        size[0] -= lead
        return _kind_of_message((<const unsigned char *><uintptr_t>held.chain.sge[0].addr)[lead])

    cdef object _flow_of(self, Held held):
        """Our token of the flow that the request belongs to, or None."""
        cdef const unsigned char *message
        cdef uint32_t lead = 0 if self.qp.with_imm else 4
        cdef uint64_t remote = 0
        cdef uint32_t token = 0
        if (held.chain.wr[0].opcode == IBV_WR_RDMA_WRITE or held.chain.wr[0].opcode == IBV_WR_RDMA_READ
                or aio_wr_is_atomic(&held.chain)):
            remote = aio_wr_remote_addr(&held.chain)
        elif held.chain.wr[0].num_sge and held.chain.sge[0].length >= lead + 8:
            message = <const unsigned char *><uintptr_t>held.chain.sge[0].addr + lead
            token = _token_in(message)
        for found in self.qp.flows:
            if found is not None and (<Flow>found).speaks_to(token, remote):
                return (<Flow>found).token
        return None

    cdef int _tell(self, Held held) except -1:
        """Show a request to the tap, as it was posted."""
        cdef uint32_t size, lead = 0 if self.qp.with_imm else 4
        cdef object op = self._op_of(held, &size)
        cdef const char *where
        cdef bytes data = b""
        cdef uint64_t remote = 0
        if op is WRITE or op is READ or op is KEEPALIVE:
            remote, lead = aio_wr_remote_addr(&held.chain), 0
        if size and op is not READ:
            where = <const char *><uintptr_t>held.chain.sge[0].addr + lead
            data = where[:min(size, self.tap_bytes)]
        imm = ntohl(held.chain.wr[0].imm_data) if held.chain.wr[0].opcode == IBV_WR_SEND_WITH_IMM else None
        self.tap(self.link, OUT, op, data, size, imm, remote)
        return 0

    cdef int _send(self, Held held) except -1:
        cdef uint32_t size
        cdef object op = self._op_of(held, &size)
        cdef object decision = self.decide(OUT, op, size, self.link.peer, self.link.side, self._flow_of(held))
        if decision is None:
            return self._post(held)
        rule = decision.rule
        act = rule.act
        if act is DELAY:
            held.keep_bytes()
            self.out.append(held)
            self.holding = True
            self._after(rule.ms, self._release)
        elif act is DROP or act is RNR:
            self.cut = True
            status = "RETRY_EXC_ERR" if act is DROP else "RNR_RETRY_EXC_ERR"
            self._after(rule.ms, lambda: self._complete_with(status, op))
        elif act is ERROR:
            self.cut = True
            self._after(0, lambda: self._complete_with(rule.status, op))
        elif act is DISCONNECT:
            self.link.cut()
            self._post(held)
        elif act is CORRUPT:
            if held.chain.wr[0].num_sge and held.chain.sge[0].length:
                self._corrupt(held, decision)
            self._post(held)
        else:
            self._post(held)
            # The copy takes a send queue position of its own. (No network carries out an atomic operation twice.)
            if not aio_wr_is_atomic(&held.chain) and not self.over and self.qp.sq_free():
                self.qp.sq_posted += 1
                held.chain.wr[0].send_flags &= ~<unsigned int>IBV_SEND_SIGNALED
                self._post(held)
        return 0

    def _corrupt(self, Held held, decision) -> None:
        cdef uint32_t lead = 0 if self.qp.with_imm or held.chain.wr[0].opcode == IBV_WR_RDMA_WRITE else 4
        cdef char *where = <char *><uintptr_t>held.chain.sge[0].addr
        cdef uint32_t length = held.chain.sge[0].length, i
        cdef bytes changed = decision.corrupted(where[lead:length])
        if held.chain.wr[0].send_flags & IBV_SEND_INLINE:
            held.replace_bytes(where[:lead] + changed)
        else:
            # Registered memory (a mirror or a message slot) that belongs to this request until it completes.
            for i in range(length - lead):
                where[lead + i] = changed[i]

    cdef int _post(self, Held held) except -1:
        cdef int posted = 0
        cdef int rc
        if self.over:
            return 0
        rc = aio_chain_post(self.qp.qp, &held.chain, &posted)
        if rc:
            self.qp.fail(VerbsError(rc, "ibv_post_send"))
        return 0

    def _release(self) -> None:
        """The delay is over: post what waits, each request by its own rules; one may be delayed again."""
        cdef Held held = self.out.popleft()
        self.holding = False
        self._post(held)
        while self.out and not (self.holding or self.cut or self.over):
            self._send(self.out.popleft())
        if self.cut:
            self.out.clear()
        elif self.holding:
            # The request that is delayed again was appended; it belongs before those that were behind it.
            self.out.rotate(1)

    def _complete_with(self, str status, op) -> None:
        name = "READ" if op is READ else "WRITE" if op is WRITE or op is KEEPALIVE else "SEND"
        self.qp.fail(CompletionError(_STATUS_NAMES[status], 0, name, self.qp.qp_num))

    # ---- in: messages to the flows

    cdef int arrived(self, const unsigned char *message, uint32_t length, uint32_t seq) except -1:
        if self.tap is not None:
            self.tap(self.link, IN, _kind_of_message(message[0]), message[:min(length, self.tap_bytes)], length, None, 0)
        self.pending.append((message[:length], seq))
        return self._run()

    cdef int _run(self) except -1:
        if self.running:
            return 0        # a callback polled: the loop below, which called it, continues
        self.running = True
        try:
            while self.pending and not (self.blocked or self.over):
                message, seq = self.pending.popleft()
                self._deliver(message, seq)
        finally:
            self.running = False
        return 0

    cdef int _deliver(self, bytes message, uint32_t seq) except -1:
        cdef const unsigned char *data = message
        cdef uint32_t length = len(message)
        token = _token_in(data) if length >= 8 else None
        decision = self.decide(IN, _kind_of_message(data[0]), length, self.link.peer, self.link.side, token)
        if decision is None:
            self._dispatch(message, seq)
        else:
            rule = decision.rule
            act = rule.act
            if act is DELAY:
                self.blocked = True
                self._after(rule.ms, lambda: self._late(message, seq))
                return 0
            if act is REORDER and self.swapped is None:
                self.swapped = message, seq
                self._after(rule.ms, self._pass)
                return 0
            if act is ERROR:
                return self.qp.fail(CompletionError(_STATUS_NAMES[rule.status], 0, "RECV", self.qp.qp_num))
            if act is DISCONNECT:
                self.link.cut()
                return self._dispatch(message, seq)
            if act is DROP:
                self._finish(message, seq)
            elif act is CORRUPT:
                self._dispatch(decision.corrupted(message), seq)
            elif act is DUPLICATE:
                self.qp.dispatch(data, length)
                if not self.over:
                    self._dispatch(message, seq)
            else:
                self._dispatch(message, seq)
        if self.swapped is not None and not self.over:
            late, self.swapped = self.swapped, None
            self._dispatch(late[0], late[1])
        return 0

    def _late(self, bytes message, uint32_t seq) -> None:
        self.blocked = False
        self._resume(message, seq)

    def _pass(self) -> None:
        """No message came in time to change places with."""
        if self.swapped is not None:
            (message, seq), self.swapped = self.swapped, None
            self._resume(message, seq)

    def _resume(self, bytes message, uint32_t seq) -> None:
        self._dispatch(message, seq)
        self._run()
        self.qp.after_receive()

    cdef int _dispatch(self, bytes message, uint32_t seq) except -1:
        if self.over:
            return 0
        self.qp.dispatch(message, len(message))
        return self._finish(message, seq)

    cdef int _finish(self, bytes message, uint32_t seq) except -1:
        """The window counts it as finished: the peer may send another one."""
        if not self.over:
            self.qp.finish(is_announced_ack((<const unsigned char *>message)[0]), seq)
        return 0


cdef object _kind_of_message(unsigned char first):
    if first == CDC_TYPE:
        return CDC
    return MESSAGE if first >= FIRST_TYPE_ABOVE_LLC else LLC


cdef uint32_t _token_in(const unsigned char *message) noexcept:
    return (<uint32_t>message[4] << 24) | (<uint32_t>message[5] << 16) | (<uint32_t>message[6] << 8) | message[7]
