"""Round trips to ``aiordma serve-diagnostics``, and what they say: the report of ``aiordma ping``."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from array import array
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, get_args

import anyio
from anyio import BrokenResourceError, EndOfStream
from msgspec import Struct

from .. import memory, rpc
from ..config import Config
from ..errors import NegotiationError
from ..negotiation.engine import find_engine
from ..observe import trace
from ..streams.connector import connect
from .diagnostics import ECHO, GREETING, begin, borrow_memory, services_of
from .limits import busy_there, limit
from .loops import repeat, round_trips
from .samples import Samples

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from ..errors import FallbackReason

    _Live = Callable[[str, Sequence[float]], None]

SCHEMA = "aiordma-ping/2"

Kind = Literal["stream", "tcp", "call", "write", "read"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""``stream``: on a stream, by the best path there is; ``tcp``: a stream on TCP; ``call``: a call on a message
channel, with stages; ``write`` and ``read``: one-sided, answered by the device."""

#: Seconds that a question about the server's host may take.
_ASK_S = 2.0
#: Traced calls that are kept for the stages.
_MOST_TRACED = 100_000


class Stages(Struct):
    """Where the time of a call goes (X-RDMA's req-res mode), medians in microseconds. Times on the wire are
    corrected for the difference of the two clocks, as well as round trips tell it."""

    #: this end's event loop: before the request goes, and from the answer's arrival to the program
    client_us: float
    #: there and back
    wire_us: float
    #: the server's event loop: from the request's arrival to the handler, the handler, and its answer
    server_us: float
    #: by name of the stage: queued, out, waited, handler, answered, back, wake
    each_us: dict[str, float]


class Run(Struct):
    """Round trips of one kind. Times are 0 where there were no round trips."""

    #: ``stream``, ``tcp``, ``call``, ``write`` or ``read``
    kind: str
    #: ``rdma`` or ``tcp`` at the end; empty if there was no connection
    path: str = ""
    #: as ``smcss`` shows it: ``RDMA``, or ``TCP 0xlocal[/0xpeer]: why``
    mode: str = ""
    #: why the run ended early; empty if it did not
    error: str = ""
    connect_ms: float = 0.0
    #: round trips, without those for warming up
    count: int = 0
    #: messages that were not answered in time: the run ends with the first
    lost: int = 0
    min_us: float = 0.0
    mean_us: float = 0.0
    median_us: float = 0.0
    #: as far as there are so many: of fewer than 100 round trips it is the longest, for the next one 1000
    p99_us: float = 0.0
    p999_us: float = 0.0
    max_us: float = 0.0
    #: of calls only
    stages: Stages | None = None


class Ping(Struct):
    """What ``aiordma ping --json`` prints."""

    schema: str
    host: str
    port: int
    size_bytes: int
    runs: list[Run]
    #: that this host was busy before it began; empty if it was not
    busy: str = ""
    #: the same of the server's host, unless it is this one; empty, too, if the server cannot tell
    server_busy: str = ""


class Wanted(Struct, frozen=True):
    """The measurement."""

    host: str
    port: int
    kind: Kind
    size: int
    count: int
    warm_up: int = 100
    interval_s: float = 0.0
    timeout_s: float = 5.0
    #: fail instead of measuring TCP as a fallback
    only_rdma: bool = False

    @property
    def mode(self) -> Literal["auto", "rdma", "tcp"]:
        """As of :func:`aiordma.connect`."""
        if self.kind == "tcp":
            return "tcp"
        return "rdma" if self.only_rdma else "auto"


#: What a server measures for others: bytes of a message, round trips, seconds for an answer.
MOST_BYTES, MOST_TRIPS, MOST_WAIT_S = 65536, 10_000, 10.0


class PingRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a server is asked to measure for ``aiordma ping --mesh``."""

    host: str
    port: int
    size: int
    count: int
    timeout_s: float

    def wanted(self) -> Wanted:
        """:raises ValueError: it is more than a server does for others. (Less would be another measurement
        than the one that was asked for.)
        """
        for what, given, least, most in (
            ("bytes of a message", self.size, 1, MOST_BYTES),
            ("round trips", self.count, 1, MOST_TRIPS),
            ("seconds for an answer", self.timeout_s, 0.01, MOST_WAIT_S),
        ):
            if not least <= given <= most:
                raise ValueError(f"it measures for others with {least:g} to {most:g} {what}, not {given:g}")
        warm_up = min(100, self.count)
        return Wanted(
            self.host, self.port, "stream", self.size, self.count, warm_up, timeout_s=self.timeout_s
        )


class _End(Protocol):
    """A stream, a client of calls, or a peer with memory."""

    @property
    def path(self) -> str: ...
    @property
    def fallback_reason(self) -> FallbackReason | None: ...


class _Connected(NamedTuple):
    """One connection, and how to do round trips on it."""

    end: _End
    trips: Callable[[array[float], float, int], Awaitable[None]]


async def busy_server(host: str, port: int) -> str:
    """One sentence if the server's host is busy, and is not this one. What cannot be asked is not."""
    with (
        anyio.move_on_after(_ASK_S),
        contextlib.suppress(OSError, NegotiationError, EndOfStream, BrokenResourceError),
    ):
        async with await connect(host, port, mode="tcp") as stream:
            services = await services_of(stream)
        if services.host != socket.gethostname():
            return busy_there(services.busy)
    return ""


async def measure(
    wanted: Wanted,
    progress: Callable[[Run], None] | None = None,
    live: Callable[[str, Sequence[float]], None] | None = None,
) -> Run:
    """Connect, and measure. Cancelled: ``progress`` has what there was until then.

    :param progress: called with the result, also with part of it.
    :param live: called with the path and some round trips, in seconds, as they come: several times a second
        at most, between round trips.
    """
    config = Config.from_env()
    if wanted.kind == "call":
        config = dataclasses.replace(config, trace_sample=1)
    samples, run = Samples(), Run(wanted.kind)
    before = trace.settings()  # opening the device takes over those of ``config``
    if wanted.kind == "call":
        trace.configure(keep=min(_MOST_TRACED, wanted.count))
    try:
        if wanted.mode != "tcp":
            # To open the device takes much longer than to connect. What fails is reported below.
            with contextlib.suppress(NegotiationError):
                await find_engine(config)
        await _measure(wanted, config, samples, run, live)
    except NegotiationError as error:
        run.error = error.text
    except EndOfStream:
        run.error = "the server has closed the connection; is it aiordma serve-diagnostics?"
    except (OSError, TimeoutError) as error:
        run.error = error.strerror or str(error) or "no connection in time"
    except (BrokenResourceError, memory.MemoryAccessError, rpc.RpcError) as error:
        run.error = str(error)
    finally:
        _fill(run, samples)
        if wanted.kind == "call":
            run.stages = _stages()
            trace.configure(sample=before.sample, keep=before.keep)
        if progress is not None:
            progress(run)
    return run


