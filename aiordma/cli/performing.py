"""Throughput and rates to ``aiordma serve-diagnostics``, on two paths by turns: the report of ``aiordma
perf``."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Literal

import anyio
from msgspec import Struct

from ..config import Config
from ..errors import NegotiationError
from ..negotiation.engine import find_engine
from ..streams.connector import connect
from .diagnostics import COUNT, greeting, receive_exactly, sink_greeting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..streams.stream import RdmaStream

__all__ = ["SCHEMA", "Perf", "Point", "Wanted", "measure"]

SCHEMA = "aiordma-perf/1"

Mode = Literal["stream", "round-trip"]


class Point(Struct):
    """One size on one path: the best of all rounds."""

    #: ``stream`` (one way, back to back) or ``round-trip`` (one message at a time)
    mode: str
    #: ``rdma`` or ``tcp``
    path: str
    #: as ``smcss`` shows it: ``RDMA``, or ``TCP 0xlocal[/0xpeer]: why``
    reason: str
    size_bytes: int
    messages_per_s: float
    bytes_per_s: float
    #: of one message: for round trips there and back, for streams the distance between two
    mean_us: float
    #: of each round: messages a second
    rounds: list[float]


class Perf(Struct):
    """What ``aiordma perf --json`` prints."""

    schema: str
    host: str
    port: int
    seconds: float
    points: list[Point]


class Wanted(Struct, frozen=True):
    """The measurement."""

    host: str
    port: int
    mode: Mode
    sizes: tuple[int, ...]
    paths: tuple[Literal["auto", "rdma", "tcp"], ...]
    rounds: int
    seconds: float
    connect_s: float = 15.0


async def measure(wanted: Wanted, progress: Callable[[str], None] | None = None) -> list[Point]:
    """Every size on every path, by turns, so that what else the hosts do concerns both alike.

    :param progress: told what is measured next.
    :raises OSError: (or NegotiationError) there is no connection.
    :raises anyio.BrokenResourceError: or EndOfStream: it ended early.
    """
    config = Config.from_env()
    with contextlib.suppress(NegotiationError):
        await find_engine(config)
    points: list[Point] = []
    for size in wanted.sizes:
        found: dict[str, Point] = {}
        for turn in range(wanted.rounds):
            for path in wanted.paths:
                if progress is not None:
                    progress(f"{wanted.mode}, {size} bytes, {path}, round {turn + 1} of {wanted.rounds}")
                with anyio.fail_after(wanted.connect_s + 10 * wanted.seconds):
                    point = await _point(wanted, config, size, path)
                best = found.setdefault(path, point)
                if point is not best:
                    _keep_best(best, point)
        points += found.values()
    return points


def _keep_best(best: Point, point: Point) -> None:
    best.rounds += point.rounds
    if point.messages_per_s > best.messages_per_s:
        best.messages_per_s, best.bytes_per_s = point.messages_per_s, point.bytes_per_s
        best.mean_us = point.mean_us


async def _point(wanted: Wanted, config: Config, size: int, path: Literal["auto", "rdma", "tcp"]) -> Point:
    async with await connect(wanted.host, wanted.port, config=config, mode=path) as stream:
        run = _stream if wanted.mode == "stream" else _round_trips
        count, seconds = await run(stream, size, wanted.seconds)
        rate = count / seconds
        reason = stream.fallback_reason
        return Point(
            mode=wanted.mode,
            path=stream.path,
            reason="RDMA" if reason is None else str(reason),
            size_bytes=size,
            messages_per_s=round(rate, 1),
            bytes_per_s=round(rate * size, 1),
            mean_us=round(1e6 / rate, 3) if rate else 0.0,
            rounds=[round(rate, 1)],
        )


async def _begin(stream: RdmaStream, head: bytes) -> None:
    """:raises ConnectionError: it is another server."""
    await stream.send(head)
    answer = b""
    with contextlib.suppress(anyio.EndOfStream):
        answer = await receive_exactly(stream, len(head))
    if answer != head:
        raise ConnectionError("this is not aiordma serve-diagnostics of this version")


async def _round_trips(stream: RdmaStream, size: int, seconds: float) -> tuple[int, float]:
    await _begin(stream, greeting(size))
    message, clock, count = bytes(size), time.perf_counter, 0
    for _ in range(min(100, 1 + (1 << 20) // size)):
        await stream.send(message)
        await receive_exactly(stream, size)
    begun = now = clock()
    while now - begun < seconds:
        await stream.send(message)
        await receive_exactly(stream, size)
        count += 1
        now = clock()
    return count, now - begun


async def _stream(stream: RdmaStream, size: int, seconds: float) -> tuple[int, float]:
    """The clock stops when the server has told that it has everything."""
    await _begin(stream, sink_greeting(size))
    message, clock, count = bytes(size), time.perf_counter, 0
    begun = clock()
    while clock() - begun < seconds:
        await stream.send(message)
        count += 1
    await stream.send_eof()
    (received,) = COUNT.unpack(await receive_exactly(stream, COUNT.size))
    took = clock() - begun
    if received != count * size:
        raise ConnectionError(f"{count * size} bytes were sent, and {received} came")
    return count, took


def sizes_of(text: str) -> Sequence[int]:
    """``64,4k,1m``. :raises ValueError: one of them is no size."""
    units = {"k": 1 << 10, "m": 1 << 20}
    found = []
    for part in text.lower().split(","):
        number = part.strip()
        unit = units.get(number[-1:], 1)
        found.append(int(number[:-1] if unit > 1 else number) * unit)
    return found
