"""Listening sockets, and how a listener ends."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.abc import SocketAttribute

from aiordma.config import Config
from aiordma.streams.connector import connect
from aiordma.streams.listener import listen
from tests.health import until

from .serving import LOCAL, check_echo, echo, serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiordma.streams.stream import RdmaStream

    from .fake import Engine

pytestmark = pytest.mark.anyio

PATIENT = Config(head_start_ms=60_000)
#: Of both ends where a thousand connections begin at once, and each waits for its turn on a processor that
#: has other work, too. The limits that users have are for a peer that does not answer.
IDLE_LIMITS = Config(head_start_ms=600_000, negotiate_timeout_ms=600_000, server_first_wait_ms=600_000)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@needs_ipv6
@pytest.mark.parametrize("host", [None, ""])
async def test_every_interface_on_one_port(engine: Engine, host: str | None) -> None:
    async with await listen(host) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        assert {address[0] for address in listener.addresses} == {"0.0.0.0", "::"}
        assert len({address[1] for address in listener.addresses}) == 1
        for peer, family in ((LOCAL, "AF_INET"), ("::1", "AF_INET6"), ("localhost", None)):
            async with await connect(peer, listener.port) as stream:
                assert family in (None, stream.extra(SocketAttribute.family).name)
                await check_echo(stream)
        tasks.cancel_scope.cancel()


async def test_several_hosts(engine: Engine) -> None:
    async with await listen([LOCAL, "127.0.0.2"]) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        for host in (LOCAL, "127.0.0.2"):
            async with await connect(host, listener.port, local_host="127.0.0.3") as stream:
                assert stream.extra(SocketAttribute.local_address)[0] == "127.0.0.3"
                await check_echo(stream)
        tasks.cancel_scope.cancel()


async def test_errors_name_the_address() -> None:
    async with await listen(LOCAL) as listener:
        with pytest.raises(
            OSError, match=f"cannot listen on {LOCAL}:{listener.port}: Address already"
        ) as caught:
            await listen(LOCAL, listener.port)
        assert caught.value.errno == errno.EADDRINUSE
        with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1"):
            await listen("192.0.2.1")
        with pytest.raises(ValueError, match="max_pending=0"):
            await listen(LOCAL, max_pending=0)
        with pytest.raises(OSError, match=r"not known|No address|resolution"):
            await listen("no-such-host.invalid")


async def test_port_can_be_shared_when_asked() -> None:
    async with await listen(LOCAL, reuse_port=True) as one:
        async with await listen(LOCAL, one.port, reuse_port=True) as other:
            assert one.port == other.port


async def test_sockets_of_the_program(engine: Engine) -> None:
    """One that listens already, with a client in its queue, and one that is only bound."""
    listening, bound = socket.create_server((LOCAL, 0)), socket.socket()
    bound.bind((LOCAL, 0))
    addresses = [listening.getsockname(), bound.getsockname()]
    async with anyio.create_task_group() as tasks:
        early = socket.create_connection(addresses[0])
        async with await listen(sockets=[listening, bound]) as listener:
            assert listener.addresses == addresses
            tasks.start_soon(listener.serve, echo)
            for address in addresses:
                async with await connect(*address) as stream:
                    await check_echo(stream)
            async with await connect(*early.getpeername(), config=PATIENT) as stream:
                await check_echo(stream)
            early.close()
            tasks.cancel_scope.cancel()
    assert (listening.fileno(), bound.fileno()) == (-1, -1)


def unbound() -> socket.socket:
    return socket.socket()


def of_datagrams() -> socket.socket:
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.bind((LOCAL, 0))
    return sock


@pytest.mark.parametrize(
    ("make", "host", "reason"),
    [
        (unbound, None, "must be bound"),
        (of_datagrams, None, "must be TCP sockets"),
        (lambda: socket.socket(socket.AF_UNIX), None, "must be TCP sockets"),
        (lambda: socket.create_server((LOCAL, 0)), LOCAL, "have their own addresses"),
    ],
)
async def test_sockets_that_cannot_be_listened_on_are_refused_and_closed(
    make: Callable[[], socket.socket], host: str | None, reason: str
) -> None:
    sock = make()
    with pytest.raises(ValueError, match=reason):
        await listen(host, sockets=[sock])
    assert sock.fileno() == -1


async def test_no_sockets_are_not_the_default() -> None:
    with pytest.raises(ValueError, match="at least one"):
        await listen(sockets=[])


async def test_attributes_and_repr() -> None:
    async with await listen(LOCAL) as listener:
        assert listener.extra(SocketAttribute.local_port) == listener.port
        assert listener.extra(SocketAttribute.local_address) == (LOCAL, listener.port)
        assert f"{LOCAL}:{listener.port}" in repr(listener)
    assert "closed" in repr(listener)


async def test_closing_wakes_those_who_accept() -> None:
    ended = 0
    listener = await listen(LOCAL)

    async def expect_closed() -> None:
        nonlocal ended
        with pytest.raises(anyio.ClosedResourceError):
            await listener.accept()
        ended += 1

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(expect_closed)
        await anyio.wait_all_tasks_blocked()
        await listener.aclose()
    await listener.aclose()
    assert ended == 3
    with pytest.raises(anyio.ClosedResourceError):
        await listener.accept()
    with pytest.raises(ConnectionRefusedError, match=f"cannot connect to {LOCAL}:{listener.port}"):
        await connect(LOCAL, listener.port)


async def test_closing_ends_what_is_unfinished(engine: Engine) -> None:
    """Undecided connections, streams nobody accepted, and one whose task has not even begun."""
    listener = await listen(LOCAL)
    undecided = await anyio.connect_tcp(LOCAL, listener.port)
    unaccepted = await connect(LOCAL, listener.port)
    await until(lambda: listener.statistics().waiting == 1)
    fresh = socket.create_connection((LOCAL, listener.port))
    listener._acceptor.accept_from(listener._acceptor._sockets[0])
    await listener.aclose()
    with anyio.fail_after(5):
        for stream in (undecided, unaccepted):
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
            await stream.aclose()
        fresh.setblocking(False)
        await anyio.wait_readable(fresh)
    try:
        assert fresh.recv(1) == b""
    except ConnectionResetError:
        pass
    fresh.close()
    await until(lambda: not listener._jobs)


async def test_cancelled_accept_loses_no_stream(engine: Engine) -> None:
    async with await listen(LOCAL) as listener:
        got: list[RdmaStream] = []

        async def accept() -> None:
            got.append(await listener.accept())

        for _ in range(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(accept)
                await anyio.lowlevel.checkpoint()
                client = await connect(LOCAL, listener.port)
                tasks.cancel_scope.cancel()
            if not got:
                with anyio.fail_after(5):
                    await accept()
            await got.pop().aclose()
            await client.aclose()


async def test_handlers_run_side_by_side_and_may_use_a_group_of_the_caller(engine: Engine) -> None:
    both = anyio.Event()
    running = 0

    async def meet(stream: RdmaStream) -> None:
        nonlocal running
        async with stream:
            running += 1
            if running == 2:
                both.set()
            await both.wait()

    async with await listen(LOCAL) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, meet, tasks)
        async with await connect(LOCAL, listener.port), await connect(LOCAL, listener.port):
            with anyio.fail_after(5):
                await both.wait()
        tasks.cancel_scope.cancel()


@pytest.mark.timeout(300)
async def test_thousand_streams(engine: Engine) -> None:
    engine.first_contact = False
    paths = []
    async with serving(config=IDLE_LIMITS) as listener, anyio.create_task_group() as tasks:

        async def one(n: int) -> None:
            async with await connect(LOCAL, listener.port, config=IDLE_LIMITS) as stream:
                paths.append(stream.path)
                await stream.send(b"%d" % n)
                assert await stream.receive() == b"%d" % n

        for n in range(1000):
            tasks.start_soon(one, n)
    assert paths == ["rdma"] * 1000
