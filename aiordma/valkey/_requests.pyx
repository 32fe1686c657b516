# cython: language_level=3, boundscheck=False, wraparound=False
"""The work requests of a pipe to a valkey-server: what it posts, what completes, the server's commands, and the end."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from .._cq cimport CompletionOwner, CompletionPoller
from ..datapath._verbs cimport (
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    aio_chain,
    aio_chain_post,
    aio_chain_send,
    aio_chain_write,
    aio_chain_write_imm,
    aio_post_recv,
    ibv_qp,
    ibv_wc,
)
from ..proto.valkey cimport Incoming, Outgoing

from typing import NamedTuple

from ..errors import CompletionError, LinkError, RemoteProtocolError, VerbsError
from ..proto import valkey

cdef extern from "<arpa/inet.h>" nogil:
    uint32_t ntohl(uint32_t)

cdef enum:
    KIND_RECEIVE = 0
    KIND_SEND = 1
    COMMAND = 32                # bytes of a command
    RESERVE = 4                 # send WRs that data does not use: a registration, a query, a keepalive, the last WRITE
    LONG_POST_BYTES = 16384     # from here on other threads may run while a WRITE is posted
    MIRROR_BYTES = 4194304      # most bytes of copies, however large the buffer is that a server claims to have


class ValkeyStatistics(NamedTuple):
    #: calls of try_send() that placed something
    sends: int
    #: calls of try_receive() and try_receive_into() that returned something, and consume()
    receives: int
    bytes_sent: int
    bytes_received: int
    #: how often the server's buffer was full, or the server had no receive left
    times_blocked: int
    #: WRITEs with immediate data
    writes: int
    #: RegisterXferMemory commands that this end and the server have sent
    registrations_sent: int
    registrations_received: int
    #: GetServerFeature commands, to learn how far the server is
    queries: int
    #: all transfer buffers of this end, and the server's
    ring_bytes: int
    peer_ring_bytes: int


cdef class ValkeyRequests(CompletionOwner):
    """Base of :class:`ValkeyPipe`. Non-blocking; single-threaded, in the thread of the engine's loop.

    :param qp: address of the ``struct ibv_qp``, in INIT.
    :param buffers: address of ``buffer_count`` transfer buffers of ``buffer_bytes``, registered with remote write.
    :param recv_addr, recv_count, recv_lkey: receives of 32 bytes each.
    :param command_addr, command_lkey: 32 bytes for each work request of the send queue.
    :param owner: has ``mirror(length) -> (address, lkey)``, and is told by ``failed(reason)``, ``parting()`` and
        ``finished()``.
    """

    def __init__(self, CompletionPoller cq, uintptr_t qp, uint32_t qp_num, *, uint64_t buffers, uint32_t rkey,
                 uint32_t buffer_bytes, uint32_t buffer_count, uint64_t recv_addr, uint32_t recv_count,
                 uint32_t recv_lkey, uint64_t command_addr, uint32_t command_lkey, uint32_t sq_depth,
                 uint32_t max_inline, object owner):
        self.qp = <ibv_qp *>qp
        self.qp_num = qp_num
        self.owner = owner
        self.outgoing = Outgoing()
        self.incoming = Incoming(buffer_bytes, buffer_count)
        self.buffers, self.rkey = <unsigned char *><uintptr_t>buffers, rkey
        self.recv_addr, self.recv_count, self.recv_lkey = recv_addr, recv_count, recv_lkey
        self.command_addr, self.command_lkey = command_addr, command_lkey
        self.sq_depth, self.max_inline = sq_depth, max_inline
        self.sq_signal_every = max(1, sq_depth // 4)
        cq.attach(self)

    def start(self) -> None:
        """Post all receives, before the server may send (before the QP goes to RTR). :raises VerbsError:"""
        cdef uint32_t slot
        for slot in range(self.recv_count):
            self._post_receive(slot)

    def begin(self) -> None:
        """The connection is established: register the first buffer."""
        self.register_if_due()

    def make_mirror(self) -> None:
        """Memory for copies, once the server has registered: without it nothing can be sent.

        :raises MemoryLimitError: there is none.
        """
        cdef uint32_t size = min(self.outgoing.length, <uint32_t>MIRROR_BYTES)
        address, self.mirror_lkey = self.owner.mirror(size)
        self.mirror, self.mirror_size = <unsigned char *><uintptr_t>address, size

    def keepalive(self) -> None:
        """Have the server's end prove that it is there; without a receive for it, by a WRITE of nothing."""
        if self.failure is not None or self.closed or self.ended:
            return
        self.post_staged()
        if self.outgoing.may_command():
            self.outgoing.commanded()
            self.send_command(valkey.keepalive())
            self.ask_if_due()
        elif self.sq_free() > 0:
            self.write_nothing()

    # ---- state

    @property
    def path(self) -> str:
        """Always "rdma": the protocol has no other path."""
        return "rdma"

    @property
    def is_closed(self) -> bool:
        """This side has closed it."""
        return self.closed

    @property
    def is_registered(self) -> bool:
        """The server has registered its first buffer."""
        return self.registered > 0

    @property
    def error(self) -> BaseException | None:
        """Why the connection is broken, None while it is not."""
        return self.failure

    @property
    def readable(self) -> int:
        """Bytes that can be received now."""
        return self.incoming.readable()

    @property
    def writable(self) -> int:
        """Bytes that can be sent now."""
        return 0 if self.failure is not None or self.closed or self.ended else self.room()

    @property
    def at_eof(self) -> bool:
        """The server has closed the connection, and everything was received."""
        return self.ended and self.failure is None and self.incoming.readable() == 0

    @property
    def counters(self) -> tuple[int, int]:
        """Bytes sent and received."""
        return self.bytes_sent, self.bytes_received

    def statistics(self) -> ValkeyStatistics:
        """What happened so far."""
        return ValkeyStatistics(
            self.sends, self.receives, self.bytes_sent, self.bytes_received, self.times_blocked, self.writes,
            self.registrations, self.registered, self.queries, self.incoming.total, self.outgoing.length)

    @property
    def on_readable(self):
        """Called when data, the end or an error has come."""
        return self._on_readable

    @on_readable.setter
    def on_readable(self, callback) -> None:
        self._on_readable = callback
        if callback is not None and self.failure is None:
            self.cq.park()

    @property
    def on_writable(self):
        """Called when there is room again, or on an error."""
        return self._on_writable

    @on_writable.setter
    def on_writable(self, callback) -> None:
        self._on_writable = callback
        if callback is not None and self.failure is None:
            self.cq.park()

    cdef void wake_readers(self):
        if self._on_readable is not None:
            self.cq.wakes += 1
            self.call(self._on_readable)

    cdef void wake_writers(self):
        if self._on_writable is not None:
            self.cq.wakes += 1
            self.call(self._on_writable)

    cdef int call(self, callback) except -1:
        """Call what may be code of the program, in the midst of a completion."""
        try:
            callback()
        except BaseException as error:
            self.cq.report(error)
        return 0

    def count_on(self, uint32_t requests) -> None:
        """For tests: go on as if so many more requests had been posted, and had completed. While others are under way, it
        must be a multiple of 2^28."""
        self.sq_posted += requests
        self.sq_retired += requests

    # ---- posting

    cdef int _post_receive(self, uint32_t slot) except -1:
        cdef int rc = aio_post_recv(self.qp, self.tag | (<uint64_t>KIND_RECEIVE << 28) | slot,
                                    self.recv_addr + <uint64_t>slot * COMMAND, COMMAND, self.recv_lkey)
        if rc:
            raise VerbsError(rc, "ibv_post_recv")
        return 0

    cdef unsigned int next_flags(self, bint signal) noexcept:
        self.sq_unsignalled += 1
        if signal or self.sq_unsignalled >= self.sq_signal_every:
            self.sq_unsignalled = 0
            return IBV_SEND_SIGNALED
        return 0

    cdef uint64_t next_id(self) noexcept:
        # The position after this WR: its completion retires everything up to here.
        return self.tag | (<uint64_t>KIND_SEND << 28) | ((self.sq_posted + 1) & 0xfffffff)

    cdef int post(self, aio_chain *chain) except -1:
        cdef int posted = 0, rc
        if self.refused:
            return 0            # the server would take its bytes for those that were refused
        if chain.sge[0].length < LONG_POST_BYTES:
            rc = aio_chain_post(self.qp, chain, &posted)
        else:
            self.cq.outside += 1
            with nogil:
                rc = aio_chain_post(self.qp, chain, &posted)
            self.cq.outside -= 1
        self.sq_posted += posted
        if rc:
            self.refused = True
            self.cq.fail_owner(self, VerbsError(rc, "ibv_post_send"))
        return 0

    cdef int post_failed(self, object error) except -1:
        return self.fail(error)

    cdef int send_command(self, bytes command) except -1:
        """The caller has counted it. Always signalled: a keepalive is a question."""
        cdef aio_chain chain
        cdef unsigned char *slot
        cdef unsigned int flags = self.next_flags(True)
        if self.sq_free() == 0:
            # Cannot be: data leaves room for one of each kind, and each completes before the next is sent.
            return self.fail(LinkError(f"the send queue of QP {self.qp_num} is full"))
        slot = <unsigned char *><uintptr_t>self.command_addr + <uint64_t>(self.sq_posted % self.sq_depth) * COMMAND
        memcpy(slot, PyBytes_AS_STRING(command), COMMAND)
        if COMMAND <= self.max_inline:
            flags |= IBV_SEND_INLINE
        chain.length = 0
        aio_chain_send(&chain, self.next_id(), <uint64_t><uintptr_t>slot, COMMAND, self.command_lkey, flags, False, 0)
        return self.post(&chain)

    cdef int register_if_due(self) except -1:
        cdef uint64_t address
        if not self.incoming.due() or self.failure is not None or self.closed or self.ended:
            return 0
        self.post_staged()
        address = <uint64_t><uintptr_t>self.buffers + self.incoming.next_at()
        self.incoming.register()
        self.outgoing.commanded()
        self.registrations += 1
        self.send_command(valkey.registration((address, self.incoming.size, self.rkey)))
        return self.ask_if_due()

    cdef int ask_if_due(self) except -1:
        """Whatever takes receives of the server does so: an end that only reads would have none left to send."""
        if self.failure is None and self.outgoing.ask_due():
            self.outgoing.ask()
            self.queries += 1
            self.send_command(valkey.feature_query())
        return 0

    cdef int write_nothing(self) except -1:
        """It completes after all before it, and takes no receive."""
        cdef aio_chain chain
        chain.length = 0
        aio_chain_write(&chain, self.next_id(), 0, 0, 0, self.next_flags(True), self.outgoing.address,
                        self.outgoing.rkey)
        return self.post(&chain)

    cdef uint32_t room(self) noexcept:
        # Both counts wrap, and what is under way lies between them: the copies from before are done, or among that.
        if self.sq_free() <= RESERVE or self.sq_posted - self.mirror_until < self.sq_posted - self.sq_retired:
            return 0
        cdef uint32_t room = min(self.outgoing.room(), self.mirror_size - self.mirrored)
        return room - self.staged if room > self.staged else 0

    cdef int post_staged(self) except -1:
        cdef uint32_t n = self.staged
        if n == 0:
            return 0
        self.staged = 0
        if self.failure is not None or self.ended or self.finished:
            return 0
        return self.post_write(<uint64_t><uintptr_t>(self.mirror + self.mirrored), n, self.mirror_lkey,
                               IBV_SEND_INLINE if n <= self.max_inline else 0)

    cdef int post_write(self, uint64_t source, uint32_t n, uint32_t lkey, uint32_t flags) except -1:
        cdef aio_chain chain
        cdef Outgoing out = self.outgoing
        # The last of a buffer, and of the mirror, is signalled: the copies are needed until it has completed.
        flags |= self.next_flags(n == out.length - out.offset or n == self.mirror_size - self.mirrored)
        chain.length = 0
        aio_chain_write_imm(&chain, self.next_id(), source, n, lkey, flags, out.address + out.offset, out.rkey, n)
        out.wrote(n)
        self.mirrored += n
        self.writes += 1
        self.post(&chain)
        if self.mirrored == self.mirror_size:
            self.reuse_mirror()
        return self.ask_if_due()

    cdef void reuse_mirror(self) noexcept:
        """From its start, when the device has read what it holds."""
        self.mirrored = 0
        self.mirror_until = self.sq_posted

    # ---- completions

    cdef int flush(self) except -1:
        """The end of the tick."""
        self.dirty = False
        return self.post_staged()

    cdef bint flush_beside(self) except -1:
        if self.sq_free() > RESERVE:        # for a question behind it, too
            self.post_staged()
        return True

    cdef int on_completion(self, ibv_wc *wc) except -1:
        cdef uint32_t kind = (wc.wr_id >> 28) & 0xf
        if wc.status == IBV_WC_SUCCESS:
            return self.on_receive(wc) if kind == KIND_RECEIVE else self.on_sent(wc)
        if self.failure is not None or self.ended:
            return 0
        if wc.status == IBV_WC_WR_FLUSH_ERR:
            return self.fail(LinkError(f"the device stopped QP {self.qp_num}: the server is gone, or it broke the "
                                       "rules of RDMA (a message too large, memory that is not its own)"))
        return self.fail(CompletionError(wc.status, wc.vendor_err, "RECV" if kind == KIND_RECEIVE else "SEND/WRITE",
                                         self.qp_num))

    cdef int ran_out(self) except -1:
        return self.fail(LinkError("this end has no memory for what comes from the server and goes to it"))

    cdef int on_sent(self, ibv_wc *wc) except -1:
        # Positions count modulo 2^28.
        self.sq_retired += (<uint32_t>(wc.wr_id & 0xfffffff) - self.sq_retired) & 0xfffffff
        self.last_received += 1
        if self.flushing and self.sq_retired == self.sq_posted:
            return self.finish()
        if self.blocked and self.room() > 0:
            self.wake_writers()
        return 0

    cdef int on_receive(self, ibv_wc *wc) except -1:
        cdef uint32_t slot = wc.wr_id & 0xfffffff
        if self.failure is not None or self.closed:
            return 0
        self.last_received += 1
        try:
            if wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM:
                if self.incoming.arrive(ntohl(wc.imm_data)) < 0:
                    raise RemoteProtocolError(
                        f"the server says that it has written {ntohl(wc.imm_data)} bytes, and the buffer has room for "
                        f"{self.incoming.granted - self.incoming.arrived}")
                self._post_receive(slot)
                self.register_if_due()
                self.wake_readers()
                return 0
            if wc.opcode != IBV_WC_RECV or wc.byte_len > COMMAND:
                raise RemoteProtocolError(f"something else than a command or data arrived (opcode {wc.opcode})")
            command = PyBytes_FromStringAndSize(
                <char *><uintptr_t>(self.recv_addr + <uint64_t>slot * COMMAND), wc.byte_len)
            self._post_receive(slot)
            return self.on_command(command)
        except (RemoteProtocolError, VerbsError) as error:
            return self.fail(error)

    cdef int on_command(self, bytes data) except -1:
        command = valkey.parse(data)
        if command.opcode == valkey.Opcode.KEEPALIVE:
            return 0
        if command.opcode == valkey.Opcode.GET_SERVER_FEATURE:
            self.outgoing.answered()
        else:
            self.check_length(command.buffer.length)
            self.post_staged()
            self.outgoing.registered(command.buffer)
            self.registered += 1
            if self.mirror != NULL:
                self.reuse_mirror()
        if self.blocked or self.registered == 1:
            self.wake_writers()
        return 0

    cdef int check_length(self, uint32_t length) except -1:
        if self.registered and length != self.outgoing.length:
            raise RemoteProtocolError(
                f"RegisterXferMemory with {length} bytes after one with {self.outgoing.length}: buffers keep their size")
        return 0

    # ---- the end

    cdef int fail(self, object reason) except -1:
        if self.failure is None:
            self.failure = reason
            if self.flushing:
                self.finish()
            else:
                self.owner.failed(reason)
            self.wake_readers()
            self.wake_writers()
        return 0

    def server_ended(self) -> None:
        """The server has closed the connection. What has arrived can still be read."""
        if self.ended:
            return
        self.ended = True
        if self.flushing:
            self.finish()
        self.wake_readers()
        self.wake_writers()

    def break_off(self, reason) -> None:
        """The connection is lost, for a reason that no completion reports."""
        self.fail(reason)

    def close(self) -> None:
        """Close; what was sent is in the server's memory before the connection ends."""
        if self.closed:
            return
        self.closed = True
        self._on_readable = self._on_writable = None
        self.post_staged()
        if self.failure is not None or self.ended or self.sq_posted == self.sq_retired or self.sq_free() == 0:
            self.finish()
            return
        # Most requests are not signalled. This one completes after all of them, and takes no receive.
        self.flushing = True
        self.owner.parting()
        self.write_nothing()

    def abort(self) -> None:
        """Close at once. It also cuts a close() short."""
        self.closed = True
        self._on_readable = self._on_writable = None
        self.finish()

    cdef int finish(self) except -1:
        self.flushing = False
        if not self.finished:
            self.finished = True
            self.owner.finished()
        return 0

    def detach(self) -> None:
        """No more completions: the QP is destroyed next."""
        self.cq.detach(self)
