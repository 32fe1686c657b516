"""What programs forget is found in a bounded time, named, counted, and reclaimed where the library owns
it."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma import rpc
from aiordma.channels import channel
from aiordma.observe import leaks
from aiordma.wake import origin
from tests.health import until
from tests.processes import process
from tests.roles import LOCAL, echo
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.observe.leaks import Kind, Leak

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

CONFIG = aiordma.Config(device=DEVICE, leak_after_ms=100, leak_frames=4)


@pytest.fixture(autouse=True)
def fresh_ledger() -> Iterator[None]:
    """Earlier tests of this process have leaked, too, on purpose."""
    leaks.reset()
    yield
    leaks.reset()
    origin.record(0)


def found(kind: Kind) -> list[Leak]:
    return [leak for leak in leaks.open_leaks() if leak.kind == kind]


def is_here(leak: Leak) -> bool:
    return any("test_leaks.py" in frame for frame in leak.where)


async def held(listener: aiordma.RdmaListener) -> None:
    """The servers' ends, which a task waits for."""

    async def wait(stream: aiordma.RdmaStream) -> None:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                await stream.receive()

    await listener.serve(wait)


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_a_stream_that_nobody_uses(mode: aiordma.Mode) -> None:
    async with (
        await aiordma.listen(LOCAL, config=CONFIG) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(held, listener)
        # The timer belongs to the loop, which begins it when it opens its device.
        async with await aiordma.connect(LOCAL, listener.port, config=CONFIG, mode=mode) as stream:
            await until(lambda: len(found("idle")) == 1)
            (leak,) = found("idle")
            assert f"127.0.0.1:{listener.port}" in leak.what
            assert is_here(leak)
            assert (leak.lasted_s >= 0.1, leak.reclaimed) == (True, False)
            assert (leak.held_bytes > 0) == (mode == "rdma")
            assert leaks.counts()["idle"] == 1
            # Used again, it is none any more.
            await stream.send(b"x")
            await until(lambda: not found("idle") or found("idle")[0] is not leak)
            assert leak in leaks.recent()
        tasks.cancel_scope.cancel()
    await until(lambda: not leaks.open_leaks())


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_a_datagram_connection_that_nobody_uses(mode: aiordma.Mode) -> None:
    async with (
        await aiordma.listen_datagram(LOCAL, config=CONFIG) as listener,
        await aiordma.connect_datagram(LOCAL, listener.port, config=CONFIG, mode=mode) as connection,
        await listener.accept(),
    ):
        # Both ends are idle.
        await until(lambda: len(found("idle")) == 2)
        (leak,) = [leak for leak in found("idle") if leak.what == repr(connection)]
        assert is_here(leak)
        assert [leak.held_bytes > 0 for leak in found("idle")] == [mode == "rdma"] * 2
    await until(lambda: not leaks.open_leaks())


@pytest.mark.anyio
async def test_a_stream_that_a_task_waits_for_is_none() -> None:
    async with (
        await aiordma.listen(LOCAL, config=CONFIG) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(held, listener)
        async with await aiordma.connect(LOCAL, listener.port, config=CONFIG) as waited:
            tasks.start_soon(waited.receive)
            async with await aiordma.connect(LOCAL, listener.port, config=CONFIG) as other:
                # By the time at which the other one is found, this one was looked at as often. On a busy
                # machine, it was perhaps found before the task began to wait.
                await until(lambda: [repr(other)] == [leak.what for leak in found("idle")])
                tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_stream_that_is_dropped_is_closed() -> None:
    async with (
        await aiordma.listen(LOCAL, config=CONFIG) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(held, listener)
        stream = await aiordma.connect(LOCAL, listener.port, config=CONFIG)
        text = repr(stream)
        with pytest.warns(ResourceWarning, match="unclosed <RdmaStream"):  # noqa: PT031
            del stream
            await until(lambda: gc.collect() >= 0 and leaks.counts()["dropped"] == 1)
        (leak,) = leaks.recent()
        assert (leak.kind, leak.what, leak.reclaimed) == ("dropped", text, True)
        assert is_here(leak)
        assert leaks.counts()["dropped"] == 1
        await until(lambda: listener.statistics().serving == 0)  # it has seen the end
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_client_and_a_listener_that_are_dropped() -> None:
    service = rpc.Service("test")
    async with rpc.serve(service, LOCAL, 0, config=CONFIG) as server:
        context = rpc.connect(LOCAL, server.port, config=CONFIG)
        client = await context.__aenter__()
        listener = await aiordma.listen(LOCAL, config=CONFIG)
        with pytest.warns(ResourceWarning):  # noqa: PT031
            del listener
            gc.collect()
        assert [leak.what.split()[0] for leak in leaks.recent()] == ["<RdmaListener"]
        assert is_here(leaks.recent()[0])
        await context.__aexit__(None, None, None)
        del client
        gc.collect()
        assert len(leaks.recent()) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("listen", [aiordma.listen, aiordma.listen_datagram, channel.listen])
async def test_a_listener_that_is_dropped_gives_its_port_back(listen: Any) -> None:
    listener = await listen(LOCAL, config=CONFIG)
    port = listener.port
    async with anyio.create_task_group() as group:
        group.start_soon(listener.accept)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    with pytest.warns(ResourceWarning):  # noqa: PT031
        del listener
        await until(lambda: gc.collect() >= 0 and is_free(port))


def is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind((LOCAL, port))
        except OSError:
            return False
        return True


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_a_loan_that_is_dropped_is_given_back(mode: aiordma.Mode) -> None:
    async with (
        await aiordma.listen(LOCAL, config=CONFIG) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, echo)
        async with await aiordma.connect(LOCAL, listener.port, config=CONFIG, mode=mode) as stream:
            await stream.send(b"hello")
            await stream.borrow()
            gc.collect()
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            # Nothing of it counts as received.
            assert await stream.receive() == b"hello"
            (leak,) = [each for each in leaks.recent() if each.kind == "loan"]
            assert leak.what.startswith("a loan of 5 bytes by <RdmaStream")
            assert (leak.reclaimed, is_here(leak), leaks.counts()["loan"]) == (True, True, 1)
            # One that is used as it should be is none.
            await stream.send(b"again")
            with await stream.borrow() as view:
                assert bytes(view) == b"again"[: len(view)]
            gc.collect()
            assert leaks.counts()["loan"] == 1
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_loan_that_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        await aiordma.listen(LOCAL, config=CONFIG) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, echo)
        async with await aiordma.connect(LOCAL, listener.port, config=CONFIG, mode="rdma") as stream:
            await stream.send(b"hello")
            with caplog.at_level(logging.WARNING, "aiordma.leaks"), await stream.borrow() as view:
                await until(lambda: bool(found("loan")))
                assert bytes(view) == b"hello"
            (leak,) = [each for each in [*leaks.open_leaks(), *leaks.recent()] if each.kind == "loan"]
            assert leak.what == repr(stream)
            assert f"leak (loan): {stream!r}, for " in caplog.text
            await until(lambda: not found("loan"))
        tasks.cancel_scope.cancel()


service = rpc.Service("test")


@service.method
async def give(size: int) -> bytes:
    return bytes(size)


@pytest.mark.anyio
async def test_a_view_that_is_kept_and_outlives_its_peer() -> None:
    config = aiordma.Config(device=DEVICE, leak_after_ms=100)
    async with rpc.serve(service, LOCAL, 0, config=config) as server:
        async with rpc.connect(LOCAL, server.port, config=config, mode="rdma") as client:
            view = await client.call("test.give", 1 << 20, returns=memoryview)
            assert view.nbytes == 1 << 20
            await until(lambda: bool(found("view")))
            (leak,) = found("view")
            assert leak.what == f"a received message of 127.0.0.1:{server.port}"
            assert leak.held_bytes >= 1 << 20
            view.release()
            del view
            await until(lambda: not found("view"))
            assert leak in leaks.recent()


@pytest.mark.skipif(DEVICE != "soft", reason="a killed process is noticed by the kernel's devices much later")
def test_memory_for_a_peer_that_was_killed() -> None:
    async def main() -> None:
        config = aiordma.Config(device=DEVICE, leak_after_ms=100, failover_timeout_ms=0)
        with process("tests.admin.roles:connected", device=DEVICE, streams=0) as other:
            port = await anyio.to_thread.run_sync(other.hear)
            stream = await aiordma.connect(LOCAL, port, config=config, mode="rdma")
            await stream.send(b"x")
            await stream.receive()
            other.kill()
            await until(lambda: bool(found("dead peer")))
            (leak,) = found("dead peer")
            assert leak.what == repr(stream)
            assert leak.held_bytes == stream.statistics().ring_bytes
            await stream.aclose()
            await until(lambda: not found("dead peer"))

    anyio.run(main)


@pytest.mark.asyncio
async def test_the_search_can_be_switched_on_and_off() -> None:
    off = aiordma.Config(device=DEVICE, leak_after_ms=0)
    async with (
        await aiordma.listen(LOCAL, config=off) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(held, listener)
        async with await aiordma.connect(LOCAL, listener.port, config=off, mode="rdma") as stream:
            assert stream.origin == ()
            aiordma.change_settings(leak_after_ms=50, leak_frames=1)
            await until(lambda: len(found("idle")) == 1)
            async with await aiordma.connect(LOCAL, listener.port, config=off) as other:
                assert len(other.origin) == 1
                assert other.origin[0][0].co_filename == __file__
            aiordma.change_settings(leak_after_ms=0)
            assert leaks.open_leaks() == []
        tasks.cancel_scope.cancel()
