"""Accepts comms: the server's side of ``rdma://`` and ``rdmas://``."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING, Any, ClassVar

import dask
from anyio import BrokenResourceError, ClosedResourceError
from anyio.abc import SocketAttribute
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import BaseListener, CommClosedError
from distributed.comm.utils import ensure_concrete_host

import aiordma

from .comm import RdmaComm
from .paths import check_path
from .security import check_encryption, tls_context
from .settings import Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiordma import RdmaListener as StreamListener
    from aiordma import RdmaStream

__all__ = ["RdmaListener", "RdmasListener"]

logger = logging.getLogger("distributed.comm.aiordma")

#: A free port that the system has chosen may be taken before it is bound on the second address family.
_ATTEMPTS = 5


class RdmaListener(BaseListener):
    """``rdma://``: accepts aiordma's clients by RDMA, or by TCP where that is not possible."""

    prefix: ClassVar[str] = "rdma://"
    comm_class: ClassVar[type[RdmaComm]] = RdmaComm
    encrypted: ClassVar[bool] = False

    def __init__(
        self,
        address: str,
        comm_handler: Callable[[RdmaComm], Awaitable[object]],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **connection_args: Any,
    ) -> None:
        super().__init__()
        self._settings = Settings.now()
        check_encryption(self.prefix + address, self.encrypted, connection_args, self._settings)
        self.ip, self.port = parse_host_port(address, default_port)
        self.default_host = default_host
        self.comm_handler = comm_handler
        self.deserialize, self.allow_offload = deserialize, allow_offload
        self._keywords = self._tls_keywords(connection_args)
        self._listener: StreamListener | None = None
        self._bound: tuple[str, int] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def _tls_keywords(self, connection_args: dict[str, Any]) -> dict[str, Any]:
        return {}

    async def start(self) -> None:
        """:raises OSError: the address cannot be listened on."""
        listener = self._listener = await self._listen()
        # Where it listens on both families, IPv4 is the one that works everywhere.
        addresses = sorted(listener.addresses, key=lambda address: ":" in address[0])
        self._bound = addresses[0]
        self._start_task(self._accept(listener), "accept")

    async def _listen(self) -> StreamListener:
        backlog = int(dask.config.get("distributed.comm.socket-backlog"))
        for attempt in range(_ATTEMPTS):
            try:
                return await aiordma.listen(
                    self.ip, self.port, config=self._settings.config(), backlog=backlog, **self._keywords
                )
            except OSError as exc:
                if self.port or exc.errno != errno.EADDRINUSE or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError

    def _start_task(self, coro: Any, what: str) -> None:
        task = asyncio.create_task(coro, name=f"distributed-aiordma: {what}")
        self._tasks.add(task)  # the loop keeps no reference
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: StreamListener) -> None:
        while True:
            try:
                stream = await listener.accept()
            except ClosedResourceError:
                return
            self._start_task(self._handle(stream), "handle a comm")

    async def _handle(self, stream: RdmaStream) -> None:
        try:
            remote: Any = stream.extra(SocketAttribute.remote_address)
            local: Any = stream.extra(SocketAttribute.local_address)
        except BrokenResourceError:
            stream.abort()
            return
        peer = self.prefix + unparse_host_port(*remote[:2])
        refusal = check_path(stream, peer, refuse=self._settings.require_rdma)
        if refusal is not None:
            logger.warning("Refused: %s", refusal)
        if refusal is not None or self._listener is None:
            # Stopped meanwhile: nothing else would ever end the client's handshake.
            stream.abort()
            return
        local_address = self.prefix + unparse_host_port(*local[:2])
        comm = self.comm_class(stream, local_address, peer, self.deserialize, self._settings)
        comm.allow_offload = self.allow_offload
        try:
            await self.on_connection(comm)
        except CommClosedError:
            logger.info("Connection from %s closed before handshake completed", peer)
            return
        await self.comm_handler(comm)

    def stop(self) -> None:
        """Accept no more comms. Those that are open stay. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def get_host_port(self) -> tuple[str, int]:
        """The address that it listens on.

        :raises ValueError: it was not started.
        """
        if self._listener is None or self._bound is None:
            raise ValueError("invalid operation on a listener that is not started, or was stopped")
        return self._bound

    @property
    def listen_address(self) -> str:
        return str(self.prefix + unparse_host_port(*self.get_host_port()))

    @property
    def contact_address(self) -> str:
        host, port = self.get_host_port()
        concrete = ensure_concrete_host(host, default_host=self.default_host)
        return str(self.prefix + unparse_host_port(concrete, port))


class RdmasListener(RdmaListener):
    """``rdmas://``: the same inside TLS."""

    prefix = "rdmas://"
    encrypted = True

    def _tls_keywords(self, connection_args: dict[str, Any]) -> dict[str, Any]:
        return {
            "ssl": tls_context(connection_args),
            "rdma_outside_tls": self._settings.rdma_outside_tls,
        }
