"""Streams by Valkey's RDMA protocol, to a model of the server: data, receives, cancellation, the end."""

from __future__ import annotations

import errno
import os
import random
from typing import Any

import anyio
import pytest

import aiordma.valkey
from aiordma.admin.messages import Connections
from aiordma.admin.requests import Close, Show
from aiordma.config import Config
from aiordma.links.engine import current
from tests.admin.looking import ask_one, rows
from tests.health import descriptors
from tests.processes import PATIENCE
from tests.roles import LOCAL
from tests.virtual import in_virtual_time, while_time_stands_still
from tests.world import needs_pyverbs

from .conftest import connected
from .model import Gone, ModelServer

pytestmark = [pytest.mark.anyio, needs_pyverbs]


async def test_request_and_answer(server: ModelServer) -> None:
    stream = await connected(server)
    async with stream:
        await stream.send(b"PING\r\n")
        with anyio.fail_after(PATIENCE):
            assert await server.receive() == b"PING\r\n"
            server.write(b"+PONG\r\n")
            assert await stream.receive() == b"+PONG\r\n"
        assert stream.path == "rdma"
        assert stream.fallback_reason is None
        assert stream.extra(anyio.abc.SocketAttribute.remote_port) == server.port
        counts = stream.statistics()
        assert (counts.bytes_sent, counts.bytes_received, counts.writes) == (6, 7, 1)
        assert (counts.registrations_sent, counts.registrations_received) == (1, 1)


async def test_it_is_seen_from_outside(server: ModelServer) -> None:
    """`aiordma stat` lists it while it is there, and `aiordma adm close` says why it does not close it."""

    async def ask(request: Any) -> Any:
        return await anyio.to_thread.run_sync(ask_one, os.getpid(), request)

    show = Show(("connections",))
    async with await connected(server) as stream:
        await stream.send(b"PING\r\n")
        with anyio.fail_after(PATIENCE):
            await server.receive()
        (row,) = rows(await ask(show), Connections)
        assert (row.kind, row.side, row.state, row.path) == ("valkey", "client", "active", "rdma")
        assert row.remote == f"{LOCAL}:{server.port}"
        assert (row.bytes_sent, row.bytes_received, row.ring_bytes) == (6, 0, 2 * 4096)
        assert row.qp_num > 0
        assert 0 <= row.idle_s <= row.age_s < PATIENCE
        refused = await ask(Close((row.number,)))
        assert "valkey-server" in f"{refused.parts} {refused.text}"
        assert not stream.closed
    with anyio.fail_after(PATIENCE):
        while rows(await ask(show), Connections):
            pass  # each question takes its time


async def end_of_turn() -> None:
    """The engine has posted what was sent."""
    for _ in range(2):
        await anyio.lowlevel.checkpoint()


@while_time_stands_still
async def test_what_is_written_in_one_turn_goes_in_one_write(server: ModelServer) -> None:
    """A pipeline of small commands costs the server one receive, and a large piece stays behind them."""
    stream = await connected(server)
    async with stream:
        for number in range(64):
            assert stream.send_nowait(b"PING %02d\r\n" % number) == 9
        await end_of_turn()
        writes = stream.statistics().writes
        # Where time goes on, what waits for 100 us in a long turn is posted before its end.
        assert writes == 1
        with anyio.fail_after(PATIENCE):
            got = b""
            while len(got) < 64 * 9:
                got += await server.receive()
            assert got == b"".join(b"PING %02d\r\n" % number for number in range(64))
        assert stream.send_nowait(b"small") == 5
        assert stream.send_nowait(b"L" * 2000) == 2000
        assert stream.statistics().writes == writes + 2
        with anyio.fail_after(PATIENCE):
            assert await server.receive() == b"small"
            assert await server.receive() == b"L" * 2000


async def test_what_was_put_off_goes_before_the_stream_waits_or_closes(server: ModelServer) -> None:
    stream = await connected(server)
    async with stream:
        await stream.send(b"PING\r\n")
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.receive)
                assert await server.receive() == b"PING\r\n"
                server.write(b"+PONG\r\n")
        assert stream.send_nowait(b"last") == 4
    with anyio.fail_after(PATIENCE):
        assert await server.receive() == b"last"


