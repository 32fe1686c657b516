"""Datagram transports: aiordma's connections and endpoints, and the event loops' own UDP.

The first byte of a message is its type: the server counts `DATA` and returns `PING`. It answers `TALLY` with
the count, and the nanoseconds from the first to the last message, and resets the count. The client repeats
a tally until it is answered: UDP loses requests too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

DATA, PING, TALLY = b"d", b"p", b"t"
_REPLY = struct.Struct("<cQQQ")  # TALLY, request number, count, ns
_BATCH = 64


class Tally:
    """Count incoming messages; the same for all servers."""

    def __init__(self) -> None:
        self._question = b""
        self._answer = b""
        self._count = self._first = self._last = 0

    def take(self, messages: Sequence[bytes]) -> list[bytes]:
        """Return the reply, if any."""
        if messages[0][:1] == DATA and messages[-1][:1] == DATA:
            # No ping arrives during a flood, and no tally before its end.
            if not self._count:
                self._first = time.perf_counter_ns()
            self._count += len(messages)
            self._last = time.perf_counter_ns()
            return []
        answers = []
        for message in messages:
            if message[:1] == DATA:
                self.take([message])
            elif message[:1] == PING:
                answers.append(message)
            elif message != self._question:
                self._question = message
                number = int.from_bytes(message[1:9], "little")
                self._answer = _REPLY.pack(TALLY, number, self._count, max(1, self._last - self._first))
                self._count = 0
                answers.append(self._answer)
            else:
                answers.append(self._answer)
        return answers


class DatagramPeer(Protocol):
    """The client's end of a datagram conversation."""

    @property
    def path(self) -> str | None: ...
    @property
    def fallback_reason(self) -> object: ...

    async def ping(self, size: int, until: float, seconds: array[float]) -> None:
        """Do round trips until `perf_counter()` passes `until`; append times."""

    async def flood(self, size: int, until: float) -> tuple[int, int, int]:
        """Send at full rate until then: (sent, arrived, ns from the first to the last arrival)."""

    async def close(self) -> None: ...


class _Client:
    """Round trips, floods and tallies over any send and receive functions."""

    path: str | None = None
    fallback_reason: object = None

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        receive: Callable[[], Awaitable[bytes]],
        send_batch: Callable[[list[bytes]], Awaitable[None]] | None,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._send, self._receive, self._send_batch, self._close = send, receive, send_batch, close
        self._questions = itertools.count(1)

    async def ping(self, size: int, until: float, seconds: array[float]) -> None:
        send, receive, clock, message = self._send, self._receive, time.perf_counter, PING.ljust(size, b"x")
        before = clock()
        while True:
            await send(message)
            await receive()
            now = clock()
            seconds.append(now - before)
            if now >= until:
                return
            before = now

    async def flood(self, size: int, until: float) -> tuple[int, int, int]:
        message, clock = DATA.ljust(size, b"x"), time.perf_counter
        sent = 0
        if self._send_batch is not None:
            batch, send_batch = [message] * _BATCH, self._send_batch
            while clock() < until:
                await send_batch(batch)
                sent += _BATCH
        else:
            send = self._send
            while clock() < until:
                for _ in range(_BATCH):
                    await send(message)
                sent += _BATCH
        arrived, ns = await self._tally(size)
        return sent, arrived, ns

    async def _tally(self, size: int) -> tuple[int, int]:
        number = next(self._questions)
        question = (TALLY + number.to_bytes(8, "little")).ljust(max(size, 9), b"x")
        while True:
            await self._send(question)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    while True:
                        answer = await self._receive()
                        if answer[:1] == TALLY:
                            _, asked, arrived, ns = _REPLY.unpack(answer)
                            if asked == number:
                                return arrived, ns

    async def close(self) -> None:
        await self._close()


# -- aiordma, connected


