"""`aiordma.install()` for programs on trio, and on anyio with trio: their own streams, over RDMA."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import socket
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.errors import Code, FallbackReason
from aiordma.launch import hooks, loading
from aiordma.negotiation import peer_cache, peers
from aiordma.negotiation.first_bytes import FirstBytes
from aiordma.negotiation.plain_peers import PlainPeers
from tests import patient
from tests.processes import FULL_PATIENCE
from tests.roles import LOCAL
from tests.streams.pairs import tls_contexts

trio: Any = pytest.importorskip("trio", reason="trio is not installed")
testing: Any = pytest.importorskip("trio.testing")

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("cache")


def run(main: Callable[..., Any], *arguments: Any) -> Any:
    async def limited() -> Any:
        with trio.fail_after(FULL_PATIENCE):
            return await main(*arguments)

    return trio.run(limited)


async def echo(stream: Any) -> None:
    async with stream:
        with contextlib.suppress(trio.BrokenResourceError):
            async for data in stream:
                await stream.send_all(data)


@contextlib.asynccontextmanager
async def serving(handler: Any = echo) -> AsyncIterator[int]:
    """The port of a server of trio's."""
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(functools.partial(trio.serve_tcp, handler, 0, host=LOCAL))
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def path_of(stream: Any) -> str:
    """Of a stream of trio's or anyio's."""
    sock = getattr(stream, "socket", None) or stream._trio_socket
    path: str = sock.stream.path if hasattr(sock, "stream") else "tcp"
    return path


async def ask(port: int, host: str = LOCAL) -> str:
    """Say something on a new connection; its path."""
    async with await trio.open_tcp_stream(host, port) as stream:
        await stream.send_all(b"hello")
        assert await stream.receive_some(100) == b"hello"
        return path_of(stream)


async def pair() -> tuple[Any, Any]:
    """Both ends of one connection."""
    (listener,) = await trio.open_tcp_listeners(0, host=LOCAL)
    async with listener:
        ends: list[Any] = [None, None]

        async def connect() -> None:
            ends[0] = await trio.open_tcp_stream(LOCAL, listener.socket.getsockname()[1])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            ends[1] = await listener.accept()
    assert [path_of(end) for end in ends] == ["rdma", "rdma"]
    return ends[0], ends[1]


def test_streams_of_trio() -> None:
    async def main() -> None:
        async with serving() as port:
            assert await ask(port) == "rdma"
            async with await trio.open_tcp_stream(LOCAL, port) as stream:
                assert isinstance(stream, trio.SocketStream)
                assert stream.socket.getpeername() == (LOCAL, port)
                assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                await stream.wait_send_all_might_not_block()
                assert not stream.socket.is_readable()
                await stream.send_all(b"")
                await stream.send_all(bytearray(b"hello"))
                assert await stream.receive_some() == b"hello"
                await stream.send_eof()
                assert await stream.receive_some() == b""
                assert stream.socket.is_readable()
            assert stream.socket.fileno() == -1

    aiordma.install()
    run(main)


def test_trio_s_own_checks_of_streams() -> None:
    async def clogged() -> tuple[Any, Any]:
        left, right = await pair()
        async with trio.open_nursery() as nursery:
            for end in (left, right):
                nursery.start_soon(end.send_all, bytes(64 << 20))
            await testing.wait_all_tasks_blocked(0.1)
            nursery.cancel_scope.cancel()
        return left, right

    aiordma.install()
    run(lambda: testing.check_half_closeable_stream(pair, clogged))


def test_streams_of_anyio() -> None:
    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            async for data in stream:
                await stream.send(data)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            listener: Any = await anyio.create_tcp_listener(local_host=LOCAL)
            tasks.start_soon(listener.serve, handle)
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            async with await anyio.connect_tcp("localhost", port) as stream:
                assert path_of(stream) == "rdma"
                assert stream.extra(anyio.abc.SocketAttribute.remote_port) == port
                await stream.send(b"hello")
                assert await stream.receive() == b"hello"
                await stream.send_eof()
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive()
            with pytest.raises(anyio.ClosedResourceError):
                await stream.send(b"too late")
            tasks.cancel_scope.cancel()
        await listener.aclose()

    aiordma.install()
    run(main)


