"""Queue pairs that only rdma_cm connects, as iWARP's: strangers at the door, nobody at home, another device.

The software device takes the part of such an adapter. That streams, datagrams and calls run there is in
test_iwarp.py; on the kernel's siw they run in tests/vm/siw.txt."""

from __future__ import annotations

import ctypes
import errno
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.errors import Code, NegotiationError, VerbsError
from aiordma.links.cm_connect import CmAddress, CmConnection
from aiordma.links.engine import current
from aiordma.verbs import rdmacm
from tests.health import descriptors, endpoint_begun
from tests.loops import LOOPS
from tests.processes import process
from tests.roles import LOCAL, echo
from tests.system.integration.test_iwarp import BY_CM, IWARP

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiordma.links.engine import Engine
    from tests.program import Control

pytestmark = pytest.mark.slow

HERE = "tests.links.test_cm_connect"


class End:
    """One end of a connection, with a queue pair that is ready for it."""

    def __init__(self, engine: Engine) -> None:
        self.parts, self.lost, self.peers = engine.take_parts(), anyio.Event(), list[int]()
        self.parts.qp.to_init()
        backend = engine.backend
        self.number = self.parts.qp.number
        self.cm = CmConnection(
            engine.waker, backend.rdma_cm(), backend.name, self.number, 4, 0, self.peers.append, self._on_lost
        )

    def _on_lost(self, reason: str) -> None:
        self.lost.set()

    def close(self) -> None:
        self.cm.close()
        self.cm.close()
        self.parts.close()


async def refusal(end: End, place: CmAddress) -> int | None:
    try:
        with anyio.fail_after(10):
            await end.cm.connect(place)
    except VerbsError as error:
        return error.errno
    finally:
        end.close()
    return 0


async def strangers(control: Control) -> None:
    """Says how strangers are refused, which client is let in, and whether its end is noticed."""
    engine = await current()
    server, client = End(engine), End(engine)
    place = server.cm.listen(LOCAL)
    wrong = [
        place._replace(token=bytes(16)),
        place._replace(token=place.token[:15] + bytes([place.token[15] ^ 1])),
    ]
    refused = [await refusal(End(engine), other) for other in wrong]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.cm.connect, place)
        await server.cm.accepted()
    # The door is closed behind the one that was meant.
    refused.append(await refusal(End(engine), place))
    here = server.peers == [client.number]
    client.close()
    with anyio.fail_after(10):
        await server.lost.wait()
    server.close()
    control.say([refused, here])


async def silence(control: Control) -> None:
    """A listener that says nothing: giving up leaves nothing behind, at any moment. Says how many files."""
    engine = await current()
    engine.take_parts().close()
    channel = rdmacm.EventChannel(engine.backend.rdma_cm())
    deaf, gone = rdmacm.ConnectionId(channel), rdmacm.ConnectionId(channel)
    here = bytes(10) + b"\xff\xff\x7f\0\0\1"
    place = CmAddress(deaf.listen(rdmacm.sockaddr(LOCAL, 0)), here, b"T" * 16)
    nowhere = CmAddress(gone.listen(rdmacm.sockaddr(LOCAL, 0)), here, b"T" * 16)
    gone.close()
    nobody = await refusal(End(engine), nowhere)
    await endpoint_begun()
    files = len(descriptors())
    for turns in range(16):
        end = End(engine)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end.cm.connect, place)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        end.close()
    left = len(descriptors()) - files
    deaf.close()
    channel.close()
    control.say([left, nobody])


async def taken_ports(control: Control) -> None:
    """Sockets hold the first ports that rdma_cm chooses, or all. Says how many, and the error."""
    engine = await current()
    listen, tried = rdmacm.ConnectionId.listen, 0

    def with_sockets(taken: int) -> Callable[[rdmacm.ConnectionId, bytes], int]:
        def asked(listener: rdmacm.ConnectionId, address: bytes) -> int:
            nonlocal tried
            tried += 1
            if tried <= taken:
                raise VerbsError(errno.EADDRINUSE, "rdma_listen")
            return listen(listener, address)

        return asked

    await endpoint_begun()
    for taken in (3, 1000):
        end, tried, found = End(engine), 0, 0
        setattr(rdmacm.ConnectionId, "listen", with_sockets(taken))  # noqa: B010
        files = len(descriptors())
        try:
            assert end.cm.listen(LOCAL).port > 0
        except VerbsError as error:
            found = error.errno or 0
            assert len(descriptors()) == files
        end.close()
        control.say([min(tried, taken), found])


