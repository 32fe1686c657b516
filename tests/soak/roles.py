"""What the processes of the soak do: the servers, the clients that live long, and those that are killed."""

from __future__ import annotations

import asyncio
import signal
import ssl
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, TypedDict

import anyio
import trustme

import aiordma
from aiordma import rpc
from aiordma.compat.server import RdmaServer
from tests.soak import calls, datagrams, endpoints, inside, moves, streams, transports
from tests.soak.ledger import Ledger, rest
from tests.soak.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from anyio.abc import TaskGroup

    from tests.program import Control

#: Work of a long-lived client that must go on all the time.
STEADY = (
    "streams",
    "half closes",
    "short",
    "idle",
    "failovers",
    "calls",
    "large calls",
    "call streams",
    "datagrams",
    "endpoints",
    "TLS, tcp",
    "TLS, rdma",
    "connect",
    "close",
)
#: Of one whose event loop is asyncio's; and of one whose devices fail.
ON_ASYNCIO = ("protocols", "readers")
MOVING = ("streams", "datagrams", "endpoints", "moves", "connect")
#: Errors by which a program may learn that its server was killed.
LOST = (*streams.GONE, OSError, rpc.RpcError)
#: Seconds between two reports.
REPORT = 1.0


class Ports(TypedDict):
    """Where a server listens."""

    streams: int
    datagrams: int
    calls: int
    endpoints: int
    tls: int
    #: of asyncio's surface; 0 on trio
    transports: int


async def _report(control: Control, ledger: Ledger) -> None:
    while True:
        inside.give_back()
        control.say(ledger.report())
        await anyio.sleep(REPORT)


async def _stay(control: Control, ledger: Ledger, tasks: TaskGroup) -> None:
    """Report until there is nobody to report to. Orders: a server to visit, or that others will end."""
    tasks.start_soon(_report, control, ledger)
    tasks.start_soon(ledger.watch)
    try:
        while True:
            order = await control.hear()
            if order == "ending":
                ledger.ending = True
                continue
            tasks.start_soon(_visit, ledger, order["ports"], order["seed"])
    except EOFError:
        tasks.cancel_scope.cancel()


