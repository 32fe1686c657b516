"""channel.connect() and channel.listen(): path, fallback, TLS, the wrong kind of peer."""

from __future__ import annotations

import contextlib
import random
import ssl
from typing import Any

import anyio
import pytest
import trustme

from aiordma.channels import channel
from aiordma.config import Config
from aiordma.errors import Code, NegotiationError
from aiordma.negotiation.connect import connect_and_negotiate
from aiordma.negotiation.options import ConnectOptions
from aiordma.streams.connector import connect as connect_stream
from aiordma.streams.listener import listen as listen_stream
from tests.pipes.channel_ends import End
from tests.world import DEVICE

pytestmark = pytest.mark.anyio

LOCAL = "127.0.0.1"


CA = trustme.CA()
CERTIFICATE = CA.issue_cert("localhost")


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For the server and the client."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    CERTIFICATE.configure_cert(server)
    client = ssl.create_default_context()
    CA.configure_trust(client)
    return server, client


async def pair(
    server_config: Config,
    client_config: Config,
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    rdma_outside_tls: bool = False,
) -> tuple[channel.ConnectedChannel, channel.ConnectedChannel]:
    options: dict[str, Any] = {"rdma_outside_tls": rdma_outside_tls}
    listener = await channel.listen(LOCAL, config=server_config, ssl=tls[0] if tls else None, **options)
    async with listener:
        a = await channel.connect(
            LOCAL,
            listener.port,
            config=client_config,
            ssl=tls[1] if tls else None,
            server_hostname="localhost" if tls else None,
            **options,
        )
        return a, await listener.accept()


async def check_echo(a: channel.ConnectedChannel, b: channel.ConnectedChannel) -> None:
    rng = random.Random(4)
    sent = [rng.randbytes(size) for size in (0, 1, 64, 4096, 16_384, 16_385, 100_000, 1_500_000, 5)]
    at_a, at_b = End(a.channel), End(b.channel)

    async def feed(end: End) -> None:
        for message in sent:
            await end.send(message[:10], bytearray(message[10:]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(feed, at_a)
        tasks.start_soon(feed, at_b)
        assert await at_b.received(len(sent)) == sent
        assert await at_a.received(len(sent)) == sent
    at_a.messages.clear()
    at_b.messages.clear()
    await a.aclose()
    assert await at_b.ended() is None
    await b.aclose()


@pytest.mark.parametrize("tls", [False, True])
async def test_rdma(tls: bool) -> None:
    config = Config(device=DEVICE)
    a, b = await pair(config, config, contexts() if tls else None, rdma_outside_tls=tls)
    assert (a.path, b.path, a.fallback_reason) == ("rdma", "rdma", None)
    await check_echo(a, b)


@pytest.mark.parametrize(
    ("server_device", "client_device", "code"),
    [("none", DEVICE, Code.DISABLED), (DEVICE, "none", Code.DISABLED)],
)
async def test_fallback(server_device: str, client_device: str, code: Code) -> None:
    a, b = await pair(Config(device=server_device), Config(device=client_device))
    assert (a.path, b.path) == ("tcp", "tcp")
    assert a.fallback_reason is not None
    assert a.fallback_reason.code == code
    await check_echo(a, b)


async def test_payload_goes_through_tls() -> None:
    config = Config(device=DEVICE)
    a, b = await pair(config, config, contexts())
    assert (a.path, b.path) == ("tcp", "tcp")
    assert a.tls is not None
    await check_echo(a, b)


@pytest.mark.parametrize("device", [DEVICE, "none"])
async def test_a_stream_listener_is_no_peer(device: str) -> None:
    # Without a device nothing tells but silence. With one, the answer may take its time.
    config = Config(device=device) if device == DEVICE else Config(device=device, negotiate_timeout_ms=200)
    async with await listen_stream(LOCAL, config=config) as listener:
        with pytest.raises(NegotiationError) as caught:
            await channel.connect(LOCAL, listener.port, config=config)
        assert caught.value.code == (Code.WRONG_KIND if device == DEVICE else Code.PLAIN_TCP_PEER)


@pytest.mark.parametrize("device", [DEVICE, "none"])
async def test_strangers_are_turned_away_by_a_channel_listener(device: str) -> None:
    config = Config(device=device)
    async with await channel.listen(LOCAL, config=config) as listener:
        async with await anyio.connect_tcp(LOCAL, listener.port) as stranger:
            await stranger.send(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while (await stranger.receive())[:7] == b"aiordma":
                    pass
                pytest.fail("the stranger was served")
        if device == DEVICE:
            with pytest.raises(NegotiationError) as caught:
                await connect_stream(LOCAL, listener.port, config=config)
            assert caught.value.code == Code.WRONG_KIND
            with pytest.raises(NegotiationError):
                await connect_and_negotiate(LOCAL, listener.port, ConnectOptions.of(LOCAL, config=config), 1)
        a = await channel.connect(LOCAL, listener.port, config=config)
        await check_echo(a, await listener.accept())
        assert listener.statistics().failed == (3 if device == DEVICE else 1)
