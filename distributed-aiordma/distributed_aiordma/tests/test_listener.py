"""Listeners take clients at once, and make what serves them meanwhile."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
from typing import Any

import pytest
from distributed.comm import connect, listen

import aiordma

from .pairs import until

pytestmark = pytest.mark.asyncio


class SlowListen:
    """Stands in for ``aiordma.listen``, and waits before it listens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.called, self.go_on = asyncio.Event(), asyncio.Event()
        self._listen: Any = aiordma.listen
        monkeypatch.setattr(aiordma, "listen", self)

    async def __call__(self, **keywords: Any) -> Any:
        self.called.set()
        await self.go_on.wait()
        return await self._listen(**keywords)


async def echo(comm: Any) -> None:
    await comm.write(await comm.read())
    await comm.close()


async def test_clients_wait_while_the_engine_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowListen(monkeypatch)
    async with listen("rdma://127.0.0.1", echo) as listener:
        await slow.called.wait()
        connecting = asyncio.create_task(connect(listener.contact_address, timeout=30))
        done, _ = await asyncio.wait([connecting], timeout=0.05)
        assert not done
        slow.go_on.set()
        comm = await connecting
        await comm.write("hello")
        assert await comm.read() == "hello"
        assert comm.path == "rdma"
        comm.abort()


async def test_a_listener_that_stops_before_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowListen(monkeypatch)
    listener = await listen("rdma://127.0.0.1", echo)
    await slow.called.wait()
    address = listener.get_host_port()
    listener.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    with pytest.raises(ValueError, match="stopped"):
        listener.get_host_port()
    await until(lambda: not listener._tasks)
    listener.stop()  # idempotent


async def test_a_listener_that_cannot_serve_closes_its_port_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(**keywords: Any) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(aiordma, "listen", fails)
    listener = await listen("rdma://127.0.0.1", echo)
    address = listener.get_host_port()
    await until(lambda: not listener._tasks)
    assert f"Stopped listening on rdma://127.0.0.1:{address[1]}" in caplog.text
    assert "too many open files" in caplog.text
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


@pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning"
)  # tornado leaves its own to the collector
async def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on rdma://127.0.0.1:{port}") as caught:
            await listen(f"rdma://127.0.0.1:{port}", echo)
    assert caught.value.errno == errno.EADDRINUSE
    del caught
    gc.collect()
