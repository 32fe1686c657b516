"""A server of HTTP/1.1 with a single page, on any event loop, by RDMA and TCP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.negotiation import peer_cache
from tests import patient
from tests.roles import LOCAL
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The device of the tests, and no memory of servers that were there before."""
    monkeypatch.setenv("AIORDMA_DEVICE", DEVICE)
    peer_cache.forget()
    yield
    peer_cache.forget()


async def answer(stream: anyio.abc.ByteStream) -> None:
    """Requests of a client, each with its path's page; ``/last`` is followed by the end."""
    async with stream:
        head = b""
        while True:
            while b"\r\n\r\n" not in head:
                try:
                    head += await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return
            request, head = head.split(b"\r\n\r\n", 1)
            page = request.split()[1]
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page))
            if page == b"/last":
                return


@pytest.fixture
def silent_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain server says nothing to what is no request. Its client waits as long as it does for users, since
    the libraries' own times for a connection are short."""
    patient.as_for_users(monkeypatch)


@pytest.fixture
async def pages(anyio_backend: Any) -> AsyncIterator[str]:
    """Where the server of aiordma is."""
    async with await aiordma.listen(LOCAL, 0) as listener, anyio.create_task_group() as tasks:
        await tasks.start(_serve, listener)
        yield f"http://{LOCAL}:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        tasks.cancel_scope.cancel()


@pytest.fixture
async def plain_pages(anyio_backend: Any, silent_servers: None) -> AsyncIterator[str]:
    """The same without aiordma."""
    listener = await anyio.create_tcp_listener(local_host=LOCAL)
    async with listener, anyio.create_task_group() as tasks:
        await tasks.start(_serve, listener)
        yield f"http://{LOCAL}:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        tasks.cancel_scope.cancel()


async def _serve(listener: Any, *, task_status: Any) -> None:
    task_status.started()
    await listener.serve(answer)