def test_tls_travels_over_it() -> None:
    client_context, server_context = tls_contexts()

    async def handle(stream: Any) -> None:
        await echo(trio.SSLStream(stream, server_context, server_side=True))

    async def main() -> None:
        async with serving(handle) as port:
            stream = await trio.open_tcp_stream(LOCAL, port)
            async with trio.SSLStream(stream, client_context, server_hostname=LOCAL) as inside:
                await inside.send_all(b"secret")
                assert await inside.receive_some() == b"secret"
                assert path_of(stream) == "rdma"

    aiordma.install()
    run(main)


def test_plain_peers_at_either_end(cache: Path) -> None:
    """A plain server of this host sees nothing but the stream, a plain client no difference."""
    heads: list[bytes] = []

    async def keep(stream: Any) -> None:
        heads.append(await stream.receive_some())
        await stream.send_all(heads[-1])

    async def main() -> None:
        async with serving(keep) as port:
            aiordma.install()
            assert await ask(port) == "tcp"
        async with serving() as port:
            with socket.create_connection((LOCAL, port)) as plain:
                plain.setblocking(False)
                plain.send(b"hello")
                await trio.lowlevel.wait_readable(plain)
                assert plain.recv(100) == b"hello"

    run(main)
    assert heads == [b"hello"]
    assert not cache.exists()


def test_a_server_that_speaks_first() -> None:
    """Its client says nothing: a plain one, and one of ours whose Proposal the server expects."""

    async def greet(stream: Any) -> None:
        await stream.send_all(b"220 ready")
        await echo(stream)

    async def main() -> None:
        async with serving(greet) as port:
            async with await trio.open_tcp_stream(LOCAL, port) as stream:
                assert await stream.receive_some() == b"220 ready"
                assert path_of(stream) == "rdma"
            with socket.create_connection((LOCAL, port)) as plain:
                plain.setblocking(False)
                await trio.lowlevel.wait_readable(plain)
                assert plain.recv(100) == b"220 ready"
                plain.send(b"HELO")
                await trio.lowlevel.wait_readable(plain)
                assert plain.recv(100) == b"HELO"

    aiordma.install()
    run(main)


