"""Health: whether a service of this server takes calls now, asked once or watched.

A server offers it like any other service::

    health = rpc.Health()
    async with rpc.serve([kv, health.service], host, port):
        ...
        health.set("kv", rpc.Status.NOT_SERVING)    # clients that balance over several servers go elsewhere

A watch sends the status at once and then every change. It always sends the newest: a watcher that reads
slowly misses what has been overtaken meanwhile, and does not delay others.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from ..wake import current
from .errors import Code, RpcError
from .service import Service

if TYPE_CHECKING:
    from ..wake.base import Waiter

HEALTH_SERVICE: Final = "rpc.health"
#: Most watches at a time; one more is answered with ``RESOURCE_EXHAUSTED``.
MAX_WATCHERS: Final = 4096


class Status(enum.StrEnum):
    """Whether calls are welcome."""

    SERVING = "SERVING"
    NOT_SERVING = "NOT_SERVING"
    #: No status was set for a service of this name. Only a watch reports it (one may come); a check fails.
    SERVICE_UNKNOWN = "SERVICE_UNKNOWN"


class Health:
    """The statuses of a server's services; the name "" stands for the server as a whole.

    To be used from one event loop's thread.

    :param services: names that are SERVING from the beginning, besides "".
    """

    def __init__(self, services: Iterable[str] = ()) -> None:
        self._status: dict[str, Status] = dict.fromkeys(("", *services), Status.SERVING)
        self._draining = False
        self._watchers: dict[Waiter, str] = {}
        #: What the server has to serve.
        self.service = Service(HEALTH_SERVICE)
        self.service.add(self.check, idempotent=True)
        self.service.add(self.watch, idempotent=True)
        self.service.add(self.all, name="all", idempotent=True)

    def __getitem__(self, service: str) -> Status:
        return self._status.get(service, Status.SERVICE_UNKNOWN)

    def __iter__(self) -> Iterator[str]:
        return iter(self._status)

    def set(self, service: str, status: Status) -> None:
        """Set the status of ``service``, and send it to its watchers. Without effect after :meth:`drain`.

        :raises ValueError: the status is ``SERVICE_UNKNOWN``.
        """
        if status is Status.SERVICE_UNKNOWN:
            raise ValueError("a status is SERVING or NOT_SERVING; remove() forgets a service")
        if not self._draining and self._status.get(service) is not status:
            self._status[service] = status
            self._tell(service)

    def remove(self, service: str) -> None:
        """Forget ``service``; unknown names are no error."""
        if self._status.pop(service, None) is not None:
            self._tell(service)

    def drain(self) -> None:
        """This server ends: everything is NOT_SERVING from now on."""
        self._draining = True
        for service, status in self._status.items():
            if status is not Status.NOT_SERVING:
                self._status[service] = Status.NOT_SERVING
                self._tell(service)

    def _tell(self, service: str) -> None:
        for waiter, watched in self._watchers.items():
            if watched == service:
                waiter.set()

    # ---- the methods that are served -----------------------------------------------------------------------

    def check(self, service: str = "") -> Status:
        """The status of a service; NOT_FOUND when nothing is known of it."""
        if service not in self._status:
            raise RpcError(Code.NOT_FOUND, f"no service {service!r:.99} is known here")
        return self._status[service]

    def all(self) -> dict[str, Status]:
        """The statuses of all services."""
        return dict(self._status)

    async def watch(self, service: str = "") -> AsyncIterator[Status]:
        """The status of a service now, and whenever it changes."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise RpcError(Code.RESOURCE_EXHAUSTED, f"{MAX_WATCHERS} watches are running already")
        waiter = current().new_waiter()
        self._watchers[waiter] = service
        sent: Status | None = None
        try:
            while True:
                status = self[service]
                if status is not sent:
                    sent = status
                    yield status
                else:
                    await waiter.wait()
        finally:
            del self._watchers[waiter]
