"""The backends that distributed finds by their entry points: a scheme's connectors, listeners, addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.registry import Backend
from distributed.utils import ensure_ip, get_ip

from .connector import RdmaConnector, RdmasConnector
from .listener import RdmaListener, RdmasListener

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .comm import RdmaComm

__all__ = ["RdmaBackend", "RdmasBackend"]


class RdmaBackend(Backend):
    """``rdma://host:port``."""

    _connector_class: ClassVar[type[RdmaConnector]] = RdmaConnector
    _listener_class: ClassVar[type[RdmaListener]] = RdmaListener

    def get_connector(self) -> RdmaConnector:
        return self._connector_class()

    def get_listener(
        self,
        loc: str,
        handle_comm: Callable[[RdmaComm], Awaitable[object]],
        deserialize: bool,
        **connection_args: Any,
    ) -> RdmaListener:
        return self._listener_class(loc, handle_comm, deserialize, **connection_args)

    def get_address_host(self, loc: str) -> str:
        return str(parse_host_port(loc)[0])

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        host, port = parse_host_port(loc)
        return host, port

    def resolve_address(self, loc: str) -> str:
        host, port = parse_host_port(loc)
        return str(unparse_host_port(ensure_ip(host), port))

    def get_local_address_for(self, loc: str) -> str:
        host, _ = parse_host_port(loc)
        return str(unparse_host_port(get_ip(ensure_ip(host)), None))


class RdmasBackend(RdmaBackend):
    """``rdmas://host:port``."""

    _connector_class = RdmasConnector
    _listener_class = RdmasListener
