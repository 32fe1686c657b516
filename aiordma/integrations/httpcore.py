"""httpcore, on asyncio and trio: a network backend whose connections negotiate RDMA.

::

    async with httpcore.AsyncConnectionPool(network_backend=RdmaBackend()) as pool:
        response = await pool.request("GET", "http://storage:8000/")
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
from anyio.streams.tls import TLSAttribute, TLSStream

from ..attributes import RdmaAttribute
from ..streams.connector import connect
from ._versions import check_version, unusable

try:
    import httpcore
except ImportError as error:
    raise unusable("httpcore") from error

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Iterator

    from ..config import Config, Mode
    from ..streams.stream import RdmaStream

check_version("httpcore")

__all__ = ["RdmaBackend", "RdmaNetworkStream"]


@contextmanager
def _translated(timed_out: type[Exception], failed: type[Exception]) -> Iterator[None]:
    """Errors of streams as httpcore's."""
    try:
        yield
    except TimeoutError as error:
        # A connection that timed out in the kernel is an OSError with a number; a deadline has none.
        raise (failed if error.errno else timed_out)(str(error)) from error
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError) as error:
        raise failed(str(error)) from error


class RdmaNetworkStream(httpcore.AsyncNetworkStream):
    """One connection, by RDMA or TCP. ``get_extra_info("aiordma.path")`` says which."""

    def __init__(self, stream: RdmaStream | TLSStream) -> None:
        self._stream = stream
        #: What :meth:`_is_readable` has taken.
        self._ahead = b""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Up to `max_bytes`; ``b""`` at the end. `timeout`: seconds."""
        if self._ahead:
            data, self._ahead = self._ahead[:max_bytes], self._ahead[max_bytes:]
            return data
        with _translated(httpcore.ReadTimeout, httpcore.ReadError), anyio.fail_after(timeout):
            try:
                return await self._stream.receive(max_bytes)
            except anyio.EndOfStream:
                return b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """All of `buffer`. `timeout`: seconds."""
        if buffer:
            with _translated(httpcore.WriteTimeout, httpcore.WriteError), anyio.fail_after(timeout):
                await self._stream.send(buffer)

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> RdmaNetworkStream:
        """Go on inside TLS, which then travels by the path that the connection has. `timeout`: seconds."""
        import ssl

        try:
            with _translated(httpcore.ConnectTimeout, httpcore.ConnectError), anyio.fail_after(timeout):
                inside = await TLSStream.wrap(
                    self._stream,
                    ssl_context=ssl_context,
                    hostname=server_hostname,
                    standard_compatible=False,
                    server_side=False,
                )
        except ssl.SSLError as error:
            await self.aclose()
            raise httpcore.ConnectError(str(error)) from error
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise
        return RdmaNetworkStream(inside)

    def get_extra_info(self, info: str) -> Any:
        """See httpcore; ``"aiordma.path"`` is "rdma" or "tcp". There is no ``"socket"``: it says nothing."""
        extra = self._stream.extra
        if info == "is_readable":
            return self._is_readable()
        if info == "ssl_object":
            return extra(TLSAttribute.ssl_object, None)
        if info == "client_addr":
            return extra(anyio.abc.SocketAttribute.local_address)
        if info == "server_addr":
            return extra(anyio.abc.SocketAttribute.remote_address)
        if info == "aiordma.path":
            return extra(RdmaAttribute.path)
        return None

    def _is_readable(self) -> bool:
        """Whether a read would not wait: httpcore asks it of idle connections, to drop what was closed."""
        if self._ahead:
            return True
        stream: Any = self._stream
        outside = stream
        while isinstance(outside, TLSStream):
            outside = outside.transport_stream
        try:
            taken = outside.receive_nowait(1)
        except anyio.WouldBlock:
            return False
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return True
        # Inside TLS the byte is lost, and with it the connection: an idle one that has something to say is
        # about to be closed, and httpcore drops it for being readable.
        if outside is stream:
            self._ahead = taken
        return True


class RdmaBackend(httpcore.AsyncNetworkBackend):
    """Connections that negotiate RDMA, and use TCP with everybody else."""

    def __init__(self, *, config: Config | None = None, mode: Mode | None = None) -> None:
        """`config`, `mode`: as of :func:`aiordma.connect`."""
        self._config, self._mode = config, mode
        self._plain = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect. `timeout`: seconds. A connection with `socket_options` is plain TCP, which has such.

        :raises httpcore.ConnectTimeout: it took longer than `timeout`.
        :raises httpcore.ConnectError: no connection could be made, or the mode is "rdma" and there is none.
        """
        if socket_options is not None and (options := list(socket_options)):
            return await self._plain.connect_tcp(host, port, timeout, local_address, options)
        with _translated(httpcore.ConnectTimeout, httpcore.ConnectError), anyio.fail_after(timeout):
            stream = await connect(host, port, config=self._config, mode=self._mode, local_host=local_address)
        return RdmaNetworkStream(stream)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """As without aiordma."""
        return await self._plain.connect_unix_socket(path, timeout, socket_options)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await anyio.sleep(seconds)
