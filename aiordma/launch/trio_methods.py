"""What takes the place of trio's functions and methods, and of anyio's on trio.

Clients: `trio.open_tcp_stream()`, and `connect_tcp()` of anyio's backend. Servers: every listener on a TCP
socket (`trio.SocketListener`, anyio's `TCPSocketListener`), however the program made it. What stays plain is
passed on to trio's own.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import trio

from ..borrowed import ENABLED
from ..negotiation.announcement import Announcement
from ..negotiation.smc_map import map_path
from .loading import config_of_run, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from ..negotiation.question import Answer
    from .policy import Policy
    from .raw_sockets import RawSockets
    from .report import Report

_Patches = dict[str, Any]
#: In this context, trio opens sockets that its own listeners get.
_OPENING: ContextVar[bool] = ContextVar("aiordma: trio opens listeners", default=False)


class _Names:
    """Looks names up as a loop of asyncio does."""

    @staticmethod
    async def getaddrinfo(host: str, port: int, **options: Any) -> Any:
        return await trio.socket.getaddrinfo(host, port, **options)


class _Listening:
    """What is known of one listener of the program's."""

    def __init__(self, sock: socket.socket) -> None:
        self.announcement = Announcement([sock.getsockname()[1]])
        #: What accepts for it; None before the first accept().
        self.listener: Any = None


