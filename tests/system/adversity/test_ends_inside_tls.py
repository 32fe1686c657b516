"""However a process ends, the peers of its connections inside TLS get what asyncio's TLS would have left.

One process has a connection of each kind, in both roles, and ends them all at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import functools
import itertools
import socket
import ssl
import sys
import termios
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import anyio
import anyio.to_thread
import pytest
import trustme

import aiordma
from aiordma import wake
from aiordma.config import Config
from aiordma.links import engine as engines
from aiordma.links.failover.tcp_carrier import ends_tcp
from aiordma.pipes.tls import TlsPipe
from tests.health import until
from tests.loops import LOOPS
from tests.processes import PATIENCE, process
from tests.roles import LOCAL, port_of
from tests.system.adversity.test_ends import ENDS, end
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.program import Control

    Send = Callable[[bytes], Any]

pytestmark = pytest.mark.anyio

HERE = "tests.system.adversity.test_ends_inside_tls"
NONE, SOFT = Config(device="none"), Config(device=DEVICE)
PIECES = [b"h" * 100, b"b" * 3000, b"r" * 50_000]
SIZE = sum(map(len, PIECES))


class Kind(NamedTuple):
    """How a connection gets into TLS."""

    loops: tuple[str, ...]
    #: Where its payload travels: in TLS on TCP, in TLS over RDMA, or by RDMA outside TLS.
    path: Literal["tcp", "over rdma", "outside"] = "tcp"
    options: dict[str, Any] = {}  # noqa: RUF012


ASYNCIO = ("asyncio", "asyncio+uvloop")
KINDS = {
    "plain": Kind(ASYNCIO),
    "writer": Kind(ASYNCIO),
    "own writer": Kind(ASYNCIO, options={"rdma_outside_tls": True, "config": NONE}),
    "writer outside": Kind(ASYNCIO, "outside", {"rdma_outside_tls": True, "config": SOFT, "mode": "rdma"}),
    "plain start_tls": Kind(ASYNCIO, "over rdma"),
    "start_tls": Kind(ASYNCIO, "over rdma", {"config": SOFT, "mode": "rdma"}),
    "stream": Kind(tuple(LOOPS), options={"config": NONE}),
    "stream outside": Kind(
        tuple(LOOPS), "outside", {"rdma_outside_tls": True, "config": SOFT, "mode": "rdma"}
    ),
    "trio": Kind(("trio",), "over rdma"),
}
ROLES = ("client", "server")
_IGNORES = getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0x80)


def contexts(folder: str | Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of clients, and of servers."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(f"{folder}/server.pem")
    client = ssl.create_default_context(cafile=f"{folder}/authority.pem")
    for context in (client, server):
        context.options &= ~_IGNORES  # some Pythons have it by default
    return client, server


# ---- the process that ends

#: What would otherwise be closed by its finalizer before the end.
_kept: list[object] = []


async def _writer(kind: str, say: Callable[[int], None], port: int | None, folder: str) -> Send:
    client, server = contexts(folder)
    module: Any = asyncio if kind.startswith("plain") else aiordma
    later = kind.endswith("start_tls")
    options = KINDS[kind].options
    if port is not None:
        made = await module.open_connection(LOCAL, port, ssl=None if later else client, **options)
    else:
        accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        listening = await module.start_server(
            lambda *pair: accepted.set_result(pair), LOCAL, 0, ssl=None if later else server, **options
        )
        _kept.append(listening)
        say(port_of(listening))
        made = await accepted
    reader, writer = made
    if later:
        if port is not None:
            writer.write(b"T")
        assert await reader.readexactly(1) == b"T"
        if port is None:
            writer.write(b"T")
        await writer.start_tls(server if port is None else client, server_hostname=LOCAL if port else None)
    _kept.append(made)

    async def send(piece: bytes) -> None:
        writer.write(piece)
        await writer.drain()

    return send


async def _stream(kind: str, say: Callable[[int], None], port: int | None, folder: str) -> Send:
    client, server = contexts(folder)
    options = KINDS[kind].options
    if port is not None:
        stream = await aiordma.connect(LOCAL, port, ssl=client, **options)
    else:
        options = {name: value for name, value in options.items() if name != "mode"}
        listener = await aiordma.listen(LOCAL, ssl=server, **options)
        _kept.append(listener)
        say(listener.port)
        stream = await listener.accept()
    _kept.append(stream)
    return stream.send


async def _trio(kind: str, say: Callable[[int], None], port: int | None, folder: str) -> Send:
    import trio

    client, server = contexts(folder)
    aiordma.install()
    if port is not None:
        inside = trio.SSLStream(await trio.open_tcp_stream(LOCAL, port), client, server_hostname=LOCAL)
    else:
        (listener,) = await trio.open_tcp_listeners(0, host=LOCAL)
        _kept.append(listener)
        say(listener.socket.getsockname()[1])
        inside = trio.SSLStream(await listener.accept(), server, server_side=True)
    if port is None:
        assert await inside.transport_stream.receive_some(1) == b"T"
        await inside.transport_stream.send_all(b"T")
    else:
        await inside.transport_stream.send_all(b"T")
        assert await inside.transport_stream.receive_some(1) == b"T"
    await inside.do_handshake()
    _kept.append(inside)
    send: Send = inside.send_all
    return send


async def ending(
    control: Control, kinds: list[str], ports: list[int], served: list[str], folder: str, how: str
) -> None:
    """Has a connection of each kind as a client, and one as a server; writes to all of them, and ends."""
    sends: dict[tuple[str, str], Send] = {}

    async def open_one(kind: str, role: str, port: int | None) -> None:
        open_it = _trio if kind == "trio" else _stream if kind.startswith("stream") else _writer
        sends[kind, role] = await open_it(kind, lambda port: control.say([kind, port]), port, folder)

    async with anyio.create_task_group() as tasks:
        for kind, port in zip(kinds, ports, strict=False):
            tasks.start_soon(open_one, kind, "client", port)
        for kind in served:
            tasks.start_soon(open_one, kind, "server", None)
    control.say("open")
    await control.hear()
    for piece in PIECES:
        for send in sends.values():
            await send(piece)
    end(how)


# ---- what its peers get

Left = tuple[int, str]


def _receive(tls: ssl.SSLSocket) -> bytes:
    if not tls.pending():
        # By the kernel, too: some versions of Python call a reset an end.
        socket.socket.recv(tls, 1, socket.MSG_PEEK)
    return tls.recv(65536)


def read_tls(tls: ssl.SSLSocket) -> Left:
    got = 0
    try:
        while part := _receive(tls):
            got += len(part)
    except ssl.SSLError as exc:
        if not ends_tcp(exc):
            raise
        return got, "cut off"
    except ConnectionError:
        return got, "reset"
    return got, "the end of TLS"


def read_blocking(folder: Path, listener: socket.socket | None, port: int, ready: list[int]) -> Left:
    """By the standard library, which knows nothing of RDMA. `ready`: its server has sent its tickets."""
    client, server = contexts(folder)
    if listener is not None:
        sock, _ = listener.accept()
        tls = server.wrap_socket(sock, server_side=True, suppress_ragged_eofs=False)
    else:
        sock = socket.create_connection((LOCAL, port))
        tls = client.wrap_socket(sock, server_hostname=LOCAL, suppress_ragged_eofs=False)
    with tls:
        ready.append(port)
        return read_tls(tls)


async def read_stream(stream: aiordma.RdmaStream) -> Left:
    got = 0
    async with stream:
        assert stream.path == "rdma"
        try:
            async for part in stream:
                got += len(part)
        except anyio.BrokenResourceError:
            return got, "reset"
    return got, "end"


async def read_writer(kind: str, pair: Any, context: ssl.SSLContext, client: bool) -> Left:
    reader, writer = pair
    if not kind.startswith("plain"):
        assert writer.get_extra_info("aiordma.path") == "rdma"
    if client:
        writer.write(b"T")
        assert await reader.readexactly(1) == b"T"
    else:
        assert await reader.readexactly(1) == b"T"
        writer.write(b"T")
    await writer.start_tls(context, server_hostname=LOCAL if client else None)
    got, how = 0, "end"
    try:
        while part := await reader.read(65536):
            got += len(part)
    except ConnectionError:
        how = "reset"
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return got, how


async def left_by(
    loop: str, how: str, folder: Path, kinds: list[str], roles: tuple[str, ...] = ROLES
) -> dict[tuple[str, str], Left]:
    """By kind and role, how many bytes a process leaves to its peers, and which end."""
    client, server = contexts(folder)
    left: dict[tuple[str, str], Left] = {}
    ports: list[int] = []
    ready: list[int] = []
    blocking = sum(KINDS[kind].path == "tcp" for kind in kinds) * len(roles)

    async with contextlib.AsyncExitStack() as stack, anyio.create_task_group() as tasks:

        async def note(what: tuple[str, str], reading: Any) -> None:
            left[what] = await reading

        async def accepted(listener: Any, kind: str) -> Left:
            return await read_stream(await listener.accept())

        async def upgraded(accepting: asyncio.Future[Any], kind: str) -> Left:
            return await read_writer(kind, await accepting, server, client=False)

        for kind in kinds if "client" in roles else ():
            path, what = KINDS[kind].path, (kind, "client")
            if path == "tcp":
                listener = stack.enter_context(socket.create_server((LOCAL, 0)))
                ports.append(listener.getsockname()[1])
                reading = anyio.to_thread.run_sync(read_blocking, folder, listener, 0, ready)
            elif path == "outside":
                made = await aiordma.listen(LOCAL, ssl=server, rdma_outside_tls=True)
                await stack.enter_async_context(made)
                ports.append(made.port)
                reading = accepted(made, kind)
            else:
                future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                module: Any = asyncio if kind.startswith("plain") else aiordma
                serving = await module.start_server(functools.partial(_set, future), LOCAL, 0)
                await stack.enter_async_context(serving)
                ports.append(port_of(serving))
                reading = upgraded(future, kind)
            tasks.start_soon(note, what, reading)
        served = kinds if "server" in roles else []
        arguments: Any = {"kinds": kinds, "ports": ports, "served": served, "folder": str(folder), "how": how}
        victim = stack.enter_context(process(f"{HERE}:ending", loop, **arguments))
        victim.expect(ENDS[how])

        async def connect(kind: str, port: int) -> Left:
            path = KINDS[kind].path
            if path == "tcp":
                return await anyio.to_thread.run_sync(read_blocking, folder, None, port, ready)
            if path == "outside":
                return await read_stream(
                    await aiordma.connect(LOCAL, port, mode="rdma", ssl=client, rdma_outside_tls=True)
                )
            module: Any = asyncio if kind.startswith("plain") else aiordma
            return await read_writer(kind, await module.open_connection(LOCAL, port), client, client=True)

        while (said := await victim.heard()) != "open":
            tasks.start_soon(note, (said[0], "server"), connect(*said))
        # What it has not read when it ends makes a reset, with any library.
        await until(lambda: len(ready) == blocking)
        victim.say("go")
    return left


def _set(future: asyncio.Future[Any], *pair: Any) -> None:
    future.set_result(pair)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(path / "authority.pem")
    authority.issue_cert(LOCAL).private_key_and_cert_chain_pem.write_to_path(path / "server.pem")
    return path


@pytest.fixture
def anyio_backend() -> object:
    """The process that ends has every loop; its peer one, on which plain asyncio can be the reference."""
    return LOOPS["asyncio"]


def kinds_of(loop: str, *paths: str) -> list[str]:
    return [name for name, kind in KINDS.items() if loop in kind.loops and kind.path in paths]


@pytest.mark.parametrize("kind", ["stream", "own writer"])
@pytest.mark.parametrize("anyio_backend", LOOPS.values(), ids=LOOPS)
async def test_tickets_are_read_of_who_only_sends(kind: str, folder: Path, anyio_backend: Any) -> None:
    """What lies unread when a process ends makes a reset of its end."""
    if kind == "own writer" and anyio_backend[0] == "trio":
        pytest.skip("asyncio's surface")
    _, server = contexts(folder)
    opening = _stream if kind == "stream" else _writer
    with socket.create_server((LOCAL, 0)) as listener:
        accepted: list[ssl.SSLSocket] = []

        def accept() -> None:
            sock, _ = listener.accept()
            accepted.append(server.wrap_socket(sock, server_side=True))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, accept)
            send = await opening(kind, print, listener.getsockname()[1], str(folder))
        made: Any = _kept.pop()
        with accepted[0]:  # it has sent its tickets
            assert unread(kind, made) or kind == "own writer"  # whose transport reads by itself
            await send(b"x")
            await until(lambda: not unread(kind, made))
            assert (await anyio.to_thread.run_sync(accepted[0].recv, 10)) == b"x"
            accepted[0].send(b"y")
            if kind == "stream":
                assert await made.receive() == b"y"
                await anyio.aclose_forcefully(made)
            else:
                assert await made[0].read(10) == b"y"
                made[1].transport.abort()


def unread(kind: str, made: Any) -> int:
    """Bytes that the kernel has of the peer."""
    pipe = made._pipe if kind == "stream" else made[1].transport._pipe
    assert isinstance(pipe, TlsPipe)
    queued = fcntl.ioctl(pipe._layer.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(queued, sys.byteorder)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("how", ENDS)
async def test_on_tcp(how: str, loop: str, folder: Path) -> None:
    """Everything, and no end of TLS, of which nobody has said that it was meant."""
    kinds = kinds_of(loop, "tcp")
    with anyio.fail_after(PATIENCE):
        left = await left_by(loop, how, folder, kinds)
    # asyncio's own TLS may have a ticket to read.
    for (kind, role), (_, which) in left.items():
        assert which == "cut off" or (which == "reset" and kind in ("plain", "writer")), (kind, role)
    assert {what: size for what, (size, _) in left.items()} == dict.fromkeys(
        itertools.product(kinds, ROLES), SIZE
    )


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("how", ["return", "raise", "sys.exit"])
async def test_by_rdma(how: str, loop: str, folder: Path) -> None:
    """A stream outside TLS ends as one without it. Of a session over RDMA, asyncio takes an end for one."""
    kinds = kinds_of(loop, "over rdma", "outside")
    with anyio.fail_after(PATIENCE):
        left = await left_by(loop, how, folder, kinds)
    assert left == {(kind, role): (SIZE, right_end(kind, role)) for kind in kinds for role in ROLES}


#: One by one: of several connections of two processes, some may hold something back when they are killed.
ONE_BY_ONE = [
    (kind, loop) for loop in LOOPS for kind in kinds_of(loop, "over rdma", "outside") if "plain" not in kind
]


@pytest.mark.skipif(DEVICE != "soft", reason="only the software device shows what a process left undone")
@pytest.mark.parametrize(("how", "role"), [("os._exit", "client"), ("SIGKILL", "server")])
@pytest.mark.parametrize(("kind", "loop"), ONE_BY_ONE)
async def test_by_rdma_when_no_code_runs(kind: str, loop: str, how: str, role: str, folder: Path) -> None:
    with anyio.fail_after(PATIENCE):
        left = await left_by(loop, how, folder, [kind], (role,))
    assert left == {(kind, role): (SIZE, right_end(kind, role))}


def right_end(kind: str, role: str) -> str:
    """trio's session reads nothing before it is asked, so the tickets of its server are unread, as on TCP."""
    return "reset" if (kind, role) == ("trio", "client") else "end"


