"""asyncio's datagram transports and protocols on aiordma's datagrams."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import anyio
import pytest

import aiordma
import aiordma.compat.datagram
from aiordma.compat import flow
from aiordma.compat.datagram import MessageTransport
from aiordma.datagrams.endpoint import open_datagram_endpoint
from aiordma.errors import Code, NegotiationError
from aiordma.links import engine as engines
from tests.health import until

pytestmark = pytest.mark.anyio

LOCAL = "127.0.0.1"
PATHS = {"rdma": "rdma", "tcp": "tcp"}


class Recorder(asyncio.DatagramProtocol):
    """Every callback in order."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.received: list[bytes] = []
        self.senders: set[Any] = set()
        self.transport: Any = None
        self.errors: list[Exception] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._news = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        assert not self.events
        self.transport = transport
        self.events.append("made")

    def datagram_received(self, data: bytes, addr: Any) -> None:
        assert asyncio.current_task() is None
        self.received.append(data)
        self.senders.add(addr)
        self._news.set()

    def error_received(self, exc: Exception) -> None:
        self.errors.append(exc)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.lost.set_result(exc)

    async def have(self, count: int) -> list[bytes]:
        while len(self.received) < count:
            self._news.clear()
            await self._news.wait()
        return self.received


class Echo(Recorder):
    def datagram_received(self, data: bytes, addr: Any) -> None:
        super().datagram_received(data, addr)
        self.transport.sendto(data, addr)


async def connected(mode: str, server_protocol: type[Recorder] = Recorder) -> tuple[Any, Any, Any]:
    """A client's and a server's protocol, and the server."""
    made: list[Recorder] = []

    def factory() -> Recorder:
        made.append(server_protocol())
        return made[-1]

    server = await aiordma.create_datagram_server(factory, LOCAL, mode=mode)  # type: ignore[arg-type]
    port = server.sockets[0].getsockname()[1]
    _, client = await aiordma.create_datagram_connection(Recorder, LOCAL, port, mode=mode)  # type: ignore[arg-type]
    while not (made and made[0].transport):  # noqa: ASYNC110
        await asyncio.sleep(0)
    return client, made[0], server


async def end(client: Recorder, other: Recorder, server: Any) -> None:
    client.transport.close()
    assert await client.lost is None
    await other.lost
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("mode", PATHS)
async def test_a_connection(mode: str) -> None:
    client, other, server = await connected(mode, Echo)
    assert isinstance(client.transport, asyncio.DatagramTransport)
    sent = [b"%d" % number * (number % 50) for number in range(2000)]
    for data in sent:
        client.transport.sendto(data)
    client.transport.sendto(bytearray(b"mutable"), other.transport.get_extra_info("sockname"))
    assert await client.have(2001) == [*sent, b"mutable"]
    assert other.received == client.received
    assert other.senders == {client.transport.get_extra_info("sockname")}
    info = client.transport.get_extra_info
    assert info("aiordma.path") == PATHS[mode]
    assert (info("aiordma.fallback_reason") is None) == (mode == "rdma")
    assert str(info("peername")[1]) in repr(client.transport)
    with pytest.raises(ValueError, match="Invalid address"):
        client.transport.sendto(b"", (LOCAL, 9))
    with pytest.raises(TypeError, match="bytes-like"):
        client.transport.sendto("text")  # type: ignore[arg-type]
    await end(client, other, server)
    assert client.events[0] == "made"
    assert client.events[-1] == other.events[-1] == "lost"
    client.transport.sendto(b"too late")


def broken_factory() -> Recorder:
    raise LookupError("no protocol today")


@pytest.mark.parametrize("mode", PATHS)
async def test_a_factory_that_fails_leaves_no_connection(mode: Any) -> None:
    """If making the protocol fails, neither end's connection survives it; the other end is notified."""
    engine = await engines.current()
    made: list[Recorder] = []

    def factory() -> Recorder:
        made.append(Recorder())
        return made[-1]

    async with await aiordma.create_datagram_server(factory, LOCAL, mode=mode) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(LookupError, match="today"):
            await aiordma.create_datagram_connection(broken_factory, LOCAL, port, mode=mode)
        await until(lambda: bool(made))
        assert isinstance(await made[0].lost, ConnectionError)
    await until(lambda: not any(group.members for group in engine.all_groups))


