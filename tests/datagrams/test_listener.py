"""Peers that a datagram listener accepts, and the errors that the others receive."""

from __future__ import annotations

import contextlib
import socket

import anyio
import pytest

import aiordma
from aiordma.config import Config
from aiordma.errors import Code, NegotiationError
from aiordma.proto.record import greeting
from tests.health import until

from .pairs import LOCAL, receive_on
from .roles import echo

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("mode", ["rdma", "tcp", "auto"])
async def test_serve(mode: str) -> None:
    async with await aiordma.listen_datagram(LOCAL, mode=mode) as listener:  # type: ignore[arg-type]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            async with await aiordma.connect_datagram(LOCAL, listener.port) as connection:
                assert connection.path == ("tcp" if mode == "tcp" else "rdma")
                assert (connection.fallback_reason is not None) == (mode == "tcp")
                await connection.send(b"hello")
                assert await connection.receive() == b"hello"
            tasks.cancel_scope.cancel()
        assert "DatagramListener" in repr(listener)


@pytest.mark.parametrize("mode", ["rdma", "auto"])
async def test_streams_and_datagrams_do_not_meet(mode: str) -> None:
    async with await aiordma.listen_datagram(LOCAL) as datagrams, await aiordma.listen(LOCAL) as streams:
        for refused in (
            lambda: aiordma.connect(LOCAL, datagrams.port, mode=mode),  # type: ignore[arg-type]
            lambda: aiordma.connect_datagram(LOCAL, streams.port, mode=mode),  # type: ignore[arg-type]
        ):
            with pytest.raises(NegotiationError) as caught:
                await refused()
            assert caught.value.code == Code.WRONG_KIND


async def test_a_stream_server_on_tcp_is_found_out() -> None:
    async def serve(stream: aiordma.RdmaStream) -> None:
        async with stream:
            await stream.send(b"220 hello, this is mail\r\n")

    async with await aiordma.listen(LOCAL, mode="tcp") as streams, anyio.create_task_group() as tasks:
        tasks.start_soon(streams.serve, serve)
        with pytest.raises(NegotiationError, match="220 hell") as caught:
            await aiordma.connect_datagram(LOCAL, streams.port, mode="tcp")
        assert caught.value.code == Code.PROTOCOL_VIOLATION
        tasks.cancel_scope.cancel()


async def test_a_silent_or_closing_server_is_no_datagram_server() -> None:
    with socket.create_server((LOCAL, 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(NegotiationError, match="within 50 ms"):
            await aiordma.connect_datagram(LOCAL, port, mode="tcp", config=Config(negotiate_timeout_ms=50))

        async def close() -> None:
            listening.setblocking(False)
            for _ in range(2):  # the first connection is that of above
                await anyio.wait_readable(listening)
                listening.accept()[0].close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(close)
            with pytest.raises(OSError, match=r"closed|inside its greeting"):
                await aiordma.connect_datagram(LOCAL, port, mode="tcp")


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"aiodgrm\x02" + bytes(4),
        greeting(16),
        b"aiod",
        b"\xe2\xd4\xc3\xd9" * 5,
        b"",
    ],
)
async def test_strangers_are_turned_away(garbage: bytes) -> None:
    config = Config(server_first_wait_ms=0)
    async with await aiordma.listen_datagram(LOCAL, config=config) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            async with await anyio.connect_tcp(LOCAL, listener.port) as stream:
                await stream.send(garbage)
                # It may be refused before it has finished.
                with contextlib.suppress(anyio.BrokenResourceError, OSError):
                    await stream.send_eof()
                await until(lambda: listener.statistics().failed == 1, listener.statistics)
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await receive_on(stream)
            async with await aiordma.connect_datagram(LOCAL, listener.port) as connection:
                await connection.send(b"next")
                assert await connection.receive() == b"next"
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("record", [b"\x7f\xff\xff\xff", b"\x00\x04\x00\x00", b"\x00\x00\x00\x09short"])
async def test_false_records_on_tcp(record: bytes) -> None:
    errors: list[BaseException | None] = []

    async def serve(connection: aiordma.DatagramConnection) -> None:
        async with connection:
            try:
                assert await connection.receive_many() == [b"ok"]
                await connection.receive()
            except anyio.BrokenResourceError as error:
                errors.append(error.__cause__)
                with pytest.raises(anyio.BrokenResourceError):
                    await connection.send(b"")
                with pytest.raises(anyio.BrokenResourceError):
                    await connection.receive_many()

    async with await aiordma.listen_datagram(LOCAL, mode="tcp") as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            async with await anyio.connect_tcp(LOCAL, listener.port) as stream:
                await stream.send(greeting(70_000) + b"\x00\x00\x00\x02ok" + record)
                with contextlib.suppress(anyio.BrokenResourceError, OSError):
                    await stream.send_eof()
                await until(lambda: len(errors) == 1)
            tasks.cancel_scope.cancel()
    assert isinstance(errors[0], aiordma.RemoteProtocolError)
    assert "message" in str(errors[0])


async def test_limits_are_each_ends_own() -> None:
    """On TCP too, a message is as large as the receiver agreed to."""
    async with await aiordma.listen_datagram(LOCAL, config=Config(ring_bytes=16384)) as listener:
        for mode in ("rdma", "tcp"):
            client = await aiordma.connect_datagram(LOCAL, listener.port, mode=mode)
            server = await listener.accept()
            assert client.max_message_bytes == 16380
            await client.aclose()
            await server.aclose()
