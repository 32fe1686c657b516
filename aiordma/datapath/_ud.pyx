# cython: language_level=3, boundscheck=False, wraparound=False
"""Datagrams on a UD queue pair: posting and receiving.

Every datagram carries immediate data: four bits for its kind (data, or a step of the resolver's proof) and, for data, a
number that grows by one from datagram to datagram to the same peer, so that the receiver can count lost ones. The
device, not the payload, identifies the sender: by the GID of the routing header and the QP number. Only datagrams of
senders that the resolver has proved enter the queue.

Received data is copied out at once and the slot posted again (in batches): when the user does not read, datagrams are
dropped and counted, and receives never run out.
"""
from collections import deque

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from ..plain cimport check_plain
from .._cq cimport CompletionOwner, CompletionPoller
from ._hybrid cimport FOUND, hybrid_poll
from ._verbs cimport (
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_WC_RECV,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM,
    ibv_qp,
    ibv_wc,
)

from ..errors import CompletionError, VerbsError
from ..proto.record import too_large

cdef extern from "<arpa/inet.h>" nogil:
    uint32_t ntohl(uint32_t)

cdef extern from "datapath/_post_ud.h" nogil:
    enum:
        AIO_RECV_BATCH
        AIO_GRH_BYTES
    int aio_post_datagram(ibv_qp *qp, uint64_t wr_id, uint64_t addr, uint32_t length, uint32_t lkey, unsigned int flags,
                          ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint32_t imm)
    int aio_post_slots(ibv_qp *qp, uint64_t tag, uint64_t base, uint32_t slot_bytes, uint32_t lkey,
                       const uint32_t *slots, int count, int *posted)
    int aio_source_gid(const unsigned char *grh, unsigned char *gid)

cdef extern from "infiniband/verbs.h" nogil:
    enum:
        IBV_WC_GRH
    ctypedef struct ud_wc "struct ibv_wc":
        uint32_t src_qp

cdef enum:
    KIND_RECEIVE = 0
    KIND_SEND = 1
    DATA = 1                # imm_data: the kind is in the high four bits
    NUMBER_BITS = 28
    NUMBERS = 0xfffffff
    WINDOW = 1 << 20        # a number further away than this is a new beginning, not a gap


def source_gid(const unsigned char[::1] header not None) -> bytes | None:
    """The sender's GID, from the 40 bytes that the device puts before a datagram; None: not such a header."""
    cdef unsigned char gid[16]
    if header.shape[0] != AIO_GRH_BYTES:
        raise ValueError(f"a header of {header.shape[0]} bytes, not {AIO_GRH_BYTES}")
    return PyBytes_FromStringAndSize(<char *>gid, 16) if aio_source_gid(&header[0], gid) else None


cdef class Route:
    """The path to one peer.

    :param handle: an :class:`aiordma.verbs.ud.AddressHandle`; None: for receiving only.
    :param limit: largest datagram, bytes.
    """

    def __init__(self, object handle, bytes gid, uint32_t qpn, uint32_t qkey, uint32_t limit, object address):
        self.handle, self.gid, self.address = handle, gid, address
        self.ah = NULL if handle is None else <ibv_ah *><uintptr_t>handle.pointer
        self.qpn, self.qkey, self.limit = qpn, qkey, limit
        self.used = True

    cdef void count(self, uint32_t number) noexcept:
        """A missing number is a lost datagram; one that comes later is late, and not lost."""
        cdef int32_t ahead
        self.received += 1
        self.used = True
        if not self.numbered:
            self.numbered = True
            self.expected = (number + 1) & NUMBERS
            return
        ahead = <int32_t>((number - self.expected) << (32 - NUMBER_BITS)) >> (32 - NUMBER_BITS)
        if ahead >= 0 and ahead < WINDOW:
            self.lost += <uint32_t>ahead
            self.expected = (number + 1) & NUMBERS
        elif ahead < 0 and ahead > -WINDOW:
            self.late += 1
            if self.lost:
                self.lost -= 1
        else:
            self.expected = (number + 1) & NUMBERS


cdef bint has_datagram(void *port, uint64_t _) noexcept:
    cdef UdPort self = <UdPort>port
    return len(self.queue) > 0 or self.failed


