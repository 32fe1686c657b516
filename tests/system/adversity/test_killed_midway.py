"""What a process leaves that is killed with bytes unread, or unsent: as its counterpart on plain TCP.

What a program has not taken from the kernel resets its connection when it is killed. How much it takes before
its program reads is the matter of each surface: asyncio's reader takes two of its limits, a protocol that
is not paused takes all, and streams of anyio and of trio take nothing. So for each case the plain counterpart
is measured first, and the same connection by RDMA must leave the same.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import select
import signal
import socket
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import pytest

import aiordma
from aiordma import wake
from tests.health import until
from tests.loops import LOOPS
from tests.processes import PATIENCE, process
from tests.roles import LOCAL
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.program import Control

HERE = "tests.system.adversity.test_killed_midway"
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(DEVICE != "soft", reason="only the software device shows what a process left undone"),
]

#: What is written without an end: more than kernels and rings take.
TOO_MUCH = 64 << 20


@pytest.fixture
def anyio_backend() -> object:
    """The process that is killed has every loop, its peer one."""
    return LOOPS["asyncio"]


# ---- the process that is killed


class Holder(NamedTuple):
    """One connection of a process that reads nothing, and what its test must know of it."""

    #: Whether the surface has taken as much of `size` bytes as it takes, and the rest waits in the kernel.
    came: Callable[[int], bool]
    #: Sends; returns when it has, if ever.
    write: Callable[[bytes], Coroutine[Any, Any, object]]
    #: Whether a part of what it sends waits in the process.
    is_stuck: Callable[[], bool]


_kept: list[object] = []


def in_kernel(descriptor: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]


def in_ring(pipe: Any) -> int:
    pipe.look()  # nobody waits for it
    readable: int = pipe.readable
    return readable


class _Protocol(asyncio.Protocol):
    def __init__(self) -> None:
        self.got = 0
        self.made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.made.set_result(transport)

    def data_received(self, data: bytes) -> None:
        self.got += len(data)


def _waiting(transport: Any) -> Callable[[], int]:
    """Bytes that wait for the program outside of it."""
    pipe = getattr(transport, "_pipe", None)
    if pipe is None:
        return lambda: in_kernel(transport.get_extra_info("socket").fileno())
    return lambda: in_ring(pipe)


async def _protocol(control: Control, port: int | None, module: Any, paused: bool) -> Holder:
    protocol = _Protocol()
    if port is not None:
        await module.create_connection(lambda: protocol, LOCAL, port)
    else:
        server = await module.create_server(lambda: protocol, LOCAL, 0)
        _kept.append(server)
        control.say(server.sockets[0].getsockname()[1])
    transport = await protocol.made
    if paused:
        await asyncio.sleep(0)  # asyncio 3.11 forgets a pause in connection_made()
        await asyncio.sleep(0)
        transport.pause_reading()
    waiting = _waiting(transport)

    async def write(data: bytes) -> None:
        transport.write(data)

    return Holder(
        came=lambda size: waiting() > 0 if paused else protocol.got == size,
        write=write,
        is_stuck=lambda: transport.get_write_buffer_size() > 0,
    )


async def _streams(control: Control, port: int | None, module: Any, limit: int, paused: bool) -> Holder:
    if port is not None:
        reader, writer = await module.open_connection(LOCAL, port, limit=limit)
    else:
        accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def serve(*pair: Any) -> None:
            accepted.set_result(pair)
            await asyncio.Event().wait()

        server = await module.start_server(serve, LOCAL, 0, limit=limit)
        _kept.append(server)
        control.say(server.sockets[0].getsockname()[1])
        reader, writer = await accepted
    transport = writer.transport
    waiting = _waiting(transport)
    if paused:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        transport.pause_reading()
    pipe = getattr(transport, "_pipe", None)

    def came(size: int) -> bool:
        if paused:
            return waiting() > 0
        if pipe is not None:
            ring: int = pipe.statistics().ring_bytes
            return in_ring(pipe) == min(size, ring)
        taken = len(reader._buffer)
        return taken == size or (taken > 2 * limit and waiting() > 0)

    async def write(data: bytes) -> None:
        writer.write(data)

    return Holder(
        came=came,
        write=write,
        is_stuck=lambda: transport.get_write_buffer_size() > 0,
    )


async def _socket_of_anyio(control: Control, port: int | None) -> Holder:
    if port is not None:
        stream: Any = await anyio.connect_tcp(LOCAL, port)
    else:
        listener = await anyio.create_tcp_listener(local_host=LOCAL)
        _kept.append(listener)
        control.say(listener.extra(anyio.abc.SocketAttribute.local_port))
        socket_listener: Any = listener.listeners[0]
        stream = await socket_listener.accept()
    _kept.append(stream)
    descriptor = stream.extra(anyio.abc.SocketAttribute.raw_socket).fileno()
    return _of_stream(stream.send, lambda: in_kernel(descriptor), lambda: not _takes(descriptor))


def _takes(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


async def _native(control: Control, port: int | None) -> Holder:
    if port is not None:
        stream = await aiordma.connect(LOCAL, port)
    else:
        listener = await aiordma.listen(LOCAL)
        _kept.append(listener)
        control.say(listener.port)
        stream = await listener.accept()
    _kept.append(stream)
    return _of_pipe(stream.send, stream._pipe)


async def _trio(control: Control, port: int | None, installed: bool) -> Holder:
    import trio

    if installed:
        aiordma.install()
    if port is not None:
        stream: Any = await trio.open_tcp_stream(LOCAL, port)
    else:
        (listener,) = await trio.open_tcp_listeners(0, host=LOCAL)
        _kept.append(listener)
        control.say(listener.socket.getsockname()[1])
        stream = await listener.accept()
    _kept.append(stream)
    if installed:
        return _of_pipe(stream.send_all, stream.socket.stream._pipe)
    descriptor = stream.socket.fileno()
    return _of_stream(stream.send_all, lambda: in_kernel(descriptor), lambda: not _takes(descriptor))


def _of_pipe(send: Callable[[bytes], Coroutine[Any, Any, object]], pipe: Any) -> Holder:
    return _of_stream(send, lambda: in_ring(pipe), lambda: pipe.writable == 0)


def _of_stream(
    send: Callable[[bytes], Coroutine[Any, Any, object]],
    waiting: Callable[[], int],
    is_stuck: Callable[[], bool],
) -> Holder:
    return Holder(came=lambda _size: waiting() > 0, write=send, is_stuck=is_stuck)


async def holder(control: Control, surface: str, plain: bool, port: int | None, limit: int) -> Holder:
    if surface in ("protocol", "paused protocol"):
        module: Any = asyncio.get_running_loop() if plain else aiordma
        return await _protocol(control, port, module, surface.startswith("paused"))
    if surface in ("streams", "paused streams"):
        module = asyncio if plain else aiordma
        return await _streams(control, port, module, limit, surface.startswith("paused"))
    if surface == "trio":
        return await _trio(control, port, installed=not plain)
    return await (_socket_of_anyio if plain else _native)(control, port)


async def killed(
    control: Control,
    surface: str,
    plain: bool,
    how: str,
    unread: int,
    unsent: int,
    port: int | None = None,
    limit: int = 1 << 16,
    sent: int = 0,
) -> None:
    """Ends with `unread` bytes that the program has not read, `unsent` ones that do not go, or after it
    has sent its first ones.
    """
    ends = await holder(control, surface, plain, port, limit)
    async with anyio.create_task_group() as tasks:
        if sent:
            if not plain:
                await until(_has_peers_memory)
            await ends.write(b"f" * sent)
        elif unsent:
            tasks.start_soon(ends.write, b"s" * unsent)
            await until(ends.is_stuck)
        else:
            control.say("reading")
            await until(lambda: ends.came(unread))
        if how == "os._exit":
            os._exit(4)
        os.kill(os.getpid(), signal.SIGKILL)


def _has_peers_memory() -> bool:
    """Whether this process maps more than its own rings."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").count("softdev-slab")
    own: int = wake.current().locals["engine"].statistics()["memory"]["slabs"]
    return maps > own


