"""Peers that block or spin in a thread instead of an event loop: what two plain programs would do.

They echo whole messages and know nothing else, so they take part in round trips only. A server answers in a
thread of its own, while the worker's loop sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing.connection
import socket
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Protocol

Message = bytes | bytearray | memoryview


class Channel(Protocol):
    """One end. Both methods block, or spin, until they are done; EOFError or OSError: the peer has gone."""

    def send(self, message: Message) -> object: ...

    def receive(self, size: int) -> Message:
        """The next message; of a stream, `size` bytes, or what has arrived if that is 0."""

    def close(self) -> object: ...


class BlockingConnection:
    path = None
    fallback_reason = None

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def start_echo(self, size: int) -> None:
        """The server echoes whatever comes."""

    async def ping(self, size: int, until: float, seconds: array[float]) -> None:
        send, receive = self._channel.send, self._channel.receive
        clock, message = time.perf_counter, b"x" * size
        before = clock()
        while True:
            send(message)
            receive(size)
            now = clock()
            seconds.append(now - before)
            if now >= until:
                return
            before = now

    async def close(self) -> None:
        self._channel.close()


class BlockingTransport:
    """`listen(ready)` yields the server's end of each client in turn; `dial(address)` is a client's."""

    def __init__(
        self,
        listen: Callable[[Callable[[str], None]], Iterator[Channel]],
        dial: Callable[[str], Channel],
    ) -> None:
        self._listen, self._dial = listen, dial

    async def serve(self, ready: Callable[[str], None]) -> None:
        threading.Thread(target=self._echo, args=(ready,), daemon=True).start()
        await asyncio.get_running_loop().create_future()

    def _echo(self, ready: Callable[[str], None]) -> None:
        for channel in self._listen(ready):
            with contextlib.suppress(EOFError, OSError):
                while True:
                    channel.send(channel.receive(0))
            channel.close()

    async def connect(self, address: str) -> BlockingConnection:
        return BlockingConnection(self._dial(address))


@contextlib.contextmanager
def socket_path() -> Iterator[str]:
    """A path for a Unix socket that goes with its folder."""
    with tempfile.TemporaryDirectory(prefix="aiordma-bench-") as folder:
        yield f"{folder}/socket"


class _Connection:
    """`multiprocessing.Connection`: length-prefixed messages on a Unix socket."""

    def __init__(self, connection: multiprocessing.connection.Connection) -> None:
        self._connection = connection
        self.send, self.close = connection.send_bytes, connection.close

    def receive(self, size: int) -> bytes:
        return self._connection.recv_bytes()


def _accept_connections(ready: Callable[[str], None]) -> Iterator[_Connection]:
    with socket_path() as path, multiprocessing.connection.Listener(path, "AF_UNIX") as listener:
        ready(path)
        while True:
            yield _Connection(listener.accept())


def connections() -> BlockingTransport:
    return BlockingTransport(
        _accept_connections, lambda path: _Connection(multiprocessing.connection.Client(path, "AF_UNIX"))
    )


class _Socket:
    """A Unix stream socket. Spinning, it asks the kernel again until there is something."""

    def __init__(self, socket_: socket.socket, *, spins: bool) -> None:
        self._socket = socket_
        self._spins = spins
        socket_.setblocking(not spins)
        self._buffer = bytearray(65536)
        self.close = socket_.close

    def send(self, message: Message) -> None:
        left = memoryview(message)
        while left:
            with contextlib.suppress(BlockingIOError):
                left = left[self._socket.send(left) :]

    def receive(self, size: int) -> memoryview:
        buffer, receive, have = memoryview(self._buffer), self._socket.recv_into, 0
        while have < size or not have:
            try:
                arrived = receive(buffer[have:])
            except BlockingIOError:
                continue
            if not arrived:
                raise EOFError
            have += arrived
        return buffer[:have]


def _sockets(*, spins: bool) -> BlockingTransport:
    def accept(ready: Callable[[str], None]) -> Iterator[_Socket]:
        with socket_path() as path, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            ready(path)
            while True:
                yield _Socket(listener.accept()[0], spins=spins)

    def dial(path: str) -> _Socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(path)
        return _Socket(made, spins=spins)

    return BlockingTransport(accept, dial)


def blocking_sockets() -> BlockingTransport:
    return _sockets(spins=False)


def spinning_sockets() -> BlockingTransport:
    return _sockets(spins=True)