cdef class UdPort(CompletionOwner):
    """One UD QP in RTS, with its receives and sends.

    :param recv_addr, recv_lkey, recv_count: slots of ``40 + mtu`` bytes.
    :param send_addr, send_lkey: ``sq_depth`` slots of ``mtu`` bytes, for what the device does not take inline.
    :param queue: gets ``(data, address)`` of received datagrams, at most ``most`` of them.
    """

    def __init__(self, CompletionPoller cq, uintptr_t qp, uint32_t qp_num, *, uint64_t recv_addr, uint32_t recv_lkey,
                 uint32_t recv_count, uint64_t send_addr, uint32_t send_lkey, uint32_t sq_depth, uint32_t max_inline,
                 uint32_t mtu, object queue, uint32_t most, object keep):
        self.qp, self.qp_num, self.mtu, self.max_inline = <ibv_qp *>qp, qp_num, mtu, max_inline
        self.recv_addr, self.recv_lkey, self.recv_count = recv_addr, recv_lkey, recv_count
        self.slot_bytes = mtu + AIO_GRH_BYTES
        self.send_addr, self.send_lkey, self.sq_depth = send_addr, send_lkey, sq_depth
        self.sq_signal_every = max(1, sq_depth // 4)
        self.queue, self.most, self.keep = queue, most, keep
        self.senders = {}
        self.graveyard = deque()
        cq.attach(self)

    def start(self) -> None:
        """Post all receives. :raises VerbsError:"""
        cdef uint32_t slot
        cdef int rc
        for slot in range(self.recv_count):
            self.idle[self.idle_count] = slot
            self.idle_count += 1
            if self.idle_count == AIO_RECV_BATCH or slot + 1 == self.recv_count:
                rc = self.post_idle()
                if rc:
                    raise VerbsError(rc, "ibv_post_recv")

    cdef int repost(self) except -1:
        cdef int rc
        if self.idle_count == 0 or self.failed:
            return 0
        rc = self.post_idle()
        return self.fail(VerbsError(rc, "ibv_post_recv")) if rc else 0

    cdef int post_idle(self) noexcept:
        """0, or an errno: those that were not posted stay idle."""
        cdef int posted = 0, rc, i
        rc = aio_post_slots(self.qp, self.tag | (<uint64_t>KIND_RECEIVE << 28), self.recv_addr, self.slot_bytes,
                            self.recv_lkey, self.idle, self.idle_count, &posted)
        for i in range(posted, self.idle_count):
            self.idle[i - posted] = self.idle[i]
        self.idle_count -= posted
        return rc

    # ---- sending

    def try_send(self, Route route not None, data) -> bool:
        """Hand a datagram to the device; False: no free work request now (``on_writable`` is called when one is).

        :raises OSError: (EMSGSIZE) longer than the route's limit.
        """
        cdef Py_buffer view
        cdef uint32_t imm = <uint32_t>DATA << NUMBER_BITS | route.next_number
        cdef bint done
        if PyBytes_CheckExact(data):
            done = self.post(route, <const unsigned char *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), imm)
        else:
            check_plain(data)
            PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
            try:
                done = self.post(route, <const unsigned char *>view.buf, view.len, imm)
            finally:
                PyBuffer_Release(&view)
        if done:
            route.next_number = (route.next_number + 1) & NUMBERS
            route.sent += 1
            route.used = True
            self.sent += 1
        return done

    def send_control(self, Route route not None, int what, bytes data) -> bool:
        """A datagram of the resolver (``what``: 2 to 15)."""
        return self.post(route, <const unsigned char *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data),
                         <uint32_t>what << NUMBER_BITS)

    cdef bint post(self, Route route, const unsigned char *data, Py_ssize_t n, uint32_t imm) except -1:
        cdef unsigned int flags = 0
        cdef uint64_t at = <uint64_t><uintptr_t>data
        cdef int rc
        if n > route.limit:
            raise too_large(n, route.limit)
        if self.failed or route.ah == NULL:
            return False
        if self.sq_posted - self.sq_retired >= self.sq_depth:
            # Sends complete without the peer: one poll often finds some.
            self.cq.poll()
            self.cq.schedule()
            if self.sq_posted - self.sq_retired >= self.sq_depth:
                self.wanting = True
                return False
        if n <= self.max_inline:
            flags |= IBV_SEND_INLINE
        else:
            at = self.send_addr + <uint64_t>(self.sq_posted % self.sq_depth) * self.mtu
            memcpy(<void *><uintptr_t>at, data, n)
        self.sq_unsignalled += 1
        if self.sq_unsignalled >= self.sq_signal_every:
            self.sq_unsignalled = 0
            flags |= IBV_SEND_SIGNALED
        rc = aio_post_datagram(self.qp, self.tag | (<uint64_t>KIND_SEND << 28) | ((self.sq_posted + 1) & 0xfffffff),
                               at, <uint32_t>n, self.send_lkey, flags, route.ah, route.qpn, route.qkey, imm)
        if rc:
            self.fail(VerbsError(rc, "ibv_post_send"))
            return False
        self.sq_posted += 1
        return True

    def bury(self, Route route not None) -> None:
        """Close the address handle of an unused route once no send with it is outstanding."""
        route.ah = NULL
        if route.handle is not None:
            self.graveyard.append((self.sq_posted, route.handle))
            self._dig()

    def _dig(self) -> None:
        while self.graveyard:
            position, handle = self.graveyard[0]
            if not self.failed and <int32_t>(self.sq_retired - <uint32_t>position) < 0:
                break
            self.graveyard.popleft()
            handle.close()

    # ---- completions

    cdef int on_completion(self, ibv_wc *wc) except -1:
        cdef uint32_t kind = (wc.wr_id >> 28) & 0xf
        if wc.status != IBV_WC_SUCCESS:
            if self.failed:
                return 0
            # Also if it was flushed: the queue pair went to the error state by itself.
            operation = "RECV" if kind == KIND_RECEIVE else "SEND"
            return self.fail(CompletionError(wc.status, wc.vendor_err, operation, self.qp_num))
        if kind == KIND_RECEIVE:
            return self.on_receive(wc)
        return self.on_sent(wc)

    cdef int on_sent(self, ibv_wc *wc) except -1:
        self.sq_retired += (<uint32_t>(wc.wr_id & 0xfffffff) - self.sq_retired) & 0xfffffff
        if self.graveyard:
            self._dig()
        if self.wanting:
            self.wanting = False
            if self.on_writable is not None:
                self.cq.wakes += 1
                self.on_writable()
        return 0

    cdef int on_receive(self, ibv_wc *wc) except -1:
        cdef uint32_t slot = wc.wr_id & 0xfffffff
        cdef uint32_t length = wc.byte_len
        if self.failed:
            return 0
        if slot >= self.recv_count or length > self.slot_bytes:
            self.malformed += 1
            return 0
        try:
            self.take(wc, <const unsigned char *><uintptr_t>(self.recv_addr + <uint64_t>slot * self.slot_bytes), length)
        finally:
            self.idle[self.idle_count] = slot
            self.idle_count += 1
            if self.idle_count == AIO_RECV_BATCH or self.idle_count * 4 >= <int>self.recv_count:
                self.repost()
        return 0

    cdef int take(self, ibv_wc *wc, const unsigned char *at, uint32_t length) except -1:
        cdef unsigned char key[19]
        cdef uint32_t imm, qpn = (<ud_wc *>wc).src_qp
        cdef object found
        cdef Route route
        if (wc.opcode != IBV_WC_RECV or not wc.wc_flags & IBV_WC_WITH_IMM or not wc.wc_flags & IBV_WC_GRH
                or length < AIO_GRH_BYTES or not aio_source_gid(at, key)):
            self.malformed += 1
            return 0
        key[16], key[17], key[18] = (qpn >> 16) & 0xff, (qpn >> 8) & 0xff, qpn & 0xff
        imm = ntohl(wc.imm_data)
        if imm >> NUMBER_BITS != DATA:
            if self.on_control is not None:
                self.on_control(imm >> NUMBER_BITS, PyBytes_FromStringAndSize(<char *>key, 16), qpn,
                                PyBytes_FromStringAndSize(<char *>at + AIO_GRH_BYTES, length - AIO_GRH_BYTES))
            return 0
        found = self.senders.get(PyBytes_FromStringAndSize(<char *>key, 19))
        if found is None:
            self.dropped_unknown += 1
            return 0
        route = <Route>found
        route.count(imm & NUMBERS)
        if <uint32_t>len(self.queue) >= self.most:
            self.dropped_full += 1
            return 0
        self.received += 1
        data = PyBytes_FromStringAndSize(<char *>at + AIO_GRH_BYTES, length - AIO_GRH_BYTES)
        self.queue.append((data, route.address))
        if self.on_readable is not None:
            self.cq.wakes += 1
            self.on_readable()
        return 0

    cdef int flush(self) except -1:
        return 0

    # ---- hybrid polling

    def look(self) -> None:
        """Take what has come, whether or not the loop has had a turn since."""
        self.cq.catch_up()

    def spin(self) -> bool:
        """Busy-poll for a datagram instead of parking, where the policy allows it; True when the queue has one."""
        return hybrid_poll(self.cq, has_datagram, <void *>self, 0) == FOUND and len(self.queue) > 0

    def park(self) -> None:
        """Arm, after the callbacks are set: from now on they are called."""
        self.cq.park()

    # ---- the end

    def break_off(self, reason) -> None:
        """The device has failed: nothing is sent or received any more, and ``on_failed`` is called."""
        self.fail(reason)

    cdef int fail(self, object reason) except -1:
        if not self.failed:
            self.failed = True
            if self.on_failed is not None:
                self.on_failed(reason)
        return 0

    def close(self) -> None:
        """No more completions. The QP is destroyed next; then :meth:`bury_all` may be called."""
        self.failed = True
        self.on_readable = self.on_writable = self.on_control = self.on_failed = None
        self.cq.detach(self)

    def bury_all(self) -> None:
        """The QP is destroyed, so no send is outstanding: close all address handles."""
        self._dig()