class Broken:
    """A TCP connection that has ended in some way, in the place of one that has not."""

    def __init__(self, carrier: Any, error: OSError) -> None:
        self._carrier, self._error = carrier, error

    def recv(self, size: int) -> bytes:
        raise self._error

    def fileno(self) -> int:
        fd: int = self._carrier.fileno()
        return fd

    def close(self) -> None:
        self._carrier.close()


@pytest.mark.skipif(DEVICE != "soft", reason="only the software device shows what a process left undone")
@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "cut off"),
        ConnectionResetError(errno.ECONNRESET, "tickets were unread"),
    ],
)
async def test_the_device_has_the_last_word(error: OSError, folder: Path) -> None:
    """The kernel ends the TCP connection of a killed process by an error, and may be the first to say so."""
    _, server = contexts(folder)
    options = {"ssl": server, "rdma_outside_tls": True}
    async with await aiordma.listen(LOCAL, **options) as listener:  # type: ignore[arg-type]
        arguments: Any = {
            "kinds": ["stream outside"],
            "ports": [listener.port],
            "served": [],
            "folder": str(folder),
        }
        with process(f"{HERE}:ending", how="SIGKILL", **arguments) as victim, anyio.fail_after(PATIENCE):
            victim.expect(ENDS["SIGKILL"])
            async with await listener.accept() as stream:
                assert await victim.heard() == "open"
                (group,) = engines.ready(wake.current()).all_groups  # type: ignore[union-attr]
                (member,) = group.members
                await until(lambda: member.carrier is not None)
                member.carrier = Broken(member.carrier, error)
                member.look_at_tcp()
                victim.say("go")
                assert len(await stream.receive_exactly(SIZE)) == SIZE
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive()
