"""The methods that take the place of the event loops' own: they decide, and pass each call on.

What stays plain goes to the loop's own method with its arguments as they were. What is negotiated goes to the
function of aiordma of the same name, which is loaded then.
"""

from __future__ import annotations

import asyncio
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from ..compat.arguments import check_client, check_server
from ..compat.own_methods import is_overridden, unpatched
from ..negotiation.announcement import arriving
from .loading import config_of_accepted, config_of_run, load

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from concurrent.futures import Future

    from ..negotiation.peers import KnownServer
    from ..negotiation.question import Answer
    from .policy import Policy
    from .report import Report

#: asyncio's default of its stream readers.
_LIMIT = 64 * 1024


class Methods:
    """The methods of one :func:`aiordma.install`."""

    def __init__(self, policy: Policy, report: Report) -> None:
        self._policy, self._report = policy, report
        self._functions: Any = None
        #: Loops that have their engine, or cannot have one.
        self._warm: weakref.WeakSet[Any] = weakref.WeakSet()

    def of_loops(self) -> dict[str, Callable[..., Any]]:
        """By name, to be methods of a class of event loops: so they get the loop as their first argument."""

        async def create_connection(
            loop: Any, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
        ) -> Any:
            return await self._connect(loop, protocol_factory, host, port, options)

        async def create_server(
            loop: Any, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
        ) -> Any:
            check_server(host, port, options)
            reason = self._policy.protocol_rules_it_out(protocol_factory)
            if reason is not None:
                protocol_factory = self._counted(protocol_factory, reason)
            if reason is not None or self._policy.forbids_server(port, options) is not None:
                return await unpatched(loop).create_server(protocol_factory, host, port, **options)
            functions = await self._load(loop)
            ours = {**self._ours(), "permits": self._policy.permits}
            return await functions.create_server(protocol_factory, host, port, **ours, **options)

        async def connect_accepted_socket(loop: Any, protocol_factory: Any, sock: Any, **options: Any) -> Any:
            return await self._accepted(loop, protocol_factory, sock, options)

        async def start_tls(loop: Any, transport: Any, protocol: Any, sslcontext: Any, **options: Any) -> Any:
            module = type(transport).__module__
            # What start_tls() on RDMA has returned is asyncio's on every loop, and may get TLS again.
            inside = module == "asyncio.sslproto" and not isinstance(loop, asyncio.BaseEventLoop)
            if not inside and not module.startswith("aiordma."):
                return await unpatched(loop).start_tls(transport, protocol, sslcontext, **options)
            from ..compat.upgrade import start_tls

            return await start_tls(transport, protocol, sslcontext, **options)

        return {
            "create_connection": create_connection,
            "create_server": create_server,
            "connect_accepted_socket": connect_accepted_socket,
            "start_tls": start_tls,
        }

    def of_streams(self, plain_open: Any, plain_server: Any) -> dict[str, Callable[..., Any]]:
        """Functions of the module `asyncio.streams`: ours make readers that take data from the ring itself.

        A loop that has methods of its own (an override, a mock) expects to be called by them, as it is by the
        module's own functions.

        :param plain_open: the module's own `open_connection()`. :param plain_server: its `start_server()`.
        """

        async def open_connection(
            host: Any = None, port: Any = None, *, limit: int = _LIMIT, **options: Any
        ) -> Any:
            loop: Any = asyncio.get_running_loop()
            if is_overridden(loop, "create_connection"):
                return await plain_open(host, port, limit=limit, **options)
            check_client(host, port, options)
            judged = await self._judge(loop, host, port, options)
            if isinstance(judged, str):
                reader = asyncio.StreamReader(limit=limit, loop=loop)
                protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
                transport, _ = await self._plain(loop, lambda: protocol, host, port, options, judged)
                return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
            functions = await self._load_for(loop, options)
            reader, writer = await functions.open_connection(
                host, port, limit=limit, **self._ours(), **options
            )
            self._learn(loop, judged, writer)
            return reader, writer

        async def start_server(
            client_connected_cb: Any, host: Any = None, port: Any = None, **options: Any
        ) -> Any:
            if is_overridden(asyncio.get_running_loop(), "create_server"):
                return await plain_server(client_connected_cb, host, port, **options)
            check_server(host, port, options)
            if self._policy.forbids_server(port, options) is not None:
                return await plain_server(client_connected_cb, host, port, **options)
            functions = await self._load(asyncio.get_running_loop())
            ours = {**self._ours(), "permits": self._policy.permits}
            return await functions.start_server(client_connected_cb, host, port, **ours, **options)

        return {"open_connection": open_connection, "start_server": start_server}

    # ---- clients

    async def _judge(self, loop: Any, host: Any, port: Any, options: dict[str, Any]) -> KnownServer | str:
        """With whom to negotiate a connection; or why not."""
        judged = await self._policy.judge_client(loop, host, port, options)
        if isinstance(judged, str) or self._functions is not None:
            return judged
        return await self._policy.peers.ask(judged, loop, partial(_hear, loop))

    async def _connect(self, loop: Any, factory: Any, host: Any, port: Any, options: dict[str, Any]) -> Any:
        check_client(host, port, options)  # before names are looked up, as asyncio does
        reason = self._policy.protocol_rules_it_out(factory)
        judged = reason if reason is not None else await self._judge(loop, host, port, options)
        if isinstance(judged, str):
            return await self._plain(loop, factory, host, port, options, judged)
        functions = await self._load_for(loop, options)
        result = await functions.create_connection(factory, host, port, **self._ours(), **options)
        self._learn(loop, judged, result[0])
        return result

    async def _plain(
        self, loop: Any, factory: Any, host: Any, port: Any, options: dict[str, Any], reason: str
    ) -> Any:
        result = await unpatched(loop).create_connection(factory, host, port, **options)
        peer = result[0].get_extra_info("peername")
        if isinstance(peer, tuple):
            name = peer[0] if host is None else host
            self._report.count("server", f"{name}:{peer[1]}", "tcp", reason)
        return result

    def _learn(self, loop: Any, server: KnownServer, end: Any) -> None:
        """Remember what the negotiation has shown about the server."""
        remember = self._policy.peers.learn(server, end.get_extra_info("aiordma.fallback_reason"))
        if remember is not None:
            # Nothing waits for it: the program has its connection.
            loop.run_in_executor(None, remember)

    # ---- servers

    async def _accepted(self, loop: Any, factory: Any, sock: socket.socket, options: dict[str, Any]) -> Any:
        forbidden = self._policy.forbids_server(None, {**options, "sock": sock})
        reason = self._policy.protocol_rules_it_out(factory)
        if reason is not None:
            forbidden, factory = reason, self._counted(factory, reason)
        if forbidden is not None or not self._policy.permits(sock):
            return await unpatched(loop).connect_accepted_socket(factory, sock, **options)
        functions = await self._load(loop)
        ours = {**self._ours(), "config": config_of_accepted()}
        return await functions.connect_accepted_socket(factory, sock, **ours, **options)

    def _counted(self, factory: Any, reason: str) -> Any:
        """The factory of a server that stays plain, for the report."""

        def counted() -> Any:
            self._report.count("client", "of a plain server", "tcp", reason)
            return factory()

        return counted

    # ---- both

    def _ours(self) -> dict[str, Any]:
        return {"config": config_of_run(), "rdma_outside_tls": self._policy.outside_tls}

    async def _load_for(self, loop: Any, options: dict[str, Any]) -> Any:
        """The functions, for a client. If the program has connected by itself (`sock=`), the server may wait
        for what will be said; if loading took so long that it may have given up, a new connection takes the
        place of the program's.
        """
        sock: socket.socket | None = options.get("sock")
        if sock is None or loop in self._warm:
            return await self._load(loop)
        began = loop.time()
        with arriving([(sock.family, sock.getpeername())]):
            functions = await self._load(loop)
            from ..compat.given_socket import renew_if_late

            await renew_if_late(sock, loop.time() - began, in_clear=not options.get("ssl"))
        return functions

    async def _load(self, loop: Any) -> Any:
        """The functions of aiordma, and the loop's engine. They are loaded beside the loop, which would stand
        still meanwhile.
        """
        if loop in self._warm:
            return self._functions
        if self._functions is None:
            self._functions = await loop.run_in_executor(
                None, load, "aiordma.compat.connection", self._report
            )
        from ..negotiation.engine import warm_up
        from ..negotiation.options import PathOptions

        config = config_of_run()
        await warm_up(PathOptions(config, config.mode))
        self._warm.add(loop)
        return self._functions


async def _hear(loop: Any, asked: Future[Answer]) -> Answer:
    # Others wait for the same answer, and go on when this one is cancelled.
    return await asyncio.shield(asyncio.wrap_future(asked, loop=loop))
