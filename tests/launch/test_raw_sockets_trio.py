"""Sockets that programs on trio use by themselves: `--report` counts each once, trio's streams as ever."""

from __future__ import annotations

import functools
import socket
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.launch import hooks
from tests.launch.test_raw_sockets import REASON, raw, rows
from tests.processes import FULL_PATIENCE
from tests.roles import LOCAL

trio: Any = pytest.importorskip("trio", reason="trio is not installed")

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(autouse=True)
def _installed(cache: Any) -> Iterator[None]:
    aiordma.install(report=True)
    yield
    aiordma.uninstall()


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def limited() -> Any:
        with trio.fail_after(FULL_PATIENCE):
            return await main()

    return trio.run(limited)


async def pair() -> tuple[Any, Any, int]:
    """Both ends of a connection of the program's own, and the port at which it has listened."""
    listening = trio.socket.socket()
    with listening:
        await listening.bind((LOCAL, 0))
        listening.listen()
        port = listening.getsockname()[1]
        near = trio.socket.socket()
        await near.connect((LOCAL, port))
        far, _ = await listening.accept()
    return near, far, port


async def by_methods(near: Any, far: Any) -> None:
    await near.send(b"hello")
    assert await far.recv(10) == b"hello"
    await far.sendmsg([b"hel", b"lo"])
    assert await near.recv_into(bytearray(10)) == 5


async def by_waiting(near: Any, far: Any) -> None:
    """As a library waits that has its own sockets."""
    for end, other in ((near, far), (far, near)):
        one, two = (socket.socket(fileno=each.detach()) for each in (end.dup(), other.dup()))
        with one, two:
            one.setblocking(False)
            two.setblocking(False)
            await trio.lowlevel.wait_writable(one)
            one.send(b"hello")
            await trio.lowlevel.wait_readable(two.fileno())
            assert two.recv(10) == b"hello"


async def by_a_stream(near: Any, far: Any) -> None:
    """trio's stream on the program's socket."""
    one, other = trio.SocketStream(near), trio.SocketStream(far)
    await one.send_all(b"hello")
    assert await other.receive_some() == b"hello"


@pytest.mark.parametrize("way", [by_methods, by_a_stream])
def test_both_ends_are_counted_once(way: Callable[[Any, Any], Awaitable[None]]) -> None:
    async def main() -> None:
        for _ in range(2):  # the second one gets the descriptors of the first
            near, far, port = await pair()
            with near, far:
                await way(near, far)
                await way(near, far)
            assert rows() == raw(port)

    run(main)


def test_descriptors_that_are_waited_for() -> None:
    """Each descriptor is a connection: duplicates are not told from others."""

    async def main() -> None:
        near, far, port = await pair()
        with near, far:
            await by_waiting(near, far)
        assert set(rows()) == set(raw(port))

    run(main)


async def echo(stream: Any) -> None:
    async with stream:
        await stream.send_all(await stream.receive_some(100))


async def ask(stream: Any) -> None:
    async with stream:
        await stream.send_all(b"hello")
        assert await stream.receive_some(100) == b"hello"


def test_what_is_negotiated_is_not_counted_twice() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(functools.partial(trio.serve_tcp, echo, 0, host=LOCAL))
            port = listeners[0].socket.getsockname()[1]
            await ask(await trio.open_tcp_stream(LOCAL, port))
            await ask(await trio.open_tcp_stream(LOCAL, port))
            nursery.cancel_scope.cancel()
        found = rows()
        assert sum(found.values()) == 4, found
        assert {row[0] for row in found} == {"rdma"}

    run(main)


@pytest.mark.parametrize("rule", ["deny *", "deny in:*", "deny out:*"])
def test_plain_streams_of_trio_are_not_the_programs(rule: str) -> None:
    """Whatever keeps them plain."""
    aiordma.uninstall()
    aiordma.install(rule, report=True)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(functools.partial(trio.serve_tcp, echo, 0, host=LOCAL))
            await ask(await trio.open_tcp_stream(LOCAL, listeners[0].socket.getsockname()[1]))
            nursery.cancel_scope.cancel()
        assert not [row for row in rows() if row[3] == REASON]

    run(main)


def test_streams_of_anyio_are_not_the_programs() -> None:
    async def serve(stream: Any) -> None:
        async with stream:
            await stream.send(await stream.receive())

    async def main() -> None:
        async with (
            await anyio.create_tcp_listener(local_host=LOCAL) as listener,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(listener.serve, serve)
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            async with await anyio.connect_tcp(LOCAL, port) as stream:
                await stream.send(b"hello")
                assert await stream.receive() == b"hello"
            tasks.cancel_scope.cancel()
        assert not [row for row in rows() if row[3] == REASON]

    run(main)


def test_other_sockets_are_left_alone() -> None:
    """Unix sockets, datagrams, and what is closed: they work, or fail, as ever."""

    async def main() -> None:
        near, far = trio.socket.socketpair()
        with near, far:
            await by_methods(near, far)
        with trio.socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            await datagrams.bind((LOCAL, 0))
            await datagrams.sendto(b"x", datagrams.getsockname())
            assert await datagrams.recv(10) == b"x"
        with pytest.raises(OSError, match="Bad file descriptor"):
            await near.send(b"x")
        assert rows() == {}

    run(main)


def test_nothing_is_watched_without_a_report() -> None:
    aiordma.uninstall()
    one, other = socket.socketpair()
    with one, other:
        cls = type(trio.socket.from_stdlib_socket(one))
    before = cls.send, cls.recv, trio.lowlevel.wait_readable
    aiordma.install()
    assert (cls.send, cls.recv, trio.lowlevel.wait_readable) == before
    aiordma.uninstall()
    aiordma.install(report=True)
    assert cls.send is not before[0]
    aiordma.uninstall()
    assert (cls.send, cls.recv, trio.lowlevel.wait_readable) == before
    assert hooks._installed is None