def test_what_an_unknown_server_says_is_remembered(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were on another host; aiordma is loaded already, so that no question is asked."""
    host = "127.0.0.3"

    async def complain(stream: Any) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"-ERR Protocol error")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(functools.partial(trio.serve_tcp, complain, 0, host=host))
            port = listeners[0].socket.getsockname()[1]
            aiordma.install()
            async with serving() as ours:
                assert await ask(ours) == "rdma"
            async with await trio.open_tcp_stream(host, port) as stream:
                assert path_of(stream) == "tcp"
            while not (cache.exists() and cache.stat().st_size):  # noqa: ASYNC240
                await trio.sleep(0.001)  # the file is made first, and written then
            assert PlainPeers(cache).is_plain(host, port)
            nursery.cancel_scope.cancel()

    monkeypatch.setattr(peers, "is_address_of_this_host", lambda _address: False)
    run(main)


@pytest.mark.parametrize("host", [LOCAL, "localhost"])
def test_a_server_that_was_late_once_is_asked_again(host: str, cache: Path) -> None:
    """Silence is no answer, and an announcement weighs more than memory."""
    own, late = FirstBytes.are_clc, trio.Event()

    async def are_clc(first_bytes: FirstBytes) -> bool | None:
        answer = await own(first_bytes)
        if answer:  # the plain connection beside it is served, whichever task runs first
            await late.wait()
        return answer

    async def main() -> None:
        async with serving() as port:
            assert await ask(port, host) == "tcp"
            patience.undo()
            late.set()
            assert await ask(port, host) == "rdma"
            assert not await trio.to_thread.run_sync(cache.exists)
        async with await aiordma.listen(LOCAL) as listener, trio.open_nursery() as nursery:
            nursery.start_soon(listener.serve, echo_natively)
            for name in (host, LOCAL):
                await trio.to_thread.run_sync(PlainPeers(cache).remember, name, listener.port, True)
                peer_cache.remember_plain(
                    (name, listener.port, False), FallbackReason.of_local(Code.PLAIN_TCP_PEER), 60
                )
            aiordma.uninstall()
            aiordma.install()  # as another process
            assert await ask(listener.port, host) == "rdma"
            nursery.cancel_scope.cancel()

    async def echo_natively(stream: aiordma.RdmaStream) -> None:
        async for data in stream:
            await stream.send(data)

    with pytest.MonkeyPatch.context() as patience:
        patient.as_for_users(patience)
        patience.setattr(loading, "_HEAD_START_MS", 0)
        patience.setattr(peer_cache, "_BELIEVED_S", 0)
        patience.setattr(FirstBytes, "are_clc", are_clc)
        aiordma.install()
        run(main)


@pytest.mark.parametrize(
    ("rules", "path", "reason"),
    [
        ("deny out:127.0.0.0/8", "tcp", "rule `deny out:127.0.0.0/8`"),
        ("deny in:127.0.0.0/8", "tcp", ""),
        ("allow out:127.0.0.0/8", "rdma", ""),
    ],
)
def test_rules_and_the_report(rules: str, path: str, reason: str) -> None:
    async def main() -> int:
        async with serving() as port:
            assert await ask(port) == path
            return port

    aiordma.install(rules)
    port = run(main)
    assert hooks._installed is not None
    counts = hooks._installed.report.counts
    (why,) = (row[3] for row in counts if row[:3] == (path, "server", f"{LOCAL}:{port}"))
    assert reason in why


def test_the_end_of_a_listener() -> None:
    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host=LOCAL)
        port = listener.socket.getsockname()[1]
        with trio.move_on_after(0.01):
            await listener.accept()
        async with trio.open_nursery() as nursery:
            # What a cancelled accept() leaves undone, the next one gets.
            client = socket.create_connection((LOCAL, port))
            client.send(b"x")
            accepted = await listener.accept()
            assert await accepted.receive_some() == b"x"
            client.close()
            await accepted.aclose()

            async def accept() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await listener.accept()

            nursery.start_soon(accept)
            await testing.wait_all_tasks_blocked()
            await listener.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOCAL, port))

    aiordma.install()
    run(main)


def test_errors_are_those_of_trio() -> None:
    async def main() -> None:
        left, right = await pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(right.receive_some)
            await testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await right.receive_some()
            await left.send_all(b"x")
        left.socket.stream.abort()
        await testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BrokenResourceError):
            await right.send_all(bytes(1 << 20))
        with pytest.raises(trio.BrokenResourceError):
            await right.receive_some()
        await left.aclose()
        await right.aclose()
        for use in (right.receive_some, right.wait_send_all_might_not_block):
            with pytest.raises(trio.ClosedResourceError):
                await use()
        with pytest.raises(OSError, match="no flags") as caught:
            await right.socket.recv(1, socket.MSG_PEEK)
        assert caught.value.errno == errno.EOPNOTSUPP

    aiordma.install()
    run(main)


def test_receives_of_nothing_and_of_what_cannot_be() -> None:
    """As of trio's own socket."""

    async def outcomes(sock: Any) -> list[str]:
        async def of(waiting: Any) -> str:
            try:
                return repr(await waiting)
            except ValueError as error:
                return str(error)

        calls = [sock.recv(0), sock.recv(-1), sock.recv(3)]
        for size, nbytes in ((0, 0), (4, -1), (4, 9), (4, 2)):
            calls.append(sock.recv_into(bytearray(size), nbytes))
        return [await of(call) for call in calls]

    async def main() -> None:
        left, right = await pair()
        own_left, own_right = trio.socket.socketpair()
        await left.send_all(b"hello")
        await own_left.send(b"hello")
        assert await outcomes(right.socket) == await outcomes(own_right)
        for each in (left, right):
            await each.aclose()
        for sock in (own_left, own_right):
            sock.close()

    aiordma.install()
    run(main)


def test_one_send_after_the_peer_s_end_leaves_what_it_sent() -> None:
    async def main() -> None:
        left, right = await pair()
        await left.send_all(b"no, thank you")
        await left.aclose()
        await testing.wait_all_tasks_blocked()
        await right.send_all(b"")
        await right.send_all(b"more")
        assert await right.receive_some() == b"no, thank you"
        assert await right.receive_some() == b""
        with pytest.raises(trio.BrokenResourceError):
            await right.send_all(b"and more")
        await right.aclose()

    aiordma.install()
    run(main)


def test_what_arrived_is_read_before_a_failure() -> None:
    """What was cut off does not look whole."""

    async def main() -> None:
        left, right = await pair()
        async with left, right:
            await left.send_all(b"half a mess")
            assert await right.receive_some(4) == b"half"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(left.send_all, bytes(64 << 20))
                await testing.wait_all_tasks_blocked(0.01)
                nursery.cancel_scope.cancel()
            left.socket.stream.abort()
            got: list[bytes] = []

            async def read() -> None:
                while not got or got[-1]:
                    got.append(await right.receive_some())

            with pytest.raises(trio.BrokenResourceError):
                await read()
            assert b"".join(got)[:7] == b" a mess"

    aiordma.install()
    run(main)


def test_names_of_ipv6_have_four_fields() -> None:
    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="::1")
        port = listener.socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, echo, [listener])
            async with await trio.open_tcp_stream("::1", port) as stream:
                assert path_of(stream) == "rdma"
                assert stream.socket.getpeername() == ("::1", port, 0, 0)
                assert len(stream.socket.getsockname()) == 4
                await stream.send_all(b"hello")
                assert await stream.receive_some() == b"hello"
            nursery.cancel_scope.cancel()

    aiordma.install()
    run(main)


