"""However a process ends, its peers get the datagrams that it sent, as by TCP and UDP. If the end runs code,
also what waits for room, on every carrier."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trustme

import aiordma
from aiordma import rpc
from aiordma.channels import channel as channels
from aiordma.datagrams.connection import connect_datagram, listen_datagram
from aiordma.datagrams.endpoint import open_datagram_endpoint
from aiordma.links import parting
from aiordma.pipes import tcp_channel, tls
from aiordma.rpc import multiplexer
from aiordma.rpc import server as servers
from tests.loops import LOOPS
from tests.pipes.channel_ends import End
from tests.processes import FULL_PATIENCE, PATIENCE, process
from tests.roles import LOCAL
from tests.system.adversity.test_ends import ENDS, end

if TYPE_CHECKING:
    from pathlib import Path

    from tests.program import Control

pytestmark = pytest.mark.anyio

HERE = "tests.system.adversity.test_ends_of_messages"
#: A head and its body leave at once; of more, an end that runs no code may leave a part.
PAIR = [b"head", b"body" * 400]
MANY = [bytes([n]) * 50 for n in range(40)]
RUNS_CODE = ("return", "raise", "sys.exit")

#: What would otherwise be closed by its finalizer before the end.
_kept: list[object] = []


@pytest.fixture
def anyio_backend() -> object:
    """The process that ends has every loop, its peer one."""
    return LOOPS["asyncio"]


def messages(how: str) -> list[bytes]:
    return MANY if how in RUNS_CODE else PAIR


# ---- datagrams that have found room


async def ending(control: Control, ports: dict[str, int], how: str) -> None:
    """A client of each listener, a server, and an endpoint: all send, and the process ends."""
    opened: list[Any] = []
    for mode in ("rdma", "tcp"):
        if mode in ports:
            opened.append(await connect_datagram(LOCAL, ports[mode], mode=mode))
        else:
            listener = await listen_datagram(LOCAL)
            _kept.append(listener)
            control.say(listener.port)
            opened.append(await listener.accept())
    endpoint = await open_datagram_endpoint((LOCAL, 0), mode="rdma")
    _kept.extend((opened, endpoint))
    peer = (LOCAL, ports["endpoint"])
    await endpoint.resolve(peer)
    control.say(endpoint.path_to(peer))
    await control.hear()
    for message in messages(how):
        for connection in opened:
            await connection.send(message)
        await endpoint.send((message, peer))
    end(how)


async def received(connection: Any) -> tuple[list[bytes], str]:
    got: list[bytes] = []
    async with connection:
        try:
            while True:
                got.append(await connection.receive())
        except anyio.EndOfStream:
            return got, "end"
        except anyio.BrokenResourceError:
            return got, "reset"


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("how", "role"),
    [
        ("return", "client"),
        ("raise", "server"),
        ("sys.exit", "client"),
        ("os._exit", "client"),
        ("SIGTERM", "server"),
        ("SIGKILL", "client"),
    ],
)
async def test_datagrams_that_were_sent_arrive(how: str, role: str, loop: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        endpoint = await stack.enter_async_context(await open_datagram_endpoint((LOCAL, 0), mode="rdma"))
        ports = {"endpoint": endpoint.local_address[1]}
        listeners = {}
        if role == "client":
            for mode in ("rdma", "tcp"):
                listeners[mode] = await stack.enter_async_context(await listen_datagram(LOCAL))
                ports[mode] = listeners[mode].port
        victim = stack.enter_context(process(f"{HERE}:ending", loop, ports=ports, how=how))
        victim.expect(ENDS[how])
        with anyio.fail_after(PATIENCE):
            connections = {}
            for mode in ("rdma", "tcp"):
                if role == "client":
                    connections[mode] = await listeners[mode].accept()
                else:
                    connections[mode] = await connect_datagram(LOCAL, await victim.heard(), mode=mode)  # type: ignore[arg-type]
                assert connections[mode].path == mode
            assert await victim.heard() == "rdma"
            victim.say("go")
            for mode, connection in connections.items():
                assert await received(connection) == (messages(how), "end"), mode
            assert [(await endpoint.receive())[0] for _ in messages(how)] == messages(how)


# ---- what waits for room

PIECE, COUNT = bytes(range(250)) * 200, 400


async def waiting(control: Control, surface: str, mode: Any, port: int, authority: str, how: str) -> None:
    """Accepts more than kernels and rings take, says so, and ends."""
    options: Any = {"ssl": ssl.create_default_context(cadata=authority)} if "TLS" in surface else {}
    if surface == "channel":
        connection: Any = await channels.connect(LOCAL, port, mode=mode)
    elif surface.startswith("datagrams"):
        connection = await connect_datagram(LOCAL, port, mode=mode, **options)
    else:
        connection = await aiordma.connect(LOCAL, port, mode=mode, **options)
    _kept.append(connection)
    await control.hear()
    connection.send_soon([PIECE] * COUNT)
    control.say("accepted")
    end(how)


SURFACES = [(surface, mode) for surface in ("stream", "datagrams", "channel") for mode in ("rdma", "tcp")]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("surface", "mode"), [*SURFACES, ("stream in TLS", "tcp"), ("datagrams in TLS", "tcp")]
)
async def test_what_waits_for_room(surface: str, mode: str, loop: str) -> None:
    """It arrives, if the peer reads. Nobody has closed the connection, so there is no end of TLS."""
    authority = trustme.CA()
    context = None
    if "TLS" in surface:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(LOCAL).configure_cert(context)
    listen: Any = channels.listen if surface == "channel" else aiordma.listen
    if surface.startswith("datagrams"):
        listen = listen_datagram
    async with await listen(LOCAL, **({"ssl": context} if context else {})) as listener:
        text = authority.cert_pem.bytes().decode()
        arguments = {
            "surface": surface,
            "mode": mode,
            "port": listener.port,
            "authority": text,
            "how": "sys.exit",
        }
        with process(f"{HERE}:waiting", loop, **arguments) as victim, anyio.fail_after(PATIENCE):
            victim.expect(ENDS["sys.exit"])
            connection = await listener.accept()
            assert connection.path == mode
            victim.say("go")
            assert await victim.heard() == "accepted"
            if surface == "channel":
                async with connection:
                    end_here = End(connection.channel, keeps_views=False)
                    await end_here.ended()
                    assert len(end_here.messages) == COUNT
            else:
                got, how = await received(connection)
                assert sum(map(len, got)) == COUNT * len(PIECE)
                assert how == ("reset" if "TLS" in surface else "end")


# ---- answers

ANSWERS, ANSWER_BYTES = 16, 1_000_000


def be_patient() -> None:
    """However busy the machine is, all may leave. What never comes is waited for until the test asks why."""
    long = 4 * FULL_PATIENCE
    parting._UNSENT_SECONDS = parting._LINGER_SECONDS = servers.ANSWERS_S = long
    for each in (multiplexer._unclosed, tcp_channel._draining, tls._draining):
        each._seconds = long


async def answering(control: Control, how: str, certificate: str) -> None:
    """Returns more answers in one turn than kernels and rings take, and ends."""
    context = None
    if certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    service, begun, returned, done = rpc.Service("test"), [], [], anyio.Event()
    all_here = anyio.Event()
    be_patient()

    @service.method
    async def answer(number: int) -> bytes:
        begun.append(number)
        if len(begun) == ANSWERS:
            all_here.set()
        await all_here.wait()
        returned.append(number)
        if len(returned) == ANSWERS:
            done.set()
        return bytes([number]) * ANSWER_BYTES

    block = rpc.serve(service, LOCAL, 0, ssl=context)
    server = await block.__aenter__()
    _kept.append(block)
    control.say(server.port)
    await done.wait()
    end(how)


@pytest.mark.parametrize(
    ("mode", "inside", "loop"),
    [
        ("rdma", "nothing", "asyncio"),
        ("tcp", "nothing", "asyncio"),
        ("tcp", "nothing", "trio"),
        ("tcp", "TLS", "asyncio+uvloop"),
    ],
)
async def test_answers_that_were_returned_arrive(mode: Any, inside: str, loop: str, tmp_path: Path) -> None:
    context, certificate = None, ""
    if inside == "TLS":
        authority = trustme.CA()
        certificate = str(tmp_path / "certificate.pem")
        authority.issue_cert(LOCAL).private_key_and_cert_chain_pem.write_to_path(certificate)
        context = ssl.create_default_context()
        authority.configure_trust(context)
    arguments: dict[str, Any] = {"how": "sys.exit", "certificate": certificate}
    with process(f"{HERE}:answering", loop, **arguments) as victim, anyio.fail_after(PATIENCE):
        victim.expect(ENDS["sys.exit"])
        got: dict[int, bytes] = {}
        async with rpc.connect(LOCAL, await victim.heard(), mode=mode, ssl=context) as client:

            async def ask(number: int) -> None:
                got[number] = await client.call("test.answer", number, returns=bytes)

            async with anyio.create_task_group() as tasks:
                for number in range(ANSWERS):
                    tasks.start_soon(ask, number)
        assert got == {number: bytes([number]) * ANSWER_BYTES for number in range(ANSWERS)}