async def server(control: Control) -> None:
    """Echoes; says its port, then how each stream goes."""

    async def serve(stream: aiordma.RdmaStream) -> None:
        why = stream.fallback_reason
        control.say([stream.path, why and why.code])
        await echo(stream)

    async with await aiordma.listen(LOCAL) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        control.say(listener.port)
        await control.heard_all()
        tasks.cancel_scope.cancel()


async def client(control: Control, port: int) -> None:
    """Says how its stream goes, once something has come back on it."""
    async with await aiordma.connect(LOCAL, port) as stream:
        why = stream.fallback_reason
        await stream.send(b"there and back")
        got = b""
        while got != b"there and back":
            got += await stream.receive()
        control.say([stream.path, why and why.code])


@pytest.mark.parametrize("loop", LOOPS)
def test_only_who_has_the_token_is_let_in(loop: str) -> None:
    with process(f"{HERE}:strangers", loop, BY_CM) as running:
        refused, here = running.hear()
        assert refused == [errno.ECONNREFUSED] * 3
        assert here


def test_a_port_that_a_socket_holds_is_not_the_end() -> None:
    with process(f"{HERE}:taken_ports", "asyncio", BY_CM) as running:
        assert running.hear() == [3, 0]
        taken, error = running.hear()
        assert 10 < taken < 1000
        assert error == errno.EADDRINUSE


@pytest.mark.timeout(240)  # a test run of its own
def test_a_host_with_loopback_only() -> None:
    """In a network namespace of its own, whose only address is 127.0.0.1."""
    made = subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True)
    if made.returncode or shutil.which("ip") is None:
        pytest.skip("no network namespace can be made here, or ip (iproute2) is missing")
    script = 'ip link set lo up && exec "$1" -m pytest -q -p no:cacheprovider -p no:xdist "$2"'
    test = f"{__file__}::test_only_who_has_the_token_is_let_in[asyncio]"
    command = ["unshare", "-n", "sh", "-c", script, "sh", sys.executable, test]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("loop", LOOPS)
def test_given_up_connections_leave_nothing(loop: str) -> None:
    with process(f"{HERE}:silence", loop, BY_CM) as running:
        left, nobody = running.hear()
        assert left == 0
        assert nobody == errno.ECONNREFUSED


@pytest.mark.parametrize("envs", [(BY_CM, IWARP), (IWARP, BY_CM)], ids=["client", "server"])
def test_the_other_end_connects_otherwise(envs: tuple[dict[str, str], dict[str, str]]) -> None:
    """TCP, and both ends know why."""
    with process(f"{HERE}:server", "asyncio", envs[1]) as serving:
        with process(f"{HERE}:client", "asyncio", envs[0], port=serving.hear()) as asking:
            assert asking.hear() == ["tcp", Code.NEEDS_RDMA_CM]
        assert serving.hear() == ["tcp", Code.NEEDS_RDMA_CM]


def test_a_missing_library_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, **_: Any) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(NegotiationError, match="librdmacm1") as caught:
        rdmacm.load.__wrapped__()
    assert caught.value.code == Code.NEEDS_RDMA_CM


def test_addresses() -> None:
    assert rdmacm.sockaddr("192.0.2.1", 0x1234)[2:8] == b"\x12\x34\xc0\0\2\1"
    assert rdmacm.sockaddr("2001:db8::1", 1)[2:4] == b"\0\1"
    assert len(rdmacm.sockaddr("2001:db8::1", 1)) == 28
    for wrong in ("fe80::1%eth0", "localhost"):
        with pytest.raises(ValueError, match=r"scope|not appear"):
            rdmacm.sockaddr(wrong, 1)
    assert CmAddress(1, bytes(10) + b"\xff\xff\xc0\0\2\1", b"").host == "192.0.2.1"
    assert CmAddress(1, bytes(15) + b"\1", b"").host == "::1"