def _alone() -> None:
    """Ctrl-C is for the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# ---- servers


async def server(control: Control, patience: float, two_devices: bool = False) -> None:
    """Answers everything until it is told to end, or killed. It says its ports, and whom TLS is to trust."""
    _alone()
    if two_devices:
        moves.use_two_devices()
    ledger = Ledger(patience)
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(streams.LOCAL).configure_cert(context)
    async with (
        await aiordma.listen(streams.LOCAL, 0) as plain,
        await aiordma.listen(streams.LOCAL, 0, ssl=context, rdma_outside_tls=True) as private,
        await aiordma.listen_datagram(streams.LOCAL, 0) as messages,
        rpc.serve(calls.service(ledger), streams.LOCAL, drain_timeout=0.0) as answering,
        await aiordma.open_datagram_endpoint((streams.LOCAL, 0)) as endpoint,
        _asyncio_server(ledger) as port,
        anyio.create_task_group() as tasks,
    ):
        ledger.also_live = partial(endpoints.links, endpoint)
        for listener in (plain, private):
            tasks.start_soon(listener.serve, partial(streams.answer, ledger=ledger))
        tasks.start_soon(messages.serve, partial(datagrams.answer, ledger=ledger))
        tasks.start_soon(endpoints.answer, endpoint, ledger)
        ports = Ports(
            streams=plain.port,
            datagrams=messages.port,
            calls=answering.port,
            endpoints=endpoint.local_address[1],
            tls=private.port,
            transports=port,
        )
        control.say({"ports": ports, "authority": authority.cert_pem.bytes().decode()})
        await _stay(control, ledger, tasks)
    control.say(ledger.report())


@asynccontextmanager
async def _asyncio_server(ledger: Ledger) -> AsyncIterator[int]:
    """Its port; 0 on trio."""
    if not _on_asyncio():
        yield 0
        return
    server = await aiordma.start_server(transports.server(ledger), streams.LOCAL, 0)
    assert isinstance(server, RdmaServer)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


# ---- clients


async def _calling(
    ledger: Ledger, port: int, random: Random, pace: float, expected: streams.Expected = "rdma"
) -> None:
    """Calls of all kinds, on two connections: large arguments have one of their own. They are closed after a
    while, in the middle of calls."""
    async with calls.caller(ledger, port, expected) as small, calls.caller(ledger, port, expected) as bulk:
        many, large = calls.Calls(ledger, small, random), calls.Calls(ledger, bulk, random)
        with anyio.move_on_after(random.uniform(20, 60)):
            async with anyio.create_task_group() as tasks:
                for work, pause in ((many.any, 0.03), (many.stream, 0.2), (large.large, 0.3)):
                    tasks.start_soon(_until_it_fails, work, random, pause / pace)


async def _until_it_fails(work: Callable[[], Awaitable[object]], random: Random, pause: float) -> None:
    while True:
        await work()
        await rest(random, pause)


async def _messaging(
    ledger: Ledger,
    port: int,
    random: Random,
    pace: float,
    *,
    fragile: bool = False,
    expected: streams.Expected = "rdma",
) -> None:
    """Datagrams on one connection, which ends after a while."""
    async with datagrams.connected(ledger, port, expected) as connection:
        work = datagrams.Datagrams(ledger, connection, random, fragile)
        for _ in range(300):
            await work.some()
            await rest(random, 0.1 / pace)
        with ledger.piece("datagrams"):
            await connection.send_eof()


async def _spraying(ledger: Ledger, port: int, random: Random, pace: float, fragile: bool = False) -> None:
    """Datagrams of one endpoint, which is closed after a while."""
    async with endpoints.bound(ledger) as endpoint:
        work = endpoints.Endpoint(ledger, endpoint, port, random, fragile)
        for _ in range(300):
            await work.some()
            await rest(random, 0.1 / pace)


def _start(
    tasks: TaskGroup,
    ledger: Ledger,
    ports: Ports,
    authority: str,
    seed: str,
    pace: float,
    fragile: bool = False,
) -> None:
    """All kinds of work, each with random numbers of its own."""

    def random(what: str) -> Random:
        return Random(f"{seed} {what}")

    def traffic(what: str) -> Traffic:
        return Traffic(ledger, ports["streams"], random(what), pace, fragile=fragile)

    works: dict[str, tuple[Callable[[], Awaitable[object]], float]] = {
        "streams 1": (traffic("streams 1").streams, 1.0),
        "streams 2": (traffic("streams 2").streams, 1.0),
        "half closes": (traffic("half closes").half_close, 0.3),
        "short": (traffic("short").short, 0.1),
        "failovers": (traffic("failovers").failover, 1.0),
        **{f"idle {each}": (traffic(f"idle {each}").idle, 1.0) for each in range(4)},
        "calls": (partial(_calling, ledger, ports["calls"], random("calls"), pace), 1.0),
        "datagrams": (
            partial(_messaging, ledger, ports["datagrams"], random("datagrams"), pace, fragile=fragile),
            1.0,
        ),
        "endpoints": (
            partial(_spraying, ledger, ports["endpoints"], random("endpoints"), pace, fragile),
            1.0,
        ),
        "TLS": (partial(traffic("TLS").tls, ports["tls"], authority), 1.0),
    }
    if _on_asyncio():
        both = ports["streams"], ports["transports"]
        asyncios = transports.Transports(ledger, both, random("transports"), pace, fragile)
        works |= {"protocols": (asyncios.protocol, 1.0), "readers": (asyncios.readers, 1.0)}
    for kind, (work, pause) in works.items():
        tasks.start_soon(ledger.again_and_again, kind, random(f"pauses of {kind}"), pause / pace, work)


async def client(
    control: Control, ports: Ports, authority: str, seed: str, pace: float, patience: float
) -> None:
    """Does everything, until it is told to end."""
    _alone()
    ledger = Ledger(patience)
    ledger.done.update(dict.fromkeys(STEADY, 0))
    async with anyio.create_task_group() as tasks:
        _start(tasks, ledger, ports, authority, seed, pace)
        await _stay(control, ledger, tasks)
    control.say(ledger.report())


async def victim(
    control: Control, ports: Ports, authority: str, seed: str, pace: float, patience: float
) -> None:
    """Does everything, in a hurry, until it is killed."""
    _alone()
    ledger = Ledger(patience)
    async with anyio.create_task_group() as tasks:
        _start(tasks, ledger, ports, authority, seed, pace * 10, fragile=True)
        await _stay(control, ledger, tasks)


async def mover(control: Control, ports: Ports, seed: str, pace: float, patience: float) -> None:
    """Has two devices, of which one fails after the other."""
    _alone()
    moves.use_two_devices()
    ledger = Ledger(patience)
    ledger.done.update(dict.fromkeys(MOVING, 0))

    def random(what: str) -> Random:
        return Random(f"{seed} {what}")

    works: dict[str, Callable[[], Awaitable[object]]] = {
        "streams": Traffic(ledger, ports["streams"], random("streams"), pace, expected="any").streams,
        "datagrams": partial(
            _messaging, ledger, ports["datagrams"], random("datagrams"), pace, expected="any"
        ),
        "endpoints": partial(_spraying, ledger, ports["endpoints"], random("endpoints"), pace),
        "moves": partial(moves.move, ledger, ports["streams"], random("moves"), pace),
    }
    async with anyio.create_task_group() as tasks:
        for kind, work in works.items():
            pauses = random(f"pauses of {kind}")
            tasks.start_soon(ledger.again_and_again, kind, pauses, 1 / pace, work)
        await _stay(control, ledger, tasks)
    control.say(ledger.report())


# ---- visits to servers that are killed


async def _visit(ledger: Ledger, ports: Ports, seed: str) -> None:
    """Do everything with a server until it is gone: each kind of work must notice."""
    random = Random(seed)
    traffic = Traffic(ledger, ports["streams"], random, expected="any")

    async def stream() -> None:
        async with streams.connected(ledger, ports["streams"], expected="any") as stream:
            exchange = streams.Exchange(stream, streams.Order.random(random, b"e"), random)
            await exchange.begin()
            while True:
                await exchange.both(streams.any_size(random))

    async def silent() -> None:
        async with streams.connected(ledger, ports["streams"], expected="any") as stream:
            await stream.receive()

    works: dict[str, Callable[[], Awaitable[object]]] = {
        "a busy stream": stream,
        "a silent stream": silent,
        "failovers": partial(_until_it_fails, traffic.failover, random, 0.01),
        "calls": partial(_calling, ledger, ports["calls"], random, 3.0, "any"),
        "datagrams": partial(_messaging, ledger, ports["datagrams"], random, 3.0, expected="any"),
    }

    async def lose(kind: str) -> None:
        with ledger.noting(f"visit, {kind}"), ledger.piece("visits"):
            try:
                await works[kind]()
            except* LOST:
                pass

    async with anyio.create_task_group() as tasks:
        for kind in works:
            tasks.start_soon(lose, kind)
