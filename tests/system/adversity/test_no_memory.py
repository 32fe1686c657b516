"""A callback for a descriptor finds no memory: one connection ends, once, and the loop does not spin.

What plain TCP connections and UDP sockets do then is in `tests/pipes/test_tcp_memory.py`.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import ssl
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import anyio
import pytest
import trustme
from anyio import BrokenResourceError

import aiordma
from aiordma import wake
from aiordma.admin import session as sessions
from aiordma.admin.messages import Refused
from aiordma.datagrams import endpoint as endpoints
from aiordma.errors import Code, FallbackReason, VerbsError
from aiordma.links import cm_connect, device_engine
from aiordma.links import engine as engines
from aiordma.links.failover.framed_pipe import FramedPipe
from aiordma.links.failover.tcp_carrier import TcpCarrier
from aiordma.links.link import Link
from aiordma.pipes.tls import TlsLayer, TlsPipe
from aiordma.proto import llc
from aiordma.proto.frames import data_header
from aiordma.verbs import rdmacm
from tests.health import until
from tests.links.failover.test_first_contact import both_ways
from tests.poor import Poor, is_quiet, poor_listeners
from tests.roles import LOCAL
from tests.streams.pairs import rdma_pair
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.anyio

CA = trustme.CA()


class NoRoom(bytearray):
    """Nothing can be added to it."""

    def __iadd__(self, _: object) -> Self:
        raise MemoryError


class Counted:
    """Raises, and counts how often."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls, self.error = 0, error or MemoryError()

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.calls += 1
        raise self.error


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        other.setblocking(False)
        yield one, other