class TrioMethods:
    """The functions and methods of one :func:`aiordma.install`."""

    def __init__(self, policy: Policy, report: Report, raw: RawSockets | None = None) -> None:
        """:param raw: counts the sockets that the program uses itself."""
        self._policy, self._report, self._raw = policy, report, raw
        self._places: weakref.WeakKeyDictionary[Any, _Listening] = weakref.WeakKeyDictionary()
        self._sockets: Any = None

    # ---- what is replaced

    def of_trio(self, module: Any) -> dict[Any, _Patches]:
        """By owner: the module `trio`, and its class of listeners."""
        own_connect = module.open_tcp_stream

        @functools.wraps(own_connect)
        async def open_tcp_stream(host: Any, port: Any, **options: Any) -> Any:
            local = options.get("local_address")
            name = host.decode("ascii") if isinstance(host, bytes) else host
            made = await self._connect(name, port, None if local is None else str(local))
            if not isinstance(made, str):
                return trio.SocketStream(made)
            stream = await own_connect(host, port, **options)
            self._count_plain(name, stream.socket, made)
            return stream

        own_open = module.open_tcp_listeners

        @functools.wraps(own_open)
        async def open_tcp_listeners(*arguments: Any, **named: Any) -> Any:
            opening = _OPENING.set(True)
            try:
                return await own_open(*arguments, **named)
            finally:
                _OPENING.reset(opening)

        return {
            module: {"open_tcp_stream": open_tcp_stream, "open_tcp_listeners": open_tcp_listeners},
            socket.socket: {"listen": self._of_listen(socket.socket.listen)},
            module.SocketListener: self._of_listeners(module.SocketListener, "socket", trio.SocketStream),
        }

    def of_anyio(self, module: Any) -> dict[Any, _Patches]:
        """By owner: classes of the module of anyio's backend."""
        own_connect = module.TrioBackend.connect_tcp

        async def connect_tcp(cls: Any, host: str, port: int, local_address: Any = None) -> Any:
            made: Any = "a local port is given"
            if local_address is None or not local_address[1]:
                made = await self._connect(host, port, local_address and local_address[0])
            if not isinstance(made, str):
                return module.SocketStream(made)
            stream = await own_connect(host, port, local_address)
            self._count_plain(host, stream._trio_socket, made)
            return stream

        listeners = self._of_listeners(module.TCPSocketListener, "_trio_socket", module.SocketStream)
        return {
            module.TrioBackend: {"connect_tcp": classmethod(connect_tcp)},
            module.TCPSocketListener: listeners,
        }

    def _of_listeners(self, cls: Any, attribute: str, stream_of: Callable[[Any], Any]) -> _Patches:
        own_init, own_accept, own_close = cls.__init__, cls.accept, cls.aclose

        @functools.wraps(own_init)
        def __init__(listener: Any, sock: Any) -> None:
            own_init(listener, sock)
            raw = getattr(getattr(listener, attribute), "_sock", None) if ENABLED else None
            # One of a test's virtual network has none.
            if raw is not None and self._policy.forbids_server(None, {"sock": raw}) is None:
                self._places[listener] = _Listening(raw)

        @functools.wraps(own_accept)
        async def accept(listener: Any) -> Any:
            place = self._places.get(listener)
            if place is None:
                stream = await own_accept(listener)
                self._counted(getattr(stream, attribute))
                return stream
            sock = await self._accept(place, getattr(listener, attribute))
            self._counted(sock)
            sock.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
            return stream_of(sock)

        @functools.wraps(own_close)
        async def aclose(listener: Any) -> None:
            place = self._places.get(listener)
            if place is not None:
                place.announcement.close()
                if place.listener is not None:
                    place.listener.close()
            await own_close(listener)

        return {"__init__": __init__, "accept": accept, "aclose": aclose}

    def _of_listen(self, own_listen: Any) -> Any:
        """Clients that are kernels ask in their SYNs, and what answers them is set before ``listen()``. So it
        is for sockets that become listeners of trio's: others know nothing of what such clients send then."""

        @functools.wraps(own_listen)
        def listen(sock: socket.socket, *arguments: Any) -> None:
            with self._answers_kernels(sock) if _OPENING.get() else contextlib.nullcontext():
                own_listen(sock, *arguments)

        return listen

    def _answers_kernels(self, sock: socket.socket) -> contextlib.AbstractContextManager[None]:
        config = config_of_run()
        if map_path(config.smcr) is None or self._policy.forbids_server(None, {"sock": sock}) is not None:
            return contextlib.nullcontext()
        from ..negotiation.options import ListenOptions
        from ..negotiation.smc_option import let_ask  # for hosts that are set up

        return let_ask(sock, ListenOptions.of(config=config))

    # ---- clients

    async def _connect(self, host: Any, port: Any, local_host: str | None) -> Any:
        """A socket, negotiated or plain; or the reason to use trio's own function."""
        if _has_a_virtual_network():
            return "the program has sockets of its own"
        judged = await self._policy.judge_client(_Names, host, port, {})
        if not isinstance(judged, str) and self._sockets is None:
            judged = await self._policy.peers.ask(judged, _Names, _hear)
        if isinstance(judged, str):
            return judged
        sockets = await self._load()
        from ..negotiation import peer_cache
        from ..negotiation.connect import connect_and_negotiate
        from ..negotiation.options import ConnectOptions

        options = ConnectOptions.of(host, config=config_of_run(), local_host=local_host)
        result = await connect_and_negotiate(host, port, options)
        peer_cache.announce("server", f"{host}:{port}", result.path, result.fallback)
        sock = sockets.socket_of(result)
        self._counted(sock)
        remember = self._policy.peers.learn(judged, result.fallback)
        if remember is not None:
            # Nothing waits for it: the program has its connection.
            trio.lowlevel.start_thread_soon(remember, _nothing)
        return sock

    def _counted(self, sock: Any) -> None:
        """A stream uses this socket, and not the program."""
        if self._raw is not None:
            self._raw.counted(sock)

    def _count_plain(self, host: Any, sock: Any, reason: str) -> None:
        self._counted(sock)
        peer = sock.getpeername()
        if isinstance(peer, tuple):
            self._report.count("server", f"{host}:{peer[1]}", "tcp", reason)

    # ---- servers

    async def _accept(self, place: _Listening, sock: Any) -> Any:
        """The socket of the next connection.

        :raises trio.ClosedResourceError: the listener is closed.
        """
        import anyio

        if place.listener is None:
            await self._load()
            if sock.fileno() < 0:
                raise trio.ClosedResourceError("this listener is closed")
            if place.listener is None:  # another task may have been here
                from .trio_listening import NegotiatingListener

                place.listener = NegotiatingListener(sock._sock, config_of_run(), self._policy.permits)
        try:
            return (await place.listener.accept()).socket
        except anyio.ClosedResourceError as error:
            raise trio.ClosedResourceError(str(error)) from error

    # ---- both

    async def _load(self) -> Any:
        """The module of our sockets, and this run's engine; loaded beside the run, not to hold it up."""
        if self._sockets is None:
            self._sockets = await trio.to_thread.run_sync(load, "aiordma.launch.trio_socket", self._report)
        from ..negotiation.engine import warm_up
        from ..negotiation.options import PathOptions

        config = config_of_run()
        await warm_up(PathOptions(config, config.mode))
        return self._sockets


async def _hear(asked: Future[Answer]) -> Answer:
    heard, token = trio.Event(), trio.lowlevel.current_trio_token()

    def tell(_: object) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(heard.set)

    asked.add_done_callback(tell)
    await heard.wait()
    return asked.result()


def _nothing(_: Any) -> None:
    """What a thread found out is in the file."""


def _has_a_virtual_network() -> bool:
    """Whether the program, a test, has replaced trio's sockets (`trio.socket.set_custom_socket_factory`)."""
    factory = getattr(trio._socket, "_socket_factory", None) if ENABLED else None
    return factory is not None and factory.get(None) is not None