async def _measure(wanted: Wanted, config: Config, samples: Samples, run: Run, live: _Live | None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        with limit(wanted.timeout_s + 10, "there was no connection"):
            began = time.perf_counter()
            opened = {"call": _calls, "write": _one_sided, "read": _one_sided}.get(wanted.kind, _stream)
            connected = await stack.enter_async_context(opened(wanted, config, run, began))
        try:
            await _round_trips(connected, wanted, samples, run, live)
        finally:
            reason = connected.end.fallback_reason
            run.path, run.mode = connected.end.path, "RDMA" if reason is None else str(reason)


async def _round_trips(
    connected: _Connected, wanted: Wanted, samples: Samples, run: Run, live: _Live | None
) -> None:
    taken = array("d")
    with anyio.move_on_after(wanted.timeout_s) as scope:
        if wanted.warm_up:
            await connected.trips(array("d"), time.perf_counter() + wanted.timeout_s / 2, wanted.warm_up)
            if wanted.kind == "call":
                trace.reset()
        try:
            while (missing := wanted.count - samples.count) > 0:
                # A new limit of time for each round trip would be a good part of it.
                scope.deadline = anyio.current_time() + wanted.timeout_s
                taken = array("d")
                most = 1 if wanted.interval_s else missing
                await connected.trips(taken, time.perf_counter() + wanted.timeout_s / 10, most)
                samples.add(taken)
                if live is not None:
                    live(connected.end.path, taken)
                taken = array("d")
                if wanted.interval_s and missing > 1:
                    scope.deadline += wanted.interval_s
                    await anyio.sleep(wanted.interval_s)
        finally:
            samples.add(taken)
    if scope.cancelled_caught:
        run.lost = 1
        run.error = f"no answer within {wanted.timeout_s:g} s"


# ---- what a round trip is


@contextlib.asynccontextmanager
async def _stream(wanted: Wanted, config: Config, run: Run, began: float) -> AsyncIterator[_Connected]:
    stream = await connect(wanted.host, wanted.port, config=config, mode=wanted.mode)
    run.connect_ms = _ms_since(began)
    async with stream:
        await begin(stream, GREETING, wanted.size)
        message = bytes(wanted.size)

        async def trips(taken: array[float], until: float, most: int) -> None:
            await round_trips(stream, message, taken, until, most)

        yield _Connected(stream, trips)


@contextlib.asynccontextmanager
async def _calls(wanted: Wanted, config: Config, run: Run, began: float) -> AsyncIterator[_Connected]:
    async with await connect(wanted.host, wanted.port, config=config, mode=wanted.mode) as stream:
        services = await services_of(stream)
    began = time.perf_counter()
    async with rpc.connect(wanted.host, services.calls, config=config, mode=wanted.mode) as client:
        run.connect_ms = _ms_since(began)
        message = bytes(wanted.size)

        async def call() -> None:
            await client.call(ECHO, message, returns=bytes)

        async def trips(taken: array[float], until: float, most: int) -> None:
            await repeat(call, taken, until, most)

        yield _Connected(client, trips)


@contextlib.asynccontextmanager
async def _one_sided(wanted: Wanted, config: Config, run: Run, began: float) -> AsyncIterator[_Connected]:
    async with await connect(wanted.host, wanted.port, config=config, mode=wanted.mode) as stream:
        services = await services_of(stream)
    async with await connect(wanted.host, wanted.port, config=config, mode=wanted.mode) as stream:
        descriptor = await borrow_memory(stream, wanted.size)
        began = renewed = time.perf_counter()
        peer = await memory.connect(wanted.host, services.memory, config=config, mode=wanted.mode)
        run.connect_ms = _ms_since(began)
        async with peer, await memory.alloc(wanted.size, config=config) as own:
            remote = await peer.open(descriptor)
            operation = remote.write if wanted.kind == "write" else remote.read

            async def trips(taken: array[float], until: float, most: int) -> None:
                nonlocal renewed
                if time.perf_counter() > renewed + 10:
                    renewed = time.perf_counter()
                    await stream.send(b"\0")  # the memory is still needed
                await repeat(lambda: operation(own), taken, until, most)

            yield _Connected(peer, trips)


# ---- what comes out


def _ms_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1e3, 3)


def _fill(run: Run, samples: Samples) -> None:
    run.count = samples.count
    run.min_us, run.mean_us, run.max_us = samples.at(0), samples.mean, samples.at(1)
    run.median_us, run.p99_us, run.p999_us = samples.at(0.5), samples.at(0.99), samples.at(0.999)
    for name in ("min_us", "mean_us", "median_us", "p99_us", "p999_us", "max_us"):
        setattr(run, name, round(getattr(run, name), 3))


def _stages() -> Stages | None:
    """Of the calls that were traced."""
    found = [
        record.stages
        for record in trace.recent()
        if record.side == "client" and record.method == ECHO and record.stages is not None
    ]
    if not found:
        return None

    def median(times: list[int]) -> float:
        return round(sorted(times)[len(times) // 2] / 1e3, 3)

    names = found[0]._fields
    return Stages(
        client_us=median([each.queued + each.wake for each in found]),
        wire_us=median([each.out + each.back for each in found]),
        server_us=median([each.waited + each.handler + each.answered for each in found]),
        each_us={name: median([getattr(each, name) for each in found]) for name in names},
    )