@asynccontextmanager
async def tls_pair(pair: tuple[socket.socket, socket.socket]) -> AsyncIterator[tuple[TlsLayer, TlsLayer]]:
    """A session's two ends."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    CA.issue_cert("server.example").configure_cert(server)
    client = ssl.create_default_context()
    CA.configure_trust(client)
    near = TlsLayer(pair[0], client, server_hostname="server.example")
    far = TlsLayer(pair[1], server, server_side=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(near.handshake, 30)
        tasks.start_soon(far.handshake, 30)
    with near, far:
        yield near, far


def fill(layer: TlsLayer) -> None:
    """Until the kernel takes no more."""
    try:
        while layer.flush():
            layer.send(bytes(100_000))
    except BlockingIOError:
        pass


# ---- TLS


async def test_a_tls_stream_that_is_read(pair: tuple[socket.socket, socket.socket]) -> None:
    async with tls_pair(pair) as (near, far):
        near.sock = poor = Poor(near.sock, 1 << 20)  # type: ignore[assignment]
        pipe, told = TlsPipe(near), Counted()
        pipe.on_readable = lambda: setattr(told, "calls", told.calls + 1)
        assert pipe.try_receive(10) is None
        poor.room = 0
        far.send(b"data")
        await until(lambda: pipe.error is not None)
        await is_quiet(lambda: poor.calls)
        with pytest.raises(BrokenResourceError, match="MemoryError"):
            pipe.try_receive(10)
        assert told.calls
        pipe.abort()


@pytest.mark.parametrize("direction", ["what comes", "what is left"])
async def test_a_tls_stream_that_is_closed(pair: tuple[socket.socket, socket.socket], direction: str) -> None:
    async with tls_pair(pair) as (near, far):
        near.sock = poor = Poor(near.sock, 1 << 20)  # type: ignore[assignment]
        pipe, ended = TlsPipe(near), list[Exception | None]()
        pipe.on_ended = ended.append
        if direction == "what is left":
            fill(near)
        pipe.close()
        assert not ended
        poor.room = 0
        if direction == "what comes":
            far.send(b"data")
        else:
            far.sock.recv(1 << 20)
        await until(lambda: bool(ended))
        await is_quiet(lambda: poor.calls)
        assert [type(error) for error in ended] == [MemoryError]


async def test_a_tls_stream_that_waits_to_send(pair: tuple[socket.socket, socket.socket]) -> None:
    async with tls_pair(pair) as (near, far):
        near.sock = poor = Poor(near.sock, 1 << 20)  # type: ignore[assignment]
        pipe, told = TlsPipe(near), list[object]()
        pipe.on_writable = lambda: told.append(pipe.error)
        while pipe.try_send(bytes(100_000)):
            pass
        poor.room = 0
        far.sock.recv(1 << 20)
        await until(lambda: bool(told))
        await is_quiet(lambda: poor.calls)
        assert isinstance(pipe.error, MemoryError)
        pipe.abort()


class Ahead(bytes):
    """What was decrypted, with no memory for more."""

    def __add__(self, _: object) -> bytes:
        raise MemoryError


@pytest.mark.parametrize("how", ["recv", "shutdown"])
async def test_nothing_follows_a_gap_in_tls(pair: tuple[socket.socket, socket.socket], how: str) -> None:
    """A part that the session has given, and that could not be kept, is the end."""
    async with tls_pair(pair) as (near, far):
        near._ahead = Ahead(b"before")
        far.send(b"lost")
        if how == "shutdown":
            near._feed()
            with pytest.raises(OSError, match="no memory"):
                near.shutdown(socket.SHUT_WR)
        else:
            with pytest.raises(OSError, match="no memory"):
                near.recv(100)
        far.send(b"behind")
        assert near.recv(6) == b"before"
        with pytest.raises(OSError, match="no memory"):
            near.recv(100)


async def test_a_session_reads_on_in_smaller_pieces(pair: tuple[socket.socket, socket.socket]) -> None:
    """What was decrypted before memory ran out is read, and nothing is lost."""
    async with tls_pair(pair) as (near, far):
        session, failing = near.session, Counted()

        class Session:
            def read(self, size: int) -> bytes:
                return session.read(size) if size != 5 else failing()

            def __getattr__(self, name: str) -> Any:
                return getattr(session, name)

        far.send(b"first")
        far.send(b"second")
        near.session = Session()  # type: ignore[assignment]
        assert near.recv(10) == b"first"  # the rest would be 5
        assert failing.calls == 1
        assert near.recv(100) == b"second"


# ---- streams that have left RDMA


async def test_a_carrier_that_waits_to_send(pair: tuple[socket.socket, socket.socket]) -> None:
    poor: Any = Poor(pair[0], 1 << 20)
    carrier, failed = TcpCarrier(poor, wake.current()), list[object]()
    carrier.on_failed = lambda: failed.append(carrier.failure)
    while not carrier.pending:
        carrier.put(bytes(100_000))
    poor.room = 0
    pair[1].recv(1 << 20)
    await until(lambda: bool(failed))
    await is_quiet(lambda: poor.calls)
    assert [str(error) for error in failed] == ["link lost: the TCP connection to the peer broke (ENOMEM)"]
    carrier.close()


async def test_a_message_that_a_carrier_cannot_keep(pair: tuple[socket.socket, socket.socket]) -> None:
    """Half of it would make the rest of the connection wrong."""
    carrier = TcpCarrier(pair[0], wake.current())
    carrier._out = NoRoom()
    carrier.put(b"head", b"body")
    assert "ENOMEM" in str(carrier.failure)
    carrier.close()
    assert pair[1].recv(100) == b""


async def test_a_frame_that_cannot_be_kept(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier, told = TcpCarrier(pair[0], wake.current()), list[object]()
    reason = FallbackReason(Code.SWITCHED, "a test", Code.SWITCHED, None)
    pipe = FramedPipe(carrier, wake.current(), "the peer", b"", reason)
    pipe.on_readable = lambda: told.append(pipe.error)
    failing = Counted()
    pipe._assembler = SimpleNamespace(feed=failing, done=False, flags=0, messages=[], on_ring=False)  # type: ignore[assignment]
    pair[1].sendall(data_header(4) + b"lost" + data_header(6) + b"behind")
    await until(lambda: bool(told))
    await is_quiet(lambda: failing.calls)
    with pytest.raises(BrokenResourceError, match="ENOMEM"):
        pipe.try_receive(10)
    assert failing.calls == 1
    pipe.abort()


# ---- rdma_cm


class Channel:
    """Has an event all the time, and no memory for it."""

    ends: tuple[socket.socket, socket.socket]

    def __init__(self, _library: object) -> None:
        self.fd, self.next_event = self.ends[0].fileno(), Counted()
        self.ends[1].send(b"an event")

    def close(self) -> None:
        """Nothing."""


@pytest.mark.parametrize("whose", ["a link", "a valkey-server"])
async def test_events_of_rdma_cm(
    whose: str, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    from aiordma.valkey import cm

    monkeypatch.setattr(Channel, "ends", pair, raising=False)
    monkeypatch.setattr(cm if whose != "a link" else cm_connect, "EventChannel", Channel)
    lost, library = list[str](), ctypes.CDLL(None)
    end: Any
    if whose == "a link":
        end = cm_connect.CmConnection(
            wake.current(), library, DEVICE, 7, 1, 0, lambda _: None, lost.append
        )  # fmt: skip
        events = end._expect(rdmacm.CmEvent.ESTABLISHED)
    else:
        end = cm.CmClient(wake.current(), library, DEVICE, lost.append)
        events = end._expect(rdmacm.CmEvent.CONNECT_RESPONSE, "rdma_connect")
    with pytest.raises(VerbsError, match="Cannot allocate memory"):
        await events  # before it is up
    end._waker.watch_fd(end._channel.fd, end._on_readable)
    end._up = True
    await until(lambda: bool(lost))
    await is_quiet(lambda: end._channel.next_event.calls)
    assert len(lost) == 1
    end._up = False
    end.close()


def test_events_are_acknowledged_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """An identifier with an event that is not waits for it for ever when it is destroyed."""
    found, acknowledged = rdmacm._Event(), list[object]()
    found.conn.private_data, found.conn.private_data_len = ctypes.addressof(found), 1

    def get(_channel: object, place: Any) -> int:
        place._obj.contents = found
        return 0

    channel: Any = object.__new__(rdmacm.EventChannel)
    channel._channel, channel.library = None, SimpleNamespace(
        rdma_get_cm_event=get, rdma_ack_cm_event=acknowledged.append
    )  # fmt: skip
    monkeypatch.setattr("aiordma.verbs.rdmacm.ctypes.string_at", Counted())
    with pytest.raises(MemoryError):
        channel.next_event()
    assert len(acknowledged) == 1


# ---- what listens


async def test_the_admin_socket() -> None:
    async with await aiordma.listen(LOCAL):
        local = wake.current().locals
        await until(lambda: hasattr(local["aiordma.admin.endpoint"], "value"))
        endpoint = local["aiordma.admin.endpoint"].value
        [poor] = poor_listeners(endpoint._acceptor)
        with socket.socket(socket.AF_UNIX) as tool:
            tool.connect(endpoint.path)
            await until(lambda: poor.calls > 0)
            await is_quiet(lambda: poor.calls)
            poor.room = 1 << 20
            await until(lambda: bool(endpoint._sessions))  # after the pause


@pytest.mark.parametrize("what", ["request", "answer"])
async def test_a_session_of_the_admin_socket(what: str, pair: tuple[socket.socket, socket.socket]) -> None:
    done = list[object]()
    session = sessions.Session(wake.current(), pair[0], (0, 0), done.append)
    if what == "request":
        session._input = NoRoom()
    session.begin()
    if what == "request":
        pair[1].send(b"x")
    else:
        session._output = NoRoom()
        session._begin_answer(iter([Refused("no")]))
    await until(lambda: bool(done))
    assert done == [session]
    assert pair[1].recv(1) == b""


async def test_the_resolver_of_datagrams(caplog: pytest.LogCaptureFixture) -> None:
    async with await aiordma.open_datagram_endpoint((LOCAL, 0), config=aiordma.Config(device=DEVICE)) as end:
        for poor in poor_listeners(end._table.resolver._acceptor):
            with socket.create_connection(poor.getsockname()[:2]):
                await until(lambda: poor.calls > 0)  # noqa: B023
                await is_quiet(lambda: poor.calls)  # noqa: B023
        assert "queries of peers are not answered for now: no memory" in caplog.text


@pytest.mark.parametrize("anyio_backend", [("asyncio", {}), ("asyncio", {"use_uvloop": True})])
async def test_a_server_of_transports(anyio_backend: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio's own would be called again and again."""
    monkeypatch.setattr("aiordma.wake.accepting.PAUSE_S", 1000.0)
    loop, reported = asyncio.get_running_loop(), list[object]()
    server: Any = await aiordma.create_server(asyncio.Protocol, LOCAL, 0)
    loop.set_exception_handler(lambda _, context: reported.append(context.get("exception")))
    [poor] = poor_listeners(server._acceptor)
    with socket.create_connection(poor.getsockname()):
        await until(lambda: poor.calls > 0)
        await is_quiet(lambda: poor.calls)
    assert [type(error) for error in reported] == [MemoryError]
    server.close()


