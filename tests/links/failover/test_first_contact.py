"""A new link that fails when both ends have agreed to use it: they go on over TCP, and agree on that, too."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma import rpc
from aiordma.config import Config
from aiordma.errors import Code, LinkError, NegotiationError
from aiordma.links import engine as engines
from aiordma.links.link import Link
from aiordma.proto import llc
from tests.health import nothing_left, until
from tests.streams.pairs import negotiated_pair
from tests.tuned import tuned
from tests.world import DEVICE, SLOWER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio

LINK_MS = round(300 * SLOWER)
CONFIG = tuned(device=DEVICE, ring_bytes=16384, link_timeout_ms=LINK_MS)


@asynccontextmanager
async def world(config: Config = CONFIG) -> AsyncIterator[None]:
    """An engine with these settings, which releases everything."""
    await engines.current(config)
    async with nothing_left():
        yield


def broken(link: Link) -> None:
    link.queue_pair.break_link(LinkError("broken by the test", link.peer))


def no_request(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing arrives: both ends wait in vain."""
    monkeypatch.setattr(link, "_send_llc", lambda message: None)


def server_before_the_request(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    if link.side == "server":
        monkeypatch.setattr(link, "_send_llc", lambda message: broken(link))


def server_before_the_answer(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client uses RDMA by then."""
    if link.side == "server":
        monkeypatch.setattr(link, "on_llc", lambda data: broken(link))


def client_before_the_request(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    if link.side == "client":
        monkeypatch.setattr(link, "on_llc", lambda data: broken(link))


def client_behind_its_answer(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses RDMA for a moment, and the server has not seen the answer."""
    real = link._send_llc

    def send(message: llc.LlcMessage) -> None:
        if isinstance(message, llc.ConfirmLink) and message.response:
            link._confirmed.set()
            link.engine.waker.call_soon(lambda: broken(link))
        else:
            real(message)

    if link.side == "client":
        monkeypatch.setattr(link, "_send_llc", send)


WAYS = [
    no_request,
    server_before_the_request,
    server_before_the_answer,
    client_before_the_request,
    client_behind_its_answer,
]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Link, pytest.MonkeyPatch], None]], None]:
    """Have the links made from now on fail in this way."""

    def apply(way: Callable[[Link, pytest.MonkeyPatch], None]) -> None:
        real = Link.__init__

        def init(self: Link, *args: Any, **keywords: Any) -> None:
            real(self, *args, **keywords)
            way(self, monkeypatch)

        monkeypatch.setattr(Link, "__init__", init)

    return apply


async def both_ways(one: aiordma.RdmaStream, other: aiordma.RdmaStream) -> None:
    """What either sends arrives, and no more."""
    rng = random.Random(1)

    async def send(stream: aiordma.RdmaStream, data: bytes) -> None:
        await stream.send(data)
        await stream.send_eof()

    async def receive(stream: aiordma.RdmaStream, data: bytes) -> None:
        got = b""
        while len(got) < len(data):
            got += await stream.receive()
        assert got == data
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()

    with anyio.fail_after(20 * SLOWER):
        async with anyio.create_task_group() as tasks:
            for source, sink in ((one, other), (other, one)):
                data = rng.randbytes(200_000)
                tasks.start_soon(send, source, data)
                tasks.start_soon(receive, sink, data)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_both_ends_go_on_over_tcp(way: Any, fail: Any) -> None:
    async with world():
        fail(way)
        one, other = await negotiated_pair(config=CONFIG)
        async with one, other:
            await both_ways(one, other)
            for stream in (one, other):
                assert stream.path == "tcp"
                assert stream.fallback_reason is not None
                assert stream.fallback_reason.code == Code.LINK_LOST


@pytest.mark.parametrize("way", [no_request, server_before_the_request, client_before_the_request])
async def test_calls_go_on_over_tcp(way: Any, fail: Any) -> None:
    """A channel does not fail over. Its server declines, as long as the client has not used the link."""
    service = rpc.Service("t")

    @service.method
    async def echo(text: str) -> str:
        return text

    async with world():
        fail(way)
        async with (
            rpc.serve(service, "127.0.0.1", config=CONFIG) as server,
            rpc.connect("127.0.0.1", server.port, config=CONFIG) as client,
        ):
            assert client.path == "tcp"
            assert client.fallback_reason is not None
            assert client.fallback_reason.peer in (Code.TIMEOUT_CONFIRM_LINK, Code.DEVICE_FAILURE)
            assert await client.call("t.echo", "hello", returns=str) == "hello"


async def test_where_nothing_but_rdma_is_allowed_it_fails(fail: Any) -> None:
    async with world(), await aiordma.listen("127.0.0.1", config=CONFIG) as listener:
        fail(server_before_the_request)
        with pytest.raises(NegotiationError) as caught:
            await aiordma.connect("127.0.0.1", listener.port, config=CONFIG, mode="rdma")
        assert caught.value.code == Code.LINK_LOST
        async with await listener.accept() as stream:
            with pytest.raises(anyio.BrokenResourceError):
                await stream.receive()


async def test_where_streams_do_not_fail_over_it_fails(fail: Any) -> None:
    config = tuned(device=DEVICE, ring_bytes=16384, link_timeout_ms=LINK_MS, failover_timeout_ms=0)
    async with world(config), await aiordma.listen("127.0.0.1", config=config) as listener:
        fail(server_before_the_request)
        with pytest.raises(NegotiationError, match="while waiting for the link"):
            await aiordma.connect("127.0.0.1", listener.port, config=config)


async def test_a_client_that_gives_up_leaves_no_stream_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cancelled while it waits for the link, and closes that in order (Delete Link)."""
    config = tuned(device=DEVICE, ring_bytes=16384)
    async with world(config), await aiordma.listen("127.0.0.1", config=config) as listener:
        with anyio.CancelScope() as scope:
            real = Link.on_llc

            def on_llc(link: Link, data: bytes) -> None:
                if link.side == "client":
                    scope.cancel()
                else:
                    real(link, data)

            monkeypatch.setattr(Link, "on_llc", on_llc)
            await aiordma.connect("127.0.0.1", listener.port, config=config)
        monkeypatch.setattr(Link, "on_llc", real)
        await until(lambda: listener.statistics().failed == 1, listener.statistics)
        assert listener.statistics().waiting == 0
        async with await aiordma.connect("127.0.0.1", listener.port, config=config, mode="rdma") as stream:
            async with await listener.accept() as other:
                await stream.send(b"hello")
                assert await other.receive() == b"hello"