@pytest.mark.parametrize("most", [1, 100, 4096])
async def test_a_long_transfer_in_both_directions(server: ModelServer, most: int) -> None:
    """Across the ends of buffers, in pieces of random sizes; single bytes go past the server's receives."""
    rng = random.Random(most)
    total = 5_000 if most == 1 else 60_000
    there, back = rng.randbytes(total), rng.randbytes(total)
    stream = await connected(server)
    got, answer = bytearray(), bytearray()

    async def send() -> None:
        at = 0
        while at < total:
            step = rng.randrange(1, most + 1)
            await stream.send(there[at : at + step])
            at += step
            if most == 1:
                await end_of_turn()  # else they would go together

    async def serve() -> None:
        """In one task, as a server: the completions are in one queue."""
        at = 0
        while len(got) < total or at < total:
            found = server.look()
            if found is not None and found[0] == "data":
                got.extend(found[1])
                if server.filled == server.size:
                    server.register()
            elif found is not None and found[1][:2] == b"\0\0":
                server.command(bytes(32))
            if at < total and server.room:
                step = min(server.room, rng.randrange(1, most + 1), total - at)
                server.write(back[at : at + step])
                at += step
            await anyio.lowlevel.checkpoint()

    async def receive() -> None:
        while len(answer) < total:
            answer.extend(await stream.receive(rng.randrange(1, 3000)))

    with anyio.fail_after(PATIENCE):
        async with stream, anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            tasks.start_soon(serve)
            tasks.start_soon(receive)
    assert got == there
    assert answer == back
    counts = stream.statistics()
    assert counts.registrations_received >= total // 4096
    assert (counts.queries > 0) == (most == 1)


@in_virtual_time
async def test_a_slow_reader_is_two_buffers_ahead(server: ModelServer) -> None:
    """The second buffer is registered while the first one is still unread, the third only after it."""
    stream = await connected(server)
    async with stream:
        with anyio.fail_after(PATIENCE):
            server.write(b"a" * 4096)
            await server.expect(3)
            server.write(b"b" * 4096)
            await anyio.sleep(10)
            assert server.look() is None
            assert stream.statistics().registrations_sent == 2
            assert await stream.receive(5000) == b"a" * 4096 + b"b" * 904
            await server.expect(3)
            assert await stream.receive_exactly(3192) == b"b" * 3192


async def test_the_sender_waits_for_the_buffer(server: ModelServer) -> None:
    """Nothing is written that the server has no room for, and a cancelled send leaves the stream usable."""
    stream = await connected(server)
    async with stream:
        with anyio.move_on_after(0.01) as scope:
            await stream.send(b"x" * 5000)
        assert scope.cancelled_caught
        with pytest.raises(anyio.WouldBlock):
            stream.send_nowait(b"y")
        with anyio.fail_after(PATIENCE):
            assert b"".join([await server.receive()]) == b"x" * 4096
            await stream.send(b"rest")
            assert await server.receive() == b"rest"
        assert stream.statistics().times_blocked


async def test_a_server_that_takes_nothing_keeps_its_receives(server: ModelServer) -> None:
    """One that computes for long does not lose the connection for want of receives."""
    server.size = 4096
    stream = await connected(server)
    async with stream:
        sent = refused = 0
        while refused < 50:
            try:
                sent += stream.send_nowait(b"z")
                refused = 0
            except anyio.WouldBlock:
                refused += 1
            await end_of_turn()  # else they would go together; and the completions of what was sent
        assert 900 < sent < 1024
        with anyio.fail_after(PATIENCE):
            got = 0
            while got < sent:
                got += len(await server.receive())
            while not stream._pipe.writable:
                await anyio.lowlevel.checkpoint()
            assert stream.send_nowait(b"z") == 1
            assert await server.receive() == b"z"


async def test_cancelled_receive_takes_nothing(server: ModelServer) -> None:
    stream = await connected(server)
    async with stream:
        with anyio.move_on_after(0.01) as scope:
            await stream.receive()
        assert scope.cancelled_caught
        server.write(b"late")
        with anyio.fail_after(PATIENCE):
            assert await stream.receive() == b"late"