@pytest.mark.parametrize("how", [socket.SHUT_WR, socket.SHUT_RDWR])
def test_a_shown_socket_that_is_shut_down(how: int) -> None:
    """As on plain TCP: the peer reads everything, and an end."""

    async def main() -> None:
        left, right = await pair()
        async with left, right:
            await left.send_all(b"before")
            left.socket.shutdown(how)
            assert await right.receive_some() == b"before"
            assert await right.receive_some() == b""
            if how == socket.SHUT_WR:
                await right.send_all(b"answer")
                assert await left.receive_some() == b"answer"
            with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
                await left.send_all(b"behind it")

    aiordma.install()
    run(main)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("installed", [False, True])
def test_a_dropped_listener_gives_its_port_back(installed: bool) -> None:
    async def main() -> int:
        (listener,) = await trio.open_tcp_listeners(0, host=LOCAL)
        port: int = listener.socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.accept)
            await testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        return port

    if installed:
        aiordma.install()
    port = run(main)
    gc.collect()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOCAL, port))


def test_a_cancelled_receive_has_taken_nothing() -> None:
    async def main() -> None:
        left, right = await pair()
        async with left, right:
            received = b""
            async with trio.open_nursery() as nursery:
                nursery.start_soon(left.send_all, bytes(range(256)) * 4000)
                while len(received) < 256 * 4000:
                    taken = None
                    with trio.move_on_after(0):
                        taken = await right.receive_some(1000)
                    assert taken is None
                    received += await right.receive_some(10000)
            assert received == bytes(range(256)) * 4000

    aiordma.install()
    run(main)


def test_the_program_s_virtual_network_stays() -> None:
    class Factory(trio.abc.SocketFactory):  # type: ignore[misc]
        def socket(self, *_: Any, **__: Any) -> Any:
            raise OSError("of the test's network")

    async def main() -> None:
        trio.socket.set_custom_socket_factory(Factory())
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream(LOCAL, 9)

    aiordma.install()
    run(main)


def test_uninstalled_it_is_trio_s_own() -> None:
    from anyio._backends._trio import TCPSocketListener, TrioBackend

    owners: list[Any] = [trio, trio.SocketListener, TCPSocketListener, TrioBackend]
    names = ("open_tcp_stream", "accept", "__init__", "aclose", "connect_tcp")
    before = [{name: vars(owner).get(name) for name in names} for owner in owners]
    aiordma.install()
    assert all(
        {name: vars(owner).get(name) for name in names} != old
        for owner, old in zip(owners, before, strict=True)
    )
    aiordma.uninstall()
    assert [{name: vars(owner).get(name) for name in names} for owner in owners] == before
