"""ZeroMQ and nng over their `ipc://` transports (Unix sockets): blocking, spinning, and on asyncio.

The patterns are those that answer any number of clients: DEALER to ROUTER, and Req to Rep.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from .blocking import BlockingTransport, Message, socket_path


def _url(path: str) -> str:
    return f"ipc://{path}"


class _Zmq:
    """A DEALER, or a ROUTER: what comes with a message in front of it goes back with the answer."""

    def __init__(self, socket: Any, *, spins: bool) -> None:
        import zmq

        self._socket, self._flags, self._again = socket, zmq.NOBLOCK if spins else 0, zmq.Again
        self._route: list[bytes] = []

    def send(self, message: Message) -> None:
        self._socket.send_multipart([*self._route, message])

    def receive(self, size: int) -> bytes:
        while True:
            try:
                *self._route, message = self._socket.recv_multipart(self._flags)
            except self._again:
                continue
            received: bytes = message
            return received

    def close(self) -> None:
        self._socket.close()


def _zmq(*, spins: bool) -> BlockingTransport:
    import zmq

    def listen(ready: Callable[[str], None]) -> Iterator[_Zmq]:
        with socket_path() as path:
            socket: Any = zmq.Context.instance().socket(zmq.ROUTER)
            socket.bind(_url(path))
            ready(path)
            yield _Zmq(socket, spins=spins)

    def dial(path: str) -> _Zmq:
        socket: Any = zmq.Context.instance().socket(zmq.DEALER)
        socket.connect(_url(path))
        return _Zmq(socket, spins=spins)

    return BlockingTransport(listen, dial)


def zmq_blocking() -> BlockingTransport:
    return _zmq(spins=False)


def zmq_spinning() -> BlockingTransport:
    return _zmq(spins=True)


class _Nng:
    def __init__(self, socket: Any, *, spins: bool) -> None:
        import pynng

        self._again = pynng.TryAgain
        self._receive = socket.recv
        self._block = not spins
        self.send, self.close = socket.send, socket.close

    def receive(self, size: int) -> bytes:
        while True:
            try:
                message: bytes = self._receive(block=self._block)
            except self._again:
                continue
            return message


def _nng(*, spins: bool) -> BlockingTransport:
    import pynng

    def listen(ready: Callable[[str], None]) -> Iterator[_Nng]:
        with socket_path() as path, pynng.Rep0(listen=_url(path)) as socket:
            ready(path)
            yield _Nng(socket, spins=spins)

    return BlockingTransport(
        listen, lambda path: _Nng(pynng.Req0(dial=_url(path), block_on_dial=True), spins=spins)
    )


def nng_blocking() -> BlockingTransport:
    return _nng(spins=False)


def nng_spinning() -> BlockingTransport:
    return _nng(spins=True)


class _AsyncConnection:
    """`send(message)` and `receive()` as coroutines."""

    path = None
    fallback_reason = None

    def __init__(self, send: Any, receive: Any, close: Callable[[], object]) -> None:
        self._send, self._receive, self._close = send, receive, close

    async def start_echo(self, size: int) -> None:
        """The server echoes whatever comes."""

    async def ping(self, size: int, until: float, seconds: array[float]) -> None:
        send, receive, clock, message = self._send, self._receive, time.perf_counter, b"x" * size
        before = clock()
        while True:
            await send(message)
            await receive()
            now = clock()
            seconds.append(now - before)
            if now >= until:
                return
            before = now

    async def close(self) -> None:
        self._close()


class ZmqAsyncio:
    async def serve(self, ready: Callable[[str], None]) -> None:
        import zmq.asyncio

        with socket_path() as path:
            socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
            socket.bind(_url(path))
            ready(path)
            while True:
                await socket.send_multipart(await socket.recv_multipart())

    async def connect(self, address: str) -> _AsyncConnection:
        import zmq.asyncio

        socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        socket.connect(_url(address))
        return _AsyncConnection(socket.send, socket.recv, socket.close)


class NngAsyncio:
    async def serve(self, ready: Callable[[str], None]) -> None:
        import pynng

        with socket_path() as path, pynng.Rep0(listen=_url(path)) as socket:
            ready(path)
            while True:
                await socket.asend(await socket.arecv())

    async def connect(self, address: str) -> _AsyncConnection:
        import pynng

        loop = asyncio.get_running_loop()
        socket = await loop.run_in_executor(None, lambda: pynng.Req0(dial=_url(address), block_on_dial=True))
        return _AsyncConnection(socket.asend, socket.arecv, socket.close)


def zmq_asyncio() -> ZmqAsyncio:
    return ZmqAsyncio()


def nng_asyncio() -> NngAsyncio:
    return NngAsyncio()