async def test_a_datagram_that_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is dropped and counted, and the next one comes."""
    failing = Counted()
    async with await aiordma.open_datagram_endpoint((LOCAL, 0), config=aiordma.Config(mode="tcp")) as end:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            monkeypatch.setattr(endpoints, "plain_address", failing)
            other.sendto(b"lost", end.local_address)
            await until(lambda: end.statistics().dropped_full == 1)
            monkeypatch.undo()
            other.sendto(b"next", end.local_address)
            with anyio.fail_after(60):
                assert (await end.receive())[0] == b"next"


# ---- the device


@pytest.mark.parametrize("error", [MemoryError(), VerbsError(5, "ibv_get_async_event")], ids=repr)
async def test_events_of_the_device(
    error: BaseException,
    pair: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are tried again after a pause, for as long as it takes, and that is said once."""
    one, other = await rdma_pair()
    async with one, other:
        engine = await engines.current()
        true, tried, waits = engine._async_events, list[float](), list[object]()
        monkeypatch.setattr(device_engine, "PAUSE_S", 0.05)
        engine.waker.unwatch_fd(true.fd)
        fake: Any = SimpleNamespace(fd=pair[0].fileno(), failure=error)

        def fail() -> list[object]:
            tried.append(engine.waker.now())
            return []

        fake.read = fail
        engine._async_events = fake
        engine._watch_events()
        pair[1].send(b"an event")
        await until(lambda: bool(tried))
        await is_quiet(lambda: len(tried))
        for _ in range(5):  # links ask for events, too, when they fail
            engine.read_events()
            waits.append(engine._events_rest)
        assert len({id(wait) for wait in waits}) == 1
        await until(lambda: len(tried) >= 10)
        assert caplog.text.count("its events cannot be read now") == 1
        read = list[bytes]()

        def read_now() -> list[object]:
            read.append(pair[0].recv(100))
            fake.failure = None
            return []

        fake.read = read_now
        await until(lambda: bool(read))
        engine.waker.unwatch_fd(fake.fd)
        engine._async_events = true
        engine._watch_events()
        await both_ways(one, other)


@pytest.mark.parametrize("what", ["on_llc", "on_ack_owed"])
async def test_what_has_come_on_a_link(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link ends, and its streams go on over TCP, with every byte."""
    one, other = await rdma_pair()
    async with one, other:
        failing = Counted()
        monkeypatch.setattr(Link, what, failing)
        groups = list((await engines.current()).all_groups)
        if what == "on_llc":
            groups[0].link._send_llc(llc.TestLink())
        else:  # messages of one end, for which the other has none that would carry the acknowledgement
            for group in groups:
                group.link.queue_pair.watch_ack()
            await one.send(b"one")
            assert await other.receive_exactly(3) == b"one"
        await until(lambda: failing.calls > 0)
        await both_ways(one, other)
        await until(lambda: "tcp" in (one.path, other.path))
        assert failing.calls == 1
