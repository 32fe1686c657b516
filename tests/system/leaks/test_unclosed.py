"""What nobody closes: a warning names it, its memory and descriptors come back, and the peer sees its end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import warnings
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma import rpc
from aiordma.channels import channel
from tests.health import descriptors, nothing_left, until
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

LOCAL = "127.0.0.1"
WAYS: dict[str, tuple[Any, Any]] = {
    "RdmaStream": (aiordma.listen, aiordma.connect),
    "DatagramConnection": (aiordma.listen_datagram, aiordma.connect_datagram),
    "ConnectedChannel": (channel.listen, channel.connect),
}


@pytest.fixture(scope="module", autouse=True)
def _only_what_is_made_here() -> None:
    """Each collection would look through all that the tests before have left, which takes seconds."""
    gc.collect()
    gc.freeze()


def collect() -> None:
    gc.collect()


def collect_elsewhere() -> None:
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()


def dropped(drop: Callable[[], object], collecting: Callable[[], None] = collect) -> list[str]:
    """The warnings when ``drop()`` lets go of something."""
    with warnings.catch_warnings():  # of what earlier tests left
        warnings.simplefilter("ignore")
        collecting()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drop()
        collecting()
    return [str(each.message) for each in caught if each.category is ResourceWarning]


async def sees_the_end(kind: str, peer: Any) -> None:
    with anyio.fail_after(60):
        if kind == "ConnectedChannel":
            ended = anyio.Event()
            peer.channel.on_closed = lambda _: ended.set()
            peer.channel.on_message = lambda _: None
            await ended.wait()
        else:
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await peer.receive()
    await peer.aclose()


@pytest.mark.parametrize("collecting", [collect, collect_elsewhere])
@pytest.mark.parametrize("mode", ["rdma", "tcp"])
@pytest.mark.parametrize("kind", WAYS)
async def test_a_connection(kind: str, mode: str, collecting: Callable[[], None]) -> None:
    listen, connect = WAYS[kind]
    async with nothing_left(), await listen(LOCAL, 0) as listener:
        for _ in range(3):
            # In a cycle, so that it is the collector that finds it.
            holder: list[Any] = [await connect(LOCAL, listener.port, mode=mode)]
            holder.append(holder)
            peer = await listener.accept()
            if kind != "ConnectedChannel":
                await holder[0].send(b"before")
                assert await peer.receive() == b"before"
            (text,) = dropped(holder.clear, collecting)
            assert text.startswith(f"unclosed <{kind} {mode} {LOCAL}:")
            assert f"- {LOCAL}:{listener.port}" in text
            await sees_the_end(kind, peer)


async def test_the_warning_has_its_source() -> None:
    """With it and tracemalloc, Python says where the stream was made (before 3.12: not of plain classes)."""
    async with await aiordma.listen(LOCAL, 0) as listener:
        holder = [await aiordma.connect(LOCAL, listener.port)]
        async with await listener.accept():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                holder.clear()
        assert isinstance(caught[0].source, aiordma.RdmaStream)


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_a_listener(mode: Any) -> None:
    async with nothing_left():
        holder: list[Any] = [await aiordma.listen(LOCAL, 0, mode=mode)]
        port = holder[0].port
        unaccepted = await aiordma.connect(LOCAL, port, mode=mode)
        await until(lambda: holder[0].statistics().waiting == 1)
        await anyio.sleep(0.05)  # the task that made the stream ends, which holds the listener
        assert dropped(holder.clear) == [f"unclosed <RdmaListener {LOCAL}:{port}>"]
        await sees_the_end("RdmaStream", unaccepted)
        with pytest.raises(ConnectionRefusedError):
            await aiordma.connect(LOCAL, port, mode=mode)


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_a_client_of_calls(mode: Any) -> None:
    async with nothing_left(), rpc.serve(rpc.Service("s"), LOCAL, 0) as server:
        connected = await channel.connect(LOCAL, server.port, mode=mode)
        connection = await rpc.connection.Connection.open(connected.detach(), "peer")
        holder: list[Any] = [rpc.Client(connection), connected]
        del connection, connected
        await until(lambda: server.statistics().connections == 1)
        (text,) = dropped(holder.clear)
        assert text.startswith(f"unclosed <Client of peer on {mode}")
        await until(lambda: server.statistics().connections == 0)


async def test_many_streams_that_nobody_closes() -> None:
    """More than a ring's share of memory, and more than there are rings to grant in advance."""
    async with nothing_left() as engine, await aiordma.listen(LOCAL, 0) as listener:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            counts = []
            for number in range(200):
                for open_end in (aiordma.connect(LOCAL, listener.port, mode="rdma"), listener.accept()):
                    await open_end
                if number % 100 == 99:
                    gc.collect()
                    await until(lambda: not any(group.members for group in engine.all_groups))
                    counts.append((len(descriptors()), engine.pool.used_bytes))
        assert counts[0] == counts[1]


PROGRAM = """
    import sys, threading, anyio, aiordma
    kept = []
    async def main():
        listener = await aiordma.listen("127.0.0.1", 0)
        for mode in ("rdma", "tcp"):
            kept.append(await aiordma.connect("127.0.0.1", listener.port, mode=mode))
            kept.append(await listener.accept())
        kept.append(listener)
    anyio.run(main, backend=sys.argv[1], backend_options={"use_uvloop": True} if sys.argv[2:] else {})
    print("ends", flush=True)
"""


@pytest.mark.parametrize("loop", [("asyncio",), ("asyncio", "uvloop"), ("trio",)])
def test_at_the_end_of_the_interpreter(loop: tuple[str, ...]) -> None:
    environment = {**os.environ, "AIORDMA_DEVICE": DEVICE, "PYTHONWARNINGS": "always::ResourceWarning"}
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), *loop],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "ends\n"), ran.stderr
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr
    assert ran.stderr.count("unclosed <RdmaStream rdma") == 2
    assert ran.stderr.count("unclosed <RdmaStream tcp") == 2
    assert ran.stderr.count("unclosed <RdmaListener") == 1
