"""UD queue pairs and address handles: datagrams to any peer, without connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .abi import IBV_QPT_UD, QpMask, QpState
from .device import Backend, format_gid, translated
from .lifetime import protect
from .qp import Qp, QpPath

if TYPE_CHECKING:
    from .cq import CompletionQueue
    from .qp import QpSize

#: Bytes in front of every received datagram: its routing header (IBTA 10.4.1.2; with RoCEv2 the IP header).
GRH_BYTES = 40

_INIT = QpMask.STATE | QpMask.PKEY_INDEX | QpMask.PORT | QpMask.QKEY


class UdQp(Qp):
    """One UD QP, ready to send and receive once :meth:`start` has been called.

    Receives come between creation and the first datagram: post them right after :meth:`start`.

    :param qkey: what senders must know; the device drops datagrams with another one.
    """

    _TYPE = IBV_QPT_UD
    _NAME = "UD"

    def __init__(self, backend: Backend, pd: Any, queue: CompletionQueue, size: QpSize, qkey: int) -> None:
        if not 0 <= qkey < 1 << 31:
            # With its highest bit set it would stand for the sender's own (IBTA 10.2.5).
            raise ValueError(f"qkey={qkey:#x}: must be from 0 to 0x7fffffff")
        self.qkey = qkey
        super().__init__(backend, pd, queue, size)

    def start(self) -> None:
        """RESET to INIT, RTR and RTS. Raises VerbsError."""
        attr = self._attr(QpState.INIT)
        attr.port_num = self._backend.port
        attr.pkey_index = 0
        attr.qkey = self.qkey
        self._modify(attr, _INIT, QpState.INIT)
        self._modify(self._attr(QpState.RTR), QpMask.STATE, QpState.RTR)
        attr = self._attr(QpState.RTS)
        attr.sq_psn = self.psn
        self._modify(attr, QpMask.STATE | QpMask.SQ_PSN, QpState.RTS)


class AddressHandle:
    """The path to a port, for sends of UD QPs in the same protection domain. Raises VerbsError.

    :param gid, lid: the port's.
    """

    def __init__(
        self, backend: Backend, pd: Any, gid: bytes, lid: int = 0, path: QpPath | None = None
    ) -> None:
        path = path or QpPath()
        api = backend.binding
        self._backend = backend
        route = api.GlobalRoute(
            dgid=api.GID(format_gid(gid)),
            sgid_index=backend.gid.slot,
            hop_limit=path.hop_limit,
            traffic_class=path.traffic_class,
        )
        attr = api.AHAttr(dlid=lid, sl=path.service_level, is_global=1, port_num=backend.port, gr=route)
        with translated(api, "ibv_create_ah", f"to {format_gid(gid)}"):
            self.ah = protect(api.AH(pd, attr=attr))
        #: Address of ``struct ibv_ah``.
        self.pointer: int = api.pointers.ah_pointer(self.ah, pd)

    def close(self) -> None:
        """Destroy it; no send with it may be under way. Idempotent; nothing in a forked child."""
        if not self._backend.in_forked_child:
            with translated(self._backend.binding, "ibv_destroy_ah", self._backend.name):
                self.ah.close()
