"""A client's connection by rdma_cm, for a queue pair that it has made itself (InfiniBand, RoCE, `soft`).

rdma_cm finds the server by address and port, and tells how the queue pair is to be connected; the states are
this end's work. The connection lives as long as the queue pair: when it ends, the server has closed.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from typing import TYPE_CHECKING

from ..errors import VerbsError
from ..verbs.abi import QpState
from ..verbs.lifetime import release_all
from ..verbs.rdmacm import CmEvent, ConnectionId, Event, EventChannel, number_of, sockaddr

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

    from ..addresses import Address
    from ..verbs.qp import RcQp
    from ..wake.base import Waker

_log = logging.getLogger("aiordma.valkey")

_EVENTS_AT_ONCE = 16
_RESOLVE_MS = 2000
#: READs at a time in either direction: there are none, and this is what valkey-server gives.
_DEPTH = 1
_ENDS = (CmEvent.DISCONNECTED, CmEvent.DEVICE_REMOVAL, CmEvent.TIMEWAIT_EXIT)
#: ``status`` of REJECTED (IBTA, 12.6.7.2): nothing listens on that port.
_INVALID_SERVICE_ID = 8


class CmClient:
    """:param library: the device's rdma_cm (``Backend.rdma_cm()``).

    :param device: name of the queue pair's device.
    :param on_end: called once with the reason when the connection has ended, after it was made.
    """

    def __init__(
        self, waker: Waker, library: ctypes.CDLL, device: str, on_end: Callable[[str], None]
    ) -> None:
        self._waker, self._device, self._on_end = waker, device, on_end
        self._events: deque[Event] = deque()
        self._news = waker.new_waiter()
        self._up = self._closed = False
        self._id: ConnectionId | None = None
        self._channel = EventChannel(library)
        waker.watch_fd(self._channel.fd, self._on_readable)

    async def connect(self, where: Address, qp: RcQp, start: Callable[[], None]) -> Address:
        """Connect ``qp``; its receives are posted by ``start()``. Time limits are the caller's.

        :return: the address of this end.
        :raises VerbsError: nothing listens there, or the way leads over another device.
        :raises ValueError: the host is no address that rdma_cm takes.
        """
        self._id = own = ConnectionId(self._channel)
        own.resolve_address(sockaddr(*where), _RESOLVE_MS)
        await self._expect(CmEvent.ADDR_RESOLVED, "rdma_resolve_addr")
        if own.device != self._device:
            what = f"the way to {where[0]} leads over {own.device or 'another device'}, not {self._device}"
            raise VerbsError(errno.EHOSTUNREACH, "rdma_resolve_addr", what)
        own.resolve_route(_RESOLVE_MS)
        await self._expect(CmEvent.ROUTE_RESOLVED, "rdma_resolve_route")
        qp.modify_raw(*own.attributes(QpState.INIT), QpState.INIT)
        start()
        own.connect(qp.number, _DEPTH, b"")
        await self._expect(CmEvent.CONNECT_RESPONSE, "rdma_connect")
        for state in (QpState.RTR, QpState.RTS):
            qp.modify_raw(*own.attributes(state), state)
        own.establish()
        self._up = True
        for event in self._events:
            self._on_event(event)
        return own.local_address

    async def _expect(self, wanted: CmEvent, operation: str) -> None:
        while not self._events:
            await self._news.wait()
        event = self._events.popleft()
        if event.type != wanted:
            number = -event.status if event.status < 0 else errno.ECONNREFUSED
            if event.type == CmEvent.REJECTED and event.status == _INVALID_SERVICE_ID:
                raise VerbsError(number, operation, "nothing listens there by RDMA")
            raise VerbsError(number, operation, f"{event} instead of {wanted.name}")

    def _on_readable(self) -> None:
        for _ in range(_EVENTS_AT_ONCE):
            try:
                event = self._channel.next_event() if not self._closed else None
            except (VerbsError, MemoryError) as error:  # an event may be lost
                self._waker.unwatch_fd(self._channel.fd)
                event = Event(0, CmEvent.DISCONNECTED, -number_of(error), b"", 0, 0)
                self._on_event(event)
                return
            if event is None:
                return
            if self._id is not None and event.id == self._id.handle:
                self._on_event(event)

    def _on_event(self, event: Event) -> None:
        _log.debug("rdma_cm reports %s", event)
        if not self._up:
            self._events.append(event)
            self._news.set()
        elif event.type in _ENDS:
            self._on_end(str(event))

    def disconnect(self) -> None:
        """Tell the server that the connection ends, if it does not know."""
        if self._up and self._id is not None and not self._closed:
            self._up = False
            try:
                self._id.disconnect()
            except VerbsError as error:
                _log.debug("rdma_disconnect: %s", error)

    def close(self) -> None:
        """Release everything. Idempotent."""
        if self._closed:
            return
        self.disconnect()
        self._closed = True
        self._waker.unwatch_fd(self._channel.fd)
        ends = () if self._id is None else (self._id.close,)
        release_all("a connection by rdma_cm", *ends, self._channel.close)
