"""Round trips to ``aiordma serve-diagnostics``, and what they say: the report of ``aiordma ping``."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Literal

import anyio
from anyio import BrokenResourceError, EndOfStream
from msgspec import Struct

from ..config import Config
from ..errors import NegotiationError
from ..negotiation.engine import find_engine
from ..streams.connector import connect
from .diagnostics import greeting, receive_exactly

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..streams.stream import RdmaStream

__all__ = ["SCHEMA", "Ping", "Run", "Wanted", "measure"]

SCHEMA = "aiordma-ping/1"


class Run(Struct):
    """Round trips on one connection. Times are 0 where there were no round trips."""

    #: ``auto``, ``rdma`` or ``tcp``
    asked: str
    #: ``rdma`` or ``tcp`` at the end; empty if there was no connection
    path: str
    #: as ``smcss`` shows it: ``RDMA``, or ``TCP 0xlocal[/0xpeer]: why``
    mode: str
    #: why the run ended early; empty if it did not
    error: str
    connect_ms: float
    #: round trips, without those for warming up
    count: int
    #: messages that were not answered in time: the run ends with the first
    lost: int
    min_us: float
    mean_us: float
    median_us: float
    p99_us: float
    p999_us: float
    max_us: float


class Ping(Struct):
    """What ``aiordma ping --json`` prints."""

    schema: str
    host: str
    port: int
    size_bytes: int
    runs: list[Run]


class _Times:
    """Nanoseconds of round trips, and how they ended."""

    def __init__(self) -> None:
        self.all: list[int] = []
        self.lost = 0
        self.error = ""

    def at(self, part: float) -> float:
        """Microseconds that this part of the round trips took at most."""
        if not self.all:
            return 0.0
        return self.all[min(len(self.all) - 1, int(len(self.all) * part))] / 1e3

    @property
    def mean(self) -> float:
        return sum(self.all) / len(self.all) / 1e3 if self.all else 0.0


class Wanted(Struct, frozen=True):
    """The measurement."""

    host: str
    port: int
    mode: Literal["auto", "rdma", "tcp"]
    size: int
    count: int
    warm_up: int
    interval_s: float
    timeout_s: float


async def measure(wanted: Wanted, progress: Callable[[Run], None] | None = None) -> Run:
    """Connect, and measure. Cancelled: ``progress`` has what there was until then.

    :param progress: called with the result, also with part of it.
    """
    times = _Times()
    config = Config.from_env()
    if wanted.mode != "tcp":
        # To open the device takes much longer than to connect. What fails is reported below.
        with contextlib.suppress(NegotiationError):
            await find_engine(config)
    begun = time.perf_counter()
    try:
        with anyio.fail_after(wanted.timeout_s + 10):
            stream = await connect(wanted.host, wanted.port, config=config, mode=wanted.mode)
    except NegotiationError as error:
        times.error = error.text
        return _run(wanted.mode, "", "", 0.0, times)
    except (OSError, TimeoutError) as error:
        times.error = error.strerror or str(error) or "no connection in time"
        return _run(wanted.mode, "", "", 0.0, times)
    connected = (time.perf_counter() - begun) * 1e3
    async with stream:
        try:
            await _round_trips(stream, wanted, times)
        except EndOfStream:
            times.error = "the server has closed the connection; is it aiordma serve-diagnostics?"
        except BrokenResourceError as error:
            times.error = str(error)
        finally:
            reason = stream.fallback_reason
            mode = "RDMA" if reason is None else str(reason)
            run = _run(wanted.mode, stream.path, mode, connected, times)
            if progress is not None:
                progress(run)
    return run


async def _round_trips(stream: RdmaStream, wanted: Wanted, times: _Times) -> None:
    """:raises BrokenResourceError: or EndOfStream"""
    size, message, clock, add = wanted.size, bytes(wanted.size), time.perf_counter_ns, times.all.append
    head = greeting(size)
    with anyio.move_on_after(wanted.timeout_s) as scope:
        await stream.send(head)
        if await receive_exactly(stream, len(head)) != head:
            times.error = "this is not aiordma serve-diagnostics"
            return
        for _ in range(wanted.warm_up):
            await stream.send(message)
            await receive_exactly(stream, size)
        renewed = 0
        for _ in range(wanted.count):
            begun = clock()
            # A new limit of time for each round trip would be a good part of it.
            if begun - renewed > wanted.timeout_s * 1e8 or wanted.interval_s:
                scope.deadline = anyio.current_time() + wanted.timeout_s
                renewed = begun = clock()
            await stream.send(message)
            await receive_exactly(stream, size)
            add(clock() - begun)
            if wanted.interval_s:
                scope.deadline += wanted.interval_s
                await anyio.sleep(wanted.interval_s)
    if scope.cancelled_caught:
        times.lost = 1
        times.error = f"no answer within {wanted.timeout_s:g} s"


def _run(asked: str, path: str, mode: str, connect_ms: float, times: _Times) -> Run:
    times.all.sort()
    return Run(
        asked=asked,
        path=path,
        mode=mode,
        error=times.error,
        connect_ms=round(connect_ms, 3),
        count=len(times.all),
        lost=times.lost,
        min_us=times.at(0.0),
        mean_us=round(times.mean, 3),
        median_us=times.at(0.5),
        p99_us=times.at(0.99),
        p999_us=times.at(0.999),
        max_us=times.at(1.0),
    )
