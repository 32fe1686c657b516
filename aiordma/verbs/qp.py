"""RC queue pairs: creation, the states up to RTS (RESET, INIT, RTR), and back through ERR to RESET."""

from __future__ import annotations

import ctypes
import errno
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..errors import VerbsError
from .abi import IBV_QPT_RC, Access, Mtu, QpMask, QpState
from .device import Backend, format_gid, translated
from .lifetime import protect

if TYPE_CHECKING:
    from .cq import CompletionQueue

# Inline sizes worth asking for, largest first. A device has no field for its limit: it refuses.
_INLINE_SOFT = (1 << 20, 1 << 16, 4096)
_INLINE_DEVICE = (1024, 912, 512, 400, 256, 220, 188, 128, 64, 32)
_PSN_MASK = 0xFFFFFF

_INIT = QpMask.STATE | QpMask.PKEY_INDEX | QpMask.PORT | QpMask.ACCESS_FLAGS
_RTR = (
    QpMask.STATE | QpMask.AV | QpMask.PATH_MTU | QpMask.DEST_QPN | QpMask.RQ_PSN | QpMask.MAX_DEST_RD_ATOMIC
    | QpMask.MIN_RNR_TIMER
)  # fmt: skip
_RTS = (
    QpMask.STATE | QpMask.SQ_PSN | QpMask.TIMEOUT | QpMask.RETRY_CNT | QpMask.RNR_RETRY
    | QpMask.MAX_QP_RD_ATOMIC
)  # fmt: skip


class QpSize(NamedTuple):
    """Capacity of a QP: asked for, or (:attr:`RcQp.size`) granted. ``inline_bytes`` None: all there is."""

    send_wr: int = 128
    recv_wr: int = 128
    send_sge: int = 2
    recv_sge: int = 1
    inline_bytes: int | None = None


class QpAddress(NamedTuple):
    """What the other end must know to connect a QP to this one (it travels in CLC messages)."""

    gid: bytes
    lid: int
    qp_num: int
    #: First packet sequence number this end sends.
    psn: int
    mtu: Mtu
    #: READs and atomics this end can answer at the same time.
    rd_atomic: int


@dataclass(frozen=True, slots=True)
class QpPath:
    """Timers and routing of a connection. Exponents and codes are those of the IBTA specification, 9.9.2."""

    #: Local ACK timeout, 4.096 us * 2^n: 14 is 67 ms.
    timeout: int = 14
    #: Retries before RETRY_EXC_ERR, and (7: for ever) before RNR_RETRY_EXC_ERR.
    retry_count: int = 6
    rnr_retry: int = 6
    #: Wait that this end asks for when it has no receive posted: 12 is 0.64 ms.
    min_rnr_timer: int = 12
    #: DSCP and ECN bits: 46 << 2 | 2 is the usual class of RoCE, ECN-capable.
    traffic_class: int = 46 << 2 | 2
    hop_limit: int = 64
    service_level: int = 0
    access: Access = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ

    @property
    def ack_timeout_s(self) -> float:
        """``timeout`` in seconds."""
        return 4.096e-6 * (1 << self.timeout)


