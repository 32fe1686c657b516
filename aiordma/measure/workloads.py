"""What ``aiordma perf`` measures in one turn: connections, and the loops of :mod:`.loops` on them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from typing import TYPE_CHECKING, Any

from .. import memory, rpc
from ..datagrams.connection import connect_datagram
from ..errors import NegotiationError
from ..negotiation.engine import find_engine
from ..streams.connector import connect
from .diagnostics import COUNT, ECHO, GREETING, SINK_GREETING, begin, borrow_memory, greeting, receive_exactly
from .limits import limit
from .loops import flood, pipelined, repeat, round_trips
from .plain_streams import connect_plain
from .turns import Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from .turns import Turn

#: Times are taken out of the loops this often: arrays stay short, however long a measurement takes.
_SLICE_S = 0.25
_CONNECT_S = 15.0
#: How often the server hears that its memory is still needed.
_RENEW_S = 10.0


async def take_turn(turn: Turn) -> Outcome:
    """One measurement. :raises OSError: and others as of :func:`.perf.measure`, perhaps in a group."""
    if turn.subject in ("aiordma", "fallback") and turn.path_mode != "tcp":
        with contextlib.suppress(NegotiationError):
            await find_engine(turn.config)
    run = _MODES[turn.mode]
    whole = Outcome()
    async with contextlib.AsyncExitStack() as stack:
        with limit(_CONNECT_S + turn.connections / 50, "not all connections came up"):
            ready = [await stack.enter_async_context(run(turn)) for _ in range(turn.connections)]
        with limit(60 + 10 * (turn.seconds + turn.warm_up_s), "the server has not answered to the end"):
            async with asyncio.TaskGroup() as tasks:
                done = [tasks.create_task(each()) for each in ready]
    for task in done:
        whole.merge(task.result())
    return whole


def _note(outcome: Outcome, end: Any) -> None:
    outcome.path = end.path
    reason = end.fallback_reason
    outcome.reason = str(reason) if reason is not None else "RDMA" if end.path == "rdma" else ""


async def _stream_to(turn: Turn) -> Any:
    if turn.subject in ("aiordma", "fallback"):
        return await connect(turn.host, turn.port, config=turn.config, mode=turn.path_mode)
    port = turn.services.uvloop if turn.subject == "uvloop" else turn.services.tcp
    return await connect_plain(turn.host, port, turn.services.unix if turn.subject == "unix" else "")


async def _timed(turn: Turn, loop: Callable[[array[float], float], Awaitable[None]], end: Any) -> Outcome:
    """Warm up, and measure for as long as wanted."""
    clock = time.perf_counter
    if turn.warm_up_s:
        await loop(array("d"), clock() + turn.warm_up_s)
    outcome, cpu = Outcome(), time.process_time()
    begun = clock()
    over = begun + turn.seconds
    while (now := clock()) < over:
        taken = array("d")
        await loop(taken, min(over, now + _SLICE_S))
        outcome.samples.add(taken)
    outcome.messages = outcome.samples.count
    outcome.rate = outcome.messages / (clock() - begun)
    outcome.cpu_s = time.process_time() - cpu
    _note(outcome, end)
    return outcome


# ---- one way


async def _warm(turn: Turn, once: Callable[[float], Awaitable[Outcome]]) -> Outcome:
    if turn.warm_up_s:
        await once(turn.warm_up_s)
    return await once(turn.seconds)


@contextlib.asynccontextmanager
async def _one_way(turn: Turn) -> AsyncIterator[Callable[[], Awaitable[Outcome]]]:
    """The clock stops when the server has told that it has everything."""
    message = bytes(turn.size)

    async def once(seconds: float) -> Outcome:
        outcome, clock = Outcome(), time.perf_counter
        async with contextlib.aclosing(await _stream_to(turn)) as stream:
            await begin(stream, SINK_GREETING, turn.size)
            begun, cpu = clock(), time.process_time()
            sent = await flood(stream.send, message, begun + seconds)
            await stream.send_eof()
            (received,) = COUNT.unpack(await receive_exactly(stream, COUNT.size))
            outcome.rate, outcome.cpu_s = sent / (clock() - begun), time.process_time() - cpu
            _note(outcome, stream)
        if received != sent * turn.size:
            raise ConnectionError(f"{sent * turn.size} bytes were sent, and {received} came")
        outcome.messages = sent
        return outcome

    yield lambda: _warm(turn, once)


@contextlib.asynccontextmanager
async def _datagrams(turn: Turn) -> AsyncIterator[Callable[[], Awaitable[Outcome]]]:
    message, head = bytes(turn.size), greeting(max(1, turn.size), SINK_GREETING)

    async def once(seconds: float) -> Outcome:
        outcome, clock = Outcome(), time.perf_counter
        port, mode = turn.services.datagrams, turn.path_mode
        async with await connect_datagram(turn.host, port, config=turn.config, mode=mode) as connection:
            await connection.send(head)
            if await connection.receive() != head:
                raise ConnectionError("this is not aiordma serve-diagnostics of this version")
            begun, cpu = clock(), time.process_time()
            sent = await flood(connection.send, message, begun + seconds)
            await connection.send_eof()
            (arrived,) = COUNT.unpack(await connection.receive())
            outcome.messages, outcome.lost = arrived, sent - arrived
            outcome.rate, outcome.cpu_s = arrived / (clock() - begun), time.process_time() - cpu
            _note(outcome, connection)
        return outcome

    yield lambda: _warm(turn, once)


# ---- there and back


@contextlib.asynccontextmanager
async def _round_trips(turn: Turn) -> AsyncIterator[Callable[[], Awaitable[Outcome]]]:
    message = bytes(turn.size)
    async with contextlib.aclosing(await _stream_to(turn)) as stream:
        await begin(stream, GREETING, turn.size)

        async def loop(taken: array[float], until: float) -> None:
            if turn.in_flight == 1:
                await round_trips(stream, message, taken, until)
            else:
                await pipelined(stream, message, taken, until, turn.in_flight)

        yield lambda: _timed(turn, loop, stream)


async def _several(
    turn: Turn, operations: Sequence[Callable[[], Awaitable[object]]], taken: array[float], until: float
) -> None:
    if turn.in_flight == 1:
        await repeat(operations[0], taken, until)
        return
    async with asyncio.TaskGroup() as tasks:
        for operation in operations:
            tasks.create_task(repeat(operation, taken, until))


@contextlib.asynccontextmanager
async def _calls(turn: Turn) -> AsyncIterator[Callable[[], Awaitable[Outcome]]]:
    message, mode = bytes(turn.size), turn.path_mode
    async with rpc.connect(turn.host, turn.services.calls, config=turn.config, mode=mode) as client:

        async def call() -> None:
            await client.call(ECHO, message, returns=bytes)

        async def loop(taken: array[float], until: float) -> None:
            await _several(turn, [call] * turn.in_flight, taken, until)

        yield lambda: _timed(turn, loop, client)


@contextlib.asynccontextmanager
async def _one_sided(turn: Turn) -> AsyncIterator[Callable[[], Awaitable[Outcome]]]:
    """READ or WRITE between one region here and one there; those in flight have regions of their own here."""
    mode = turn.path_mode
    async with contextlib.AsyncExitStack() as stack:
        lender = await connect(turn.host, turn.port, config=turn.config, mode=mode)
        await stack.enter_async_context(lender)
        descriptor = await borrow_memory(lender, turn.size)
        peer = await memory.connect(turn.host, turn.services.memory, config=turn.config, mode=mode)
        await stack.enter_async_context(peer)
        remote = await peer.open(descriptor)
        operation = remote.write if turn.mode == "write" else remote.read
        operations = []
        for _ in range(turn.in_flight):
            own = await stack.enter_async_context(await memory.alloc(turn.size, config=turn.config))
            operations.append(_on(operation, own))
        renewed = time.perf_counter()

        async def loop(taken: array[float], until: float) -> None:
            nonlocal renewed
            if until > renewed + _RENEW_S:
                renewed = until
                await lender.send(b"\0")
            await _several(turn, operations, taken, until)

        yield lambda: _timed(turn, loop, peer)


def _on(operation: Callable[[Any], Awaitable[None]], own: memory.Region) -> Callable[[], Awaitable[None]]:
    return lambda: operation(own)


# ---- new connections


@contextlib.asynccontextmanager
async def _connects(turn: Turn) -> AsyncIterator[Callable[[], Awaitable[Outcome]]]:
    """Only the connecting is timed; the rate is that of connections which are closed again."""
    # The shared state of a known peer, such as its link, stays.
    async with contextlib.aclosing(await _stream_to(turn)) as first:

        async def loop(taken: array[float], until: float) -> None:
            clock = time.perf_counter
            while True:
                begun = clock()
                stream = await _stream_to(turn)
                taken.append(clock() - begun)
                await stream.aclose()
                if clock() >= until:
                    return

        yield lambda: _timed(turn, loop, first)


_MODES: dict[str, Callable[[Turn], Any]] = {
    "stream": _one_way,
    "both-ways": _round_trips,
    "round-trip": _round_trips,
    "datagram": _datagrams,
    "call": _calls,
    "read": _one_sided,
    "write": _one_sided,
    "connect": _connects,
}