class _Connected:
    def __init__(self, *, batches: bool) -> None:
        self._batches = batches

    async def serve(self, ready: Callable[[str], None]) -> None:
        import aiordma

        async def serve_one(connection: aiordma.DatagramConnection) -> None:
            async with connection:
                tally = Tally()
                with contextlib.suppress(Exception):
                    while True:
                        messages = (
                            await connection.receive_many(_BATCH)
                            if self._batches
                            else [await connection.receive()]
                        )
                        for answer in tally.take(messages):
                            await connection.send(answer)

        listener = await aiordma.listen_datagram("127.0.0.1")
        ready(str(listener.port))
        await listener.serve(serve_one)

    async def connect(self, address: str) -> _Client:
        import aiordma

        connection = await aiordma.connect_datagram("127.0.0.1", int(address))
        batch = connection.send_many if self._batches else None
        client = _Client(connection.send, connection.receive, batch, connection.aclose)
        client.path, client.fallback_reason = connection.path, connection.fallback_reason
        return client


# -- aiordma, without connections


class _Endpoints:
    async def serve(self, ready: Callable[[str], None]) -> None:
        import aiordma

        async with await aiordma.open_datagram_endpoint(("127.0.0.1", 0)) as endpoint:
            ready(str(endpoint.local_address[1]))
            tally = Tally()
            while True:
                items = await endpoint.receive_many(_BATCH)
                for answer in tally.take([data for data, _ in items]):
                    await endpoint.send((answer, items[-1][1]))

    async def connect(self, address: str) -> _Client:
        import aiordma

        endpoint = await aiordma.open_datagram_endpoint(("127.0.0.1", 0))
        peer = "127.0.0.1", int(address)
        path = await endpoint.resolve(peer)

        async def send(data: bytes) -> None:
            await endpoint.send((data, peer))

        async def receive() -> bytes:
            return (await endpoint.receive())[0]

        client = _Client(send, receive, None, endpoint.aclose)
        client.path, client.fallback_reason = path, endpoint.reason_for(peer)
        return client


# -- asyncio's protocols, on aiordma and UDP


class _Protocol(asyncio.DatagramProtocol):
    """Both ends: the server's replies, the client's queue; and back-pressure if supported."""

    def __init__(self, serving: bool) -> None:
        self._tally = Tally() if serving else None
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if self._tally is None:
            self._queue.put_nowait(data)
        else:
            for answer in self._tally.take((data,)):
                self.transport.sendto(answer, addr)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def client(self) -> _Client:
        async def send(data: bytes) -> None:
            self.transport.sendto(data)

        async def send_batch(batch: list[bytes]) -> None:
            sendto = self.transport.sendto
            for data in batch:
                sendto(data)
            if not self._may_write.is_set():
                await self._may_write.wait()
            await asyncio.sleep(0)

        async def close() -> None:
            self.transport.close()

        made = _Client(send, self._queue.get, send_batch, close)
        made.path = self.transport.get_extra_info("aiordma.path")
        made.fallback_reason = self.transport.get_extra_info("aiordma.fallback_reason")
        return made


class _Udp:
    async def serve(self, ready: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Protocol(True), local_addr=("127.0.0.1", 0)
        )
        ready(str(transport.get_extra_info("sockname")[1]))
        await asyncio.Event().wait()

    async def connect(self, address: str) -> _Client:
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_datagram_endpoint(
            lambda: _Protocol(False), remote_addr=("127.0.0.1", int(address))
        )
        return protocol.client()


class _ConnectedProtocols:
    async def serve(self, ready: Callable[[str], None]) -> None:
        import aiordma

        server = await aiordma.create_datagram_server(lambda: _Protocol(True), "127.0.0.1")
        ready(str(server.sockets[0].getsockname()[1]))
        await server.serve_forever()

    async def connect(self, address: str) -> _Client:
        import aiordma

        _, protocol = await aiordma.create_datagram_connection(
            lambda: _Protocol(False), "127.0.0.1", int(address)
        )
        return protocol.client()


def connected() -> _Connected:
    return _Connected(batches=False)


def connected_batches() -> _Connected:
    return _Connected(batches=True)


def connected_protocols() -> _ConnectedProtocols:
    return _ConnectedProtocols()


def endpoints() -> _Endpoints:
    return _Endpoints()


def udp() -> _Udp:
    return _Udp()
