"""The device resources of a datagram endpoint: protection domain, UD queue pair, slots, and its port."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING
from weakref import WeakSet

from ..datapath._ud import Route, UdPort
from ..errors import AioRdmaError, Code, NegotiationError, VerbsError
from ..proto.resolve import QueuePairAddress
from ..verbs.abi import Mtu
from ..verbs.lifetime import release_all
from ..verbs.memory.budget import MemoryLimitError
from ..verbs.qp import QpPath, QpSize
from ..verbs.registrar import DeviceRegistrar
from ..verbs.ud import GRH_BYTES, AddressHandle, UdQp

if TYPE_CHECKING:
    from collections import deque

    from ..addresses import Address
    from ..links.contracts import EngineView
    from ..verbs.events import DeviceEvent
    from ..verbs.memory.arena import Arena, Block

logger = logging.getLogger("aiordma.datagram")

#: With the largest MTU these receives fill a megabyte of slots.
_RECEIVES = 248
_SENDS = 256


class UdParts:
    """Made for one endpoint.

    :param traffic_class: of the datagrams that it sends.
    :raises NegotiationError: the device lacks something that it needs.
    """

    def __init__(
        self, engine: EngineView, traffic_class: int, queue: deque[tuple[bytes, Address]], most: int
    ) -> None:
        backend = engine.backend
        if backend.is_iwarp:
            raise NegotiationError(Code.NO_SMCR_DEVICE, f"{backend.name}: iWARP has no datagrams")
        try:
            backend.check_port()
        except VerbsError as error:
            raise NegotiationError(Code.DEVICE_FAILURE, str(error)) from error
        self.engine = engine
        self._path = QpPath(traffic_class=traffic_class)
        # Within the host the software device copies from memory to memory: no interface limits that.
        stays = backend.is_soft and engine.config.soft_wire == "off"
        self.mtu = Mtu.MTU_4096.size if stays else backend.mtu.size
        self._closed = False
        #: Also of routes that are just being proved, by tasks that will be cancelled.
        self._handles: WeakSet[AddressHandle] = WeakSet()
        #: The device has reported that it has failed, or its port.
        self.device_failed = False
        receives, sends = (min(count, backend.limits.max_qp_wr) for count in (_RECEIVES, _SENDS))
        self._receives, self._sends = receives, sends
        self._reserved = engine.reserve_completions(receives + sends)
        self._arena: Arena | None = None
        try:
            self.pd = backend.alloc_pd()
        except BaseException as error:
            engine.return_completions(self._reserved)
            if isinstance(error, VerbsError):
                raise NegotiationError(Code.DEVICE_FAILURE, str(error)) from error
            raise
        try:
            size = QpSize(send_wr=sends, recv_wr=receives, send_sge=1, inline_bytes=self.mtu)
            self.qp = UdQp(backend, self.pd, engine.cq, size, secrets.randbits(31))
            self._start(queue, most)
        except BaseException as error:
            self._release()
            if isinstance(error, MemoryLimitError):
                raise NegotiationError(error.code, str(error)) from error
            if isinstance(error, VerbsError):
                raise NegotiationError(Code.DEVICE_FAILURE, str(error)) from error
            raise
        self.where = QueuePairAddress(
            gid=backend.gid.raw,
            lid=backend.lid,
            qpn=self.qp.number,
            qkey=self.qp.qkey,
            mtu=self.mtu,
            host_id=engine.host_id,
        )
        engine.users.add(self)

    def _start(self, queue: deque[tuple[bytes, Address]], most: int) -> None:
        """Slots, port and receives of the queue pair. Without one of them it is closed."""
        undo = [self.qp.close]
        try:
            self._slots = self._allocate_slots()
            undo.append(self._slots.free)
            self.qp.start()
            self.port = self._open_port(queue, most)
            undo.insert(0, self.port.close)
            self.port.start()
        except BaseException:
            release_all("a datagram endpoint", *undo)
            raise

    @property
    def qp_num(self) -> int:
        return self.qp.number

    def device_event(self, event: DeviceEvent) -> None:
        """For the engine: the queue pair, its port or its device has failed."""
        self.device_failed = event.source != "qp"
        # What has arrived before is not lost.
        self.engine.poller.drain()
        self.port.break_off(AioRdmaError(str(event)))

    def _allocate_slots(self) -> Block:
        """Memory of the receives, and of the sends that are too long to go inline."""
        inline = self.qp.size.inline_bytes or 0
        room = self._recv_room + (0 if inline >= self.mtu else self._sends * self.mtu)
        registrar = DeviceRegistrar(self.engine.backend, self.pd, remote=False)
        self._arena = self.engine.pool.arena(registrar, first_slab_bytes=room)
        return self._arena.allocate(room)

    @property
    def _recv_room(self) -> int:
        return self._receives * (GRH_BYTES + self.mtu)

    def _open_port(self, queue: deque[tuple[bytes, Address]], most: int) -> UdPort:
        return UdPort(
            self.engine.poller,
            self.qp.pointer,
            self.qp.number,
            recv_addr=self._slots.address,
            recv_lkey=self._slots.lkey,
            recv_count=self._receives,
            send_addr=self._slots.address + self._recv_room,
            send_lkey=self._slots.lkey,
            sq_depth=min(self._sends, self.qp.size.send_wr),
            max_inline=self.qp.size.inline_bytes or 0,
            mtu=self.mtu,
            queue=queue,
            most=most,
            keep=self,
        )

    def route(self, where: QueuePairAddress, address: Address) -> Route:
        """The path to a peer's queue pair.

        :raises NegotiationError: this device cannot reach it, or the endpoint has closed meanwhile.
        """
        if self._closed or self.engine.closed:
            raise NegotiationError(Code.SHUTTING_DOWN)
        self.engine.check_reachable(where.host_id)
        try:
            handle = AddressHandle(self.engine.backend, self.pd, where.gid, where.lid, self._path)
        except VerbsError as error:
            raise NegotiationError(Code.NO_ROUTE, str(error)) from error
        self._handles.add(handle)
        return Route(handle, where.gid, where.qpn, where.qkey, min(self.mtu, where.mtu), address)

    def close(self) -> None:
        """Release everything. Idempotent."""
        if self._closed or self.engine.backend.in_forked_child:
            return
        self._closed = True
        self.engine.users.discard(self)
        self.port.close()
        if self.engine.closed:
            return  # the engine released everything with the device
        self.qp.close()
        self.port.bury_all()
        for handle in list(self._handles):
            handle.close()
        self._slots.free()
        self._release()

    def _release(self) -> None:
        if self._arena is not None:
            self._arena.close()
        self.pd.close()
        self.engine.return_completions(self._reserved)
