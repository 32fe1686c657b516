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
from tornado.netutil import bind_sockets

import aiordma

from .comm import RdmaComm
from .paths import check_path
from .security import check_encryption, tls_context
from .settings import Settings

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from aiordma import Config, RdmaStream
    from aiordma import RdmaListener as StreamListener

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
        #: None before it is made: until then, clients wait in the sockets' queues.
        self._listener: StreamListener | None = None
        self._sockets: list[socket.socket] = []
        self._bound: tuple[str, int] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def _tls_keywords(self, connection_args: dict[str, Any]) -> dict[str, Any]:
        return {}

    async def start(self) -> None:
        """Listen. What serves clients is made meanwhile: imports and the device take a tenth of a second, in
        which the first clients wait, and a cluster's other processes start.

        :raises OSError: the address cannot be listened on.
        """
        config = self._settings.config()
        self._sockets = self._bind()
        # Where it listens on both families, IPv4 is the one that works everywhere.
        addresses: list[tuple[str, int]] = [sock.getsockname()[:2] for sock in self._sockets]
        self._bound = sorted(addresses, key=lambda address: ":" in address[0])[0]
        self._serving = self._start_task(self._serve(self._sockets, config), "accept")

    def _bind(self) -> list[socket.socket]:
        backlog = int(dask.config.get("distributed.comm.socket-backlog"))
        for attempt in range(_ATTEMPTS):
            try:
                return bind_sockets(self.port, self.ip, backlog=backlog)
            except OSError as exc:
                if self.port or exc.errno != errno.EADDRINUSE or attempt == _ATTEMPTS - 1:
                    where = self.prefix + unparse_host_port(self.ip, self.port)
                    raise OSError(exc.errno, f"cannot listen on {where}: {exc.strerror or exc}") from exc
        raise AssertionError

    async def _serve(self, sockets: list[socket.socket], config: Config) -> None:
        try:
            listener = await aiordma.listen(sockets=sockets, config=config, **self._keywords)
        except Exception:
            logger.exception("Stopped listening on %s", self.listen_address)
            self.stop()
            return
        self._listener = listener
        try:
            while True:
                self._start_task(self._handle(await listener.accept()), "handle a comm")
        except ClosedResourceError:
            pass  # stopped
        finally:
            listener.close()

    def _start_task(self, coro: Any, what: str) -> asyncio.Task[None]:
        task = asyncio.create_task(coro, name=f"distributed-aiordma: {what}")
        self._tasks.add(task)  # the loop keeps no reference
        task.add_done_callback(self._tasks.discard)
        return task

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
        if refusal is not None or self._serving is None:
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
        serving, self._serving = self._serving, None
        if serving is None:
            return
        if self._listener is not None:
            self._listener.close()
        else:
            serving.cancel()
            for sock in self._sockets:
                sock.close()

    def get_host_port(self) -> tuple[str, int]:
        """The address that it listens on.

        :raises ValueError: it was not started.
        """
        if self._serving is None or self._bound is None:
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