# ---- what its peer gets


async def left_on_tcp(role: str, arguments: dict[str, Any], loop: str, unread: int) -> tuple[int, str]:
    running = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        if role == "client":
            server = stack.enter_context(socket.create_server((LOCAL, 0)))
            server.setblocking(False)
            victim = stack.enter_context(victim_of(arguments, loop, server.getsockname()[1]))
            sock = stack.enter_context((await running.sock_accept(server))[0])
        else:
            victim = stack.enter_context(victim_of(arguments, loop, None))
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            await running.sock_connect(sock, (LOCAL, await victim.heard()))
        sock.setblocking(False)
        ends: set[str] = set()
        if unread:
            assert await victim.heard() == "reading"
            try:
                await running.sock_sendall(sock, b"u" * unread)
            except ConnectionError:
                ends.add("reset")  # the kernel says it once
        if not arguments.get("sent"):  # trio keeps its kernel's buffers small, and would wait
            await anyio.to_thread.run_sync(victim.wait)
        got = 0
        try:
            while data := await running.sock_recv(sock, 1 << 16):
                got += len(data)
        except ConnectionError:
            ends.add("reset")
        return got, ends.pop() if ends else "end"


async def left_by_rdma(role: str, arguments: dict[str, Any], loop: str, unread: int) -> tuple[int, str]:
    async with contextlib.AsyncExitStack() as stack:
        if role == "client":
            listener = await stack.enter_async_context(await aiordma.listen(LOCAL))
            victim = stack.enter_context(victim_of(arguments, loop, listener.port))
            stream = await listener.accept()
        else:
            victim = stack.enter_context(victim_of(arguments, loop, None))
            stream = await aiordma.connect(LOCAL, await victim.heard(), mode="rdma")
        await stack.enter_async_context(stream)
        assert stream.path == "rdma"
        if unread:
            assert await victim.heard() == "reading"
            with contextlib.suppress(anyio.BrokenResourceError):
                await stream.send(b"u" * unread)
        await anyio.to_thread.run_sync(victim.wait)
        got = 0
        try:
            async for part in stream:
                got += len(part)
        except anyio.BrokenResourceError:
            return got, "reset"
        return got, "end"