async def test_the_server_closes(server: ModelServer) -> None:
    stream = await connected(server)
    async with stream:
        server.write(b"last words")
        server.hang_up()
        with anyio.fail_after(PATIENCE):
            assert await stream.receive() == b"last words"
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
            with pytest.raises(anyio.BrokenResourceError, match="the server has closed"):
                await stream.send(b"too late")


async def test_a_sender_that_waits_learns_of_the_end(server: ModelServer) -> None:
    stream = await connected(server)

    async def hang_up() -> None:
        await server.receive()
        server.hang_up()

    async with stream:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hang_up)
                with pytest.raises(anyio.BrokenResourceError):
                    await stream.send(b"x" * 9000)


async def test_what_was_sent_before_the_close_arrives(server: ModelServer) -> None:
    for _ in range(20):
        stream = await connected(server)
        await stream.send(b"PUBLISH")
        await stream.aclose()
        with anyio.fail_after(PATIENCE):
            assert await server.receive() == b"PUBLISH"
            with pytest.raises(Gone):
                await server.receive()
        server.forget()
        server._gone = False


async def test_abort(server: ModelServer) -> None:
    stream = await connected(server)
    stream.abort()
    with anyio.fail_after(PATIENCE):
        with pytest.raises(Gone):
            await server.receive()
    with pytest.raises(anyio.ClosedResourceError):
        await stream.receive()


async def test_closing_gives_everything_back(server: ModelServer) -> None:
    """Memory, files, and room in the completion queue: 200 connections one after another."""
    engine = await current()
    for number in range(200):
        stream = await connected(server)
        if number % 2:
            await stream.aclose()
        else:
            await anyio.aclose_forcefully(stream)
        with anyio.fail_after(PATIENCE):
            with pytest.raises(Gone):
                await server.receive()
        server.forget()
        server._gone = False
        if number == 10:
            before = len(descriptors()), engine.statistics()["memory"]["registered_bytes"]
    after = len(descriptors()), engine.statistics()["memory"]["registered_bytes"]
    assert after[0] <= before[0] + 2
    assert after[1] == before[1]
    assert not engine.users


# ---- connecting


async def test_nothing_listens() -> None:
    with anyio.fail_after(PATIENCE):
        with pytest.raises(ConnectionRefusedError, match=r"nothing listens there by RDMA.*--rdma-port"):
            await aiordma.valkey.connect(LOCAL, 1)


async def test_a_server_that_refuses(server: ModelServer) -> None:
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.refuse)
            with pytest.raises(OSError, match="REJECTED") as caught:
                await aiordma.valkey.connect(LOCAL, server.port)
    assert caught.value.errno == errno.ECONNREFUSED


@in_virtual_time
async def test_a_server_that_does_not_register(server: ModelServer) -> None:
    """Not in time; and the attempt leaves nothing behind."""
    engine = await current()

    async def accept() -> None:
        await server.accept(registers=False)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(accept)
            with pytest.raises(OSError, match="no answer within 200 ms"):
                await aiordma.valkey.connect(LOCAL, server.port, config=Config(negotiate_timeout_ms=200))
    assert not engine.users


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_cancelled_while_connecting(server: ModelServer, turns: int) -> None:
    engine = await current()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(aiordma.valkey.connect, LOCAL, server.port)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert not engine.users


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"port": 70000}, "from 0 to 65535"),
        ({"buffer_bytes": 5000}, "power of two from 4096"),
        ({"buffer_bytes": 1 << 30}, "power of two"),
    ],
)
async def test_wrong_arguments(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        await aiordma.valkey.connect(**{"host": LOCAL, "port": 1, **arguments})


# ---- keepalive


async def test_a_silent_server_is_asked(server: ModelServer) -> None:
    stream = await connected(server, config=Config())
    async with stream:
        with anyio.fail_after(PATIENCE):
            server.command(b"\0\2" + bytes(30))  # a server's own keepalive is no news
            pipe: Any = stream._pipe
            pipe.keepalive()
            await server.expect(2)
        assert stream.statistics().bytes_received == 0