class Qp:
    """What RC and UD queue pairs have in common: creation and destruction."""

    _TYPE: ClassVar[int]
    _NAME: ClassVar[str]

    qp: Any
    size: QpSize

    def __init__(self, backend: Backend, pd: Any, queue: CompletionQueue, size: QpSize) -> None:
        backend.check_process()
        self._backend = backend
        self._pd = pd
        self._create(pd, queue, size)
        self.number: int = self.qp.qp_num
        #: Address of ``struct ibv_qp``.
        self.pointer: int = backend.binding.pointers.qp_pointer(self.qp)
        #: Address of the software device's count of WRITEs that posting did not carry out; 0: another device.
        self.astray: int = backend.soft.astray(self.pointer) if backend.soft is not None else 0
        #: Address of the device's function to say that something is held back; 0: it has none.
        self.says_held: int = (
            backend.soft.symbol("softdev_holds") if backend.soft is not None and self.astray else 0
        )
        #: Addresses of its functions to leave the peer a message, and a number; 0: it has none.
        self.wills = self.notes = 0
        #: Address of its function to say that WRITEs with a key will follow; 0: it has none.
        self.expects = 0
        if backend.soft is not None and self.says_held:
            self.wills, self.notes, self.expects = map(
                backend.soft.symbol, ("softdev_will", "softdev_note", "softdev_expect")
            )
        self.psn = _random_psn()
        self.state = QpState.RESET
        #: READs it may have under way, once it is in RTS.
        self.max_reads = 0
        self._closed = False

    def _create(self, pd: Any, queue: CompletionQueue, size: QpSize) -> None:
        api, limits = self._backend.binding, self._backend.limits
        send_wr, recv_wr = min(size.send_wr, limits.max_qp_wr), min(size.recv_wr, limits.max_qp_wr)
        send_sge, recv_sge = min(size.send_sge, limits.max_sge), min(size.recv_sge, limits.max_sge)
        steps = self._inline_steps(size.inline_bytes)
        for inline in steps:
            init = api.QPInitAttr(
                qp_type=self._TYPE,
                scq=queue.cq,
                rcq=queue.cq,
                cap=api.QPCap(send_wr, recv_wr, send_sge, recv_sge, inline),
                sq_sig_all=0,
            )
            detail = (
                f"{self._NAME}, {send_wr}+{recv_wr} work requests, {send_sge}+{recv_sge} SGEs, "
                f"{inline} bytes inline"
            )
            try:
                with translated(api, "ibv_create_qp", f"{detail} on {self._backend.name}"):
                    self.qp = protect(self._new_qp(pd, init))
            except VerbsError as error:
                # These mean "too much"; others (no permission, device gone) will not get better by asking for
                # less.
                if inline == steps[-1] or error.errno not in (errno.EINVAL, errno.ENOMEM, errno.E2BIG, 0):
                    raise
            else:
                cap = init.cap
                granted = cap.max_inline_data
                self.size = QpSize(
                    cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, granted
                )
                if size.inline_bytes is None and self._TYPE == IBV_QPT_RC:
                    limits.max_inline_bytes = granted
                return

    def _new_qp(self, pd: Any, init: Any) -> Any:
        api = self._backend.binding
        try:
            return api.QP(pd, init)
        except api.error:
            if not self._backend.is_iwarp or self._backend.is_soft:
                raise
            # libsiw (rdma-core's providers/siw) takes one of the offsets at which queues are mapped, 0x90000,
            # for a failure, with whatever is in errno. A queue that is in the way for a moment moves those of
            # this queue pair on.
            spacer = api.CQ(self._backend.context, 1)
            try:
                return api.QP(pd, init)
            finally:
                spacer.close()

    def _inline_steps(self, wanted: int | None) -> list[int]:
        if wanted is None:
            wanted = self._backend.limits.max_inline_bytes or (1 << 20)
        steps = _INLINE_SOFT + _INLINE_DEVICE if self._backend.is_soft else _INLINE_DEVICE
        known = [wanted] if wanted <= steps[0] else []
        return [*known, *(step for step in steps if step < wanted), 0]

    def to_error(self) -> None:
        """Any state to ERR: outstanding work requests complete with WR_FLUSH_ERR."""
        if self.state != QpState.ERR:
            self._modify(self._attr(QpState.ERR), QpMask.STATE, QpState.ERR)

    def to_reset(self) -> None:
        """Any state to RESET, for reuse: what was posted is forgotten, with no completions.

        A new random PSN keeps late packets of the old connection out of the next one.
        """
        if self.state != QpState.RESET:
            self._modify(self._attr(QpState.RESET), QpMask.STATE, QpState.RESET)
        self.psn = _random_psn()

    def close(self) -> None:
        """Destroy it; completions not polled yet are lost. Idempotent; nothing in a forked child."""
        if self._closed or self._backend.in_forked_child:
            return
        self._closed = True
        with translated(self._backend.binding, "ibv_destroy_qp", f"QP {self.number}"):
            self.qp.close()

    def _attr(self, state: QpState) -> Any:
        return self._backend.binding.QPAttr(qp_state=int(state), cur_qp_state=int(self.state))

    def _modify(self, attr: Any, mask: QpMask, target: QpState, detail: str = "") -> None:
        self._backend.check_process()
        step = f"QP {self.number} {self.state.name} to {target.name} {detail}".rstrip()
        with translated(self._backend.binding, "ibv_modify_qp", step):
            self.qp.modify(attr, int(mask))
        self.state = target