@pytest.mark.parametrize("mode", PATHS)
async def test_a_servers_factory_that_fails_ends_its_connection(
    mode: Any, reported: list[dict[str, Any]]
) -> None:
    engine = await engines.current()
    async with await aiordma.create_datagram_server(broken_factory, LOCAL, mode=mode) as server:
        port = server.sockets[0].getsockname()[1]
        _, client = await aiordma.create_datagram_connection(Recorder, LOCAL, port, mode=mode)
        assert isinstance(await client.lost, ConnectionError)
    assert [type(entry["exception"]) for entry in reported] == [LookupError]
    await until(lambda: not any(group.members for group in engine.all_groups))


async def test_an_endpoint_whose_factory_fails_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    original = open_datagram_endpoint

    async def remembered(*args: Any, **options: Any) -> Any:
        opened.append(await original(*args, **options))
        return opened[0]

    monkeypatch.setattr(aiordma.compat.datagram, "open_datagram_endpoint", remembered)
    with pytest.raises(LookupError, match="today"):
        await aiordma.create_datagram_endpoint(broken_factory, (LOCAL, 0), mode="tcp")
    with pytest.raises(anyio.ClosedResourceError):
        opened[0].receive_nowait()


@pytest.mark.parametrize("mode", PATHS)
async def test_a_slow_receiver_pauses_the_writer(mode: str) -> None:
    client, other, server = await connected(mode)
    other.transport.pause_reading()
    assert not other.transport.is_reading()
    data, count = bytes(60_000), 0
    while "pause" not in client.events:
        client.transport.sendto(data)
        count += 1
        if count % 20 == 0:
            await asyncio.sleep(0)
    assert client.transport.get_write_buffer_size() > 0
    client.transport.close()  # accepted data is still sent
    assert client.transport.is_closing()
    await asyncio.sleep(0)
    assert "lost" not in client.events
    other.transport.resume_reading()
    assert await other.have(count) == [data] * count
    assert await client.lost is None
    assert client.events == ["made", "pause", "resume", "lost"]
    await end(client, other, server)