@contextlib.contextmanager
def victim_of(arguments: dict[str, Any], loop: str, port: int | None) -> Any:
    with process(f"{HERE}:killed", loop, port=port, **arguments) as victim:
        victim.expect(4 if arguments["how"] == "os._exit" else -signal.SIGKILL)
        yield victim


# ---- the table

#: A limit of which asyncio's reader takes twice as much as rings have at first.
WIDE = 1 << 19
#: Each surface, the limit of its reader, and the loops that it has.
SURFACES = [
    ("streams", 1 << 16, ("asyncio", "asyncio+uvloop")),
    ("streams", WIDE, ("asyncio",)),
    ("streams", 1 << 10, ("asyncio",)),
    ("paused streams", 1 << 16, ("asyncio", "asyncio+uvloop")),
    ("protocol", 0, ("asyncio", "asyncio+uvloop")),
    ("paused protocol", 0, ("asyncio", "asyncio+uvloop")),
    ("stream", 0, ("asyncio", "asyncio+uvloop", "trio")),
    ("trio", 0, ("trio",)),
]
TABLE = pytest.mark.parametrize(
    ("surface", "limit", "loop"),
    [(surface, limit, loop) for surface, limit, loops in SURFACES for loop in loops],
)
WAYS = pytest.mark.parametrize(("role", "how"), [("client", "SIGKILL"), ("server", "os._exit")])


@pytest.mark.slow
@TABLE
@WAYS
async def test_bytes_that_were_not_read(surface: str, limit: int, loop: str, role: str, how: str) -> None:
    for unread in (1, 1000, 60_000, *((200_000,) if limit == WIDE else ()), 4_000_000):
        arguments: dict[str, Any] = {"surface": surface, "how": how, "unread": unread, "unsent": 0}
        if limit:
            arguments["limit"] = limit
        # A stream that anyio has accepted reads until it is first asked for something, and no other does.
        by = "client" if surface == "stream" else role
        with anyio.fail_after(PATIENCE):
            expected = await left_on_tcp(by, {**arguments, "plain": True}, loop, unread)
        with anyio.fail_after(PATIENCE):
            got = await left_by_rdma(role, {**arguments, "plain": False}, loop, unread)
        assert got == expected, unread


@TABLE
@WAYS
async def test_the_bytes_of_a_first_large_write(
    surface: str, limit: int, loop: str, role: str, how: str
) -> None:
    """They are more than what waits for a peer that has not said yet where its memory lies."""
    arguments: dict[str, Any] = {"surface": surface, "how": how, "unread": 0, "unsent": 0, "sent": 300_000}
    if limit:
        arguments["limit"] = limit
    with anyio.fail_after(PATIENCE):
        expected = await left_on_tcp(role, {**arguments, "plain": True}, loop, 0)
    with anyio.fail_after(PATIENCE):
        got = await left_by_rdma(role, {**arguments, "plain": False}, loop, 0)
    assert got == expected == (300_000, "end")


@TABLE
@WAYS
async def test_bytes_that_were_not_sent(surface: str, limit: int, loop: str, role: str, how: str) -> None:
    """Plain TCP ends in order, and the reader takes the part for the whole: by RDMA the loss shows."""
    arguments: dict[str, Any] = {"surface": surface, "how": how, "unread": 0, "unsent": TOO_MUCH}
    if limit:
        arguments["limit"] = limit
    with anyio.fail_after(PATIENCE):
        got, end = await left_on_tcp(role, {**arguments, "plain": True}, loop, 0)
    assert 0 < got < TOO_MUCH
    assert end == "end"
    with anyio.fail_after(PATIENCE):
        got, end = await left_by_rdma(role, {**arguments, "plain": False}, loop, 0)
    assert got < TOO_MUCH
    assert end == "reset"