class RcQp(Qp):
    """One RC QP with send and receive on one CQ, unsignalled unless a work request asks for a completion.

    It starts in RESET. ``to_init`` and the receives come first, then ``to_rtr`` with the peer's address, then
    ``to_rts``. All raise VerbsError and leave the QP in the state it was in.
    """

    _TYPE = IBV_QPT_RC
    _NAME = "RC"

    @property
    def address(self) -> QpAddress:
        """This end's part of the connection."""
        backend = self._backend
        return QpAddress(
            backend.gid.raw,
            backend.lid,
            self.number,
            self.psn,
            backend.mtu,
            _byte(backend.limits.max_qp_rd_atom),
        )

    def to_init(self, path: QpPath | None = None) -> None:
        """RESET to INIT: receives can be posted."""
        path = path or QpPath()
        attr = self._attr(QpState.INIT)
        attr.port_num = self._backend.port
        attr.pkey_index = 0
        access = path.access
        if self._backend.limits.atomics:
            access |= Access.REMOTE_ATOMIC  # each memory region decides whether it has any
        attr.qp_access_flags = int(access)
        self._modify(attr, _INIT, QpState.INIT)

    def to_rtr(self, peer: QpAddress, path: QpPath | None = None) -> None:
        """INIT to RTR: the peer's messages are taken. Path MTU is the smaller one of both ends."""
        path = path or QpPath()
        backend, api = self._backend, self._backend.binding
        attr = self._attr(QpState.RTR)
        attr.path_mtu = int(min(peer.mtu, backend.mtu))
        attr.dest_qp_num = peer.qp_num
        attr.rq_psn = peer.psn & _PSN_MASK
        attr.max_dest_rd_atomic = _byte(backend.limits.max_qp_rd_atom)
        attr.min_rnr_timer = path.min_rnr_timer
        route = api.GlobalRoute(
            dgid=api.GID(format_gid(peer.gid)),
            sgid_index=backend.gid.slot,
            hop_limit=path.hop_limit,
            traffic_class=path.traffic_class,
        )
        attr.ah_attr = api.AHAttr(
            dlid=peer.lid, sl=path.service_level, is_global=1, port_num=backend.port, gr=route
        )
        self._modify(attr, _RTR, QpState.RTR, f"to QP {peer.qp_num} at {format_gid(peer.gid)}")

    def connected_by_cm(self, max_reads: int) -> None:
        """The kernel has moved it to RTS (:mod:`aiordma.verbs.rdmacm`)."""
        self.state = QpState.RTS
        self.max_reads = max_reads

    def modify_raw(self, attributes: Any, mask: int, target: QpState) -> None:
        """To another state, with a ``struct ibv_qp_attr`` that rdma_cm has filled."""
        backend = self._backend
        backend.check_process()
        modify = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(
            backend.symbol("ibv_modify_qp")
        )
        error = modify(self.pointer, ctypes.addressof(attributes), mask)
        if error:
            raise VerbsError(error, "ibv_modify_qp", f"QP {self.number} {self.state.name} to {target.name}")
        self.state = target

    def to_rts(self, peer: QpAddress, path: QpPath | None = None) -> None:
        """RTR to RTS: sends go out. READs in flight: what the peer can answer and this device can ask."""
        path = path or QpPath()
        attr = self._attr(QpState.RTS)
        attr.sq_psn = self.psn
        attr.timeout = path.timeout
        attr.retry_cnt = path.retry_count
        attr.rnr_retry = path.rnr_retry
        attr.max_rd_atomic = min(_byte(peer.rd_atomic), _byte(self._backend.limits.max_qp_init_rd_atom))
        self._modify(attr, _RTS, QpState.RTS)
        self.max_reads = int(attr.max_rd_atomic)


def _random_psn() -> int:
    return secrets.randbits(24)


def _byte(value: int) -> int:
    """The verbs ABI has one byte for the depth of READs."""
    return max(0, min(value, 255))