@pytest.mark.parametrize("mode", PATHS)
@pytest.mark.parametrize("counts_headers", [True, False])
async def test_empty_datagrams_that_wait_pause_the_writer(
    mode: str, counts_headers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are bounded as others are, whether asyncio counts headers (from Python 3.13 on) or not."""
    monkeypatch.setattr(flow, "_COUNTS_HEADERS", counts_headers)
    client, other, server = await connected(mode)
    other.transport.pause_reading()
    data, count = bytes(60_000), 0
    while not client.transport.get_write_buffer_size():
        client.transport.sendto(data)
        count += 1
    assert client.transport.get_write_buffer_size() == len(data) + 8 * counts_headers
    client.transport.set_write_buffer_limits(high=100_000)
    for _ in range(5001):
        client.transport.sendto(b"")
    assert client.events == ["made", "pause"]
    assert client.transport.get_write_buffer_size() == len(data) + 8 * counts_headers + 8 * 5001
    other.transport.resume_reading()
    assert await other.have(count + 5001) == [data] * count + [b""] * 5001
    assert client.transport.get_write_buffer_size() == 0
    assert client.events == ["made", "pause", "resume"]
    await end(client, other, server)


async def test_pausing_in_the_middle_of_a_batch_keeps_the_rest() -> None:
    class OneByOne(Recorder):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(data, addr)
            self.transport.pause_reading()

    client, other, server = await connected("rdma", OneByOne)
    for number in range(50):
        client.transport.sendto(b"%d" % number)
    for number in range(50):
        await other.have(number + 1)
        await asyncio.sleep(0)
        assert len(other.received) == number + 1
        other.transport.resume_reading()
    assert other.received == [b"%d" % number for number in range(50)]
    await end(client, other, server)


async def test_what_is_too_long_is_an_error_received() -> None:
    client, other, server = await connected("rdma")
    client.transport.sendto(bytes(1 << 20))
    client.transport.sendto(b"fits")
    assert await other.have(1) == [b"fits"]
    (error,) = client.errors
    assert isinstance(error, OSError)
    assert error.errno == errno.EMSGSIZE
    await end(client, other, server)


@pytest.mark.parametrize("mode", PATHS)
async def test_an_abort_is_an_error_at_the_peer(mode: str) -> None:
    client, other, server = await connected(mode)
    client.transport.abort()
    client.transport.abort()
    assert await client.lost is None
    assert isinstance(await other.lost, ConnectionError)
    server.close()


class Odd(BaseException):
    """A program's own."""


#: What callbacks raise: asyncio's own transport reports each of them, and goes on.
RAISED = [RuntimeError, asyncio.CancelledError, GeneratorExit, Odd]


class Picky(Echo):
    """Fails for some datagrams, and for each error."""

    error: type[BaseException] = RuntimeError

    def datagram_received(self, data: bytes, addr: Any) -> None:
        super().datagram_received(data, addr)
        if data.startswith(b"bad"):
            raise self.error("oops")

    def error_received(self, exc: Exception) -> None:
        super().error_received(exc)
        raise self.error("in error_received")


@pytest.fixture(params=RAISED)
def raised(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[BaseException]:
    monkeypatch.setattr(Picky, "error", request.param)
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", PATHS)
async def test_a_protocol_that_fails_for_one_datagram_goes_on(
    mode: str, raised: type[BaseException], reported: list[dict[str, Any]]
) -> None:
    client, other, server = await connected(mode, Picky)
    for data in (b"one", b"bad", b"two", b"bad", b"three"):
        client.transport.sendto(data)
    assert await client.have(5) == [b"one", b"bad", b"two", b"bad", b"three"]
    assert [str(context["exception"]) for context in reported] == ["oops", "oops"]
    assert {type(context["exception"]) for context in reported} == {raised}
    assert reported[0]["transport"] is other.transport
    assert reported[0]["protocol"] is other
    await end(client, other, server)


@pytest.mark.parametrize("mode", ["auto", "tcp"])
async def test_an_endpoint_whose_protocol_fails_serves_its_other_peers(
    mode: Any, raised: type[BaseException], reported: list[dict[str, Any]]
) -> None:
    serving, other = await aiordma.create_datagram_endpoint(Picky, (LOCAL, 0), mode=mode)
    address = serving.get_extra_info("sockname")
    clients = [await aiordma.create_datagram_endpoint(Recorder, (LOCAL, 0), mode=mode) for _ in "ab"]
    for number in range(3):
        for data, (client, protocol) in zip((b"bad", b"good"), clients, strict=True):
            client.sendto(data, address)
            await protocol.have(number + 1)
    assert [str(context["exception"]) for context in reported] == ["oops"] * 3
    for transport, protocol in ((serving, other), *clients):
        transport.close()
        assert await protocol.lost is None


async def test_what_cannot_be_sent_does_not_hold_up_what_follows(
    raised: type[BaseException], reported: list[dict[str, Any]]
) -> None:
    """Of datagrams that waited, one is too long (and error_received() fails), one has no valid address."""
    client, other, server = await connected("tcp")
    protocol = Picky()
    client.transport.set_protocol(protocol)
    other.transport.pause_reading()
    sent = 0
    while not client.transport.get_write_buffer_size():
        client.transport.sendto(bytes(5_000))
        sent += 1
    client.transport.sendto(bytes(1 << 20))
    client.transport.sendto(b"to nobody", (LOCAL, 9))
    client.transport.sendto(b"after")
    other.transport.resume_reading()
    assert (await other.have(sent + 1))[-1] == b"after"
    assert len(protocol.errors) == 1
    assert [type(context["exception"]) for context in reported] == [raised, ValueError]
    client.transport.set_protocol(client)
    await end(client, other, server)


async def test_a_transport_left_open_warns() -> None:
    client, other, server = await connected("rdma")
    other.transport.close()
    await client.lost
    await end(client, other, server)
    client, other, server = await connected("rdma")
    transport: MessageTransport = client.transport
    with pytest.warns(ResourceWarning, match="unclosed transport"):
        transport.__del__()
    client.transport.close()
    await other.lost
    server.close()


@pytest.mark.parametrize("mode", ["auto", "tcp"])
async def test_endpoints(mode: Any) -> None:
    """The same program as on asyncio's own function."""
    one, first = await aiordma.create_datagram_endpoint(Recorder, (LOCAL, 0), mode=mode)
    two, second = await aiordma.create_datagram_endpoint(Echo, (LOCAL, 0), mode=mode)
    address = two.get_extra_info("sockname")
    one.sendto(b"before the peer has answered", address)
    await first.have(1)
    await one.get_extra_info("aiordma.endpoint").resolve(address)
    for number in range(100):
        one.sendto(b"%d" % number, address)
    assert await first.have(101) == [b"before the peer has answered", *(b"%d" % n for n in range(100))]
    assert first.senders == {address}
    assert second.senders == {one.get_extra_info("sockname")}
    path = one.get_extra_info("aiordma.endpoint").path_to(address)
    assert path == ("udp" if mode == "tcp" else "rdma")
    one.sendto(bytes(70_000), address)
    assert [error.errno for error in first.errors] == [errno.EMSGSIZE]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="localhost"):
        one.sendto(b"x", ("localhost", 9))
    for transport, protocol in ((one, first), (two, second)):
        transport.close()
        assert await protocol.lost is None


async def test_an_endpoint_with_one_peer() -> None:
    server, other = await aiordma.create_datagram_endpoint(Echo, (LOCAL, 0))
    client, protocol = await aiordma.create_datagram_endpoint(
        Recorder, remote_addr=server.get_extra_info("sockname")
    )
    assert client.get_extra_info("peername") == server.get_extra_info("sockname")
    client.sendto(b"hello")
    assert await protocol.have(1) == [b"hello"]
    client.abort()
    assert await protocol.lost is None
    server.close()
    await other.lost


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
@pytest.mark.parametrize("port", [-1, 65_536, 70_000])
@pytest.mark.parametrize("which", ["local_addr", "remote_addr"])
async def test_a_port_that_no_endpoint_has(which: str, port: int, mode: Any) -> None:
    """As of asyncio's: OverflowError."""
    create: Any = aiordma.create_datagram_endpoint
    with pytest.raises(OverflowError):
        await create(Recorder, **{which: (LOCAL, port)}, mode=mode)


@pytest.mark.parametrize("option", ["sock", "reuse_port", "allow_broadcast"])
async def test_what_only_udp_has(option: str) -> None:
    """It makes an endpoint of the loop's own, which says why; with mode "rdma" it is an error."""
    create: Any = aiordma.create_datagram_endpoint

    def given() -> dict[str, Any]:
        if option != "sock":
            return {"local_addr": (LOCAL, 0), option: True}
        sock = socket.socket(type=socket.SOCK_DGRAM)
        sock.bind((LOCAL, 0))
        return {"sock": sock}

    server, other = await create(Echo, **given())
    assert server.get_extra_info("aiordma.path") == "udp"
    assert f"{option} given, for UDP only" in server.get_extra_info("aiordma.fallback_reason").text
    assert other.transport is server
    client, protocol = await create(Recorder, remote_addr=server.get_extra_info("sockname"))
    client.sendto(b"hello")
    assert await protocol.have(1) == [b"hello"]
    client.close()
    server.close()
    assert server.is_closing()
    await protocol.lost
    await other.lost
    off, protocol = await create(Recorder, **given(), mode="tcp")
    assert off.get_extra_info("aiordma.fallback_reason").code is Code.DISABLED
    off.close()
    await protocol.lost
    refused = given()
    with pytest.raises(NegotiationError, match=f"{option} given"):
        await create(Recorder, **refused, mode="rdma")
    if option == "sock":
        refused["sock"].close()


async def test_a_family_chooses_the_address_of_a_name() -> None:
    """And leaves the endpoint on RDMA."""
    server, other = await aiordma.create_datagram_endpoint(Echo, ("localhost", 0), family=socket.AF_INET)
    assert server.get_extra_info("sockname")[0] == LOCAL
    assert server.get_extra_info("aiordma.path") == "rdma"
    port = server.get_extra_info("sockname")[1]
    client, protocol = await aiordma.create_datagram_endpoint(
        Recorder, remote_addr=("localhost", port), family=socket.AF_INET
    )
    client.sendto(b"hello")
    assert await protocol.have(1) == [b"hello"]
    for transport, each in ((client, protocol), (server, other)):
        transport.close()
        await each.lost
