"""Throughput, rates and times to ``aiordma serve-diagnostics``, by turns with what they are compared with:
the report of ``aiordma perf``."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import signal
import time
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from ..config import Config
from ..streams.connector import connect
from .diagnostics import Services, services_of
from .limits import busy, limit
from .samples import Samples
from .turns import ONE_WAY, Against, Mode, Outcome, Subject, Turn
from .workloads import take_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Self

T = TypeVar("T")

SCHEMA = "aiordma-perf/2"

#: What asyncio's own streams can do.
_PLAIN_MODES = ("stream", "both-ways", "round-trip", "connect")
#: Under way at a time where both directions are to be busy: messages at most, and bytes.
_DEEP, _DEEP_BYTES = 64, 256 << 10


class Point(Struct):
    """One size in one mode with one subject. Rates are those of the best round, times of all rounds together;
    they are 0 where single operations are not timed."""

    mode: str
    #: ``aiordma``; ``fallback``: aiordma on TCP; ``tcp``, ``uvloop``, ``unix``: asyncio's streams
    subject: str
    #: ``rdma``, ``tcp`` or ``unix``
    path: str
    #: as ``smcss`` shows it: ``RDMA``, or ``TCP 0xlocal[/0xpeer]: why``; empty for asyncio's streams
    reason: str
    #: event loop of this end
    loop: str
    size_bytes: int
    connections: int
    in_flight: int
    messages_per_s: float
    bytes_per_s: float
    min_us: float
    mean_us: float
    median_us: float
    #: as far as there are so many: of fewer than 100 operations it is the longest, for the next one 1000
    p99_us: float
    p999_us: float
    max_us: float
    #: messages that did not arrive
    lost: int
    #: of each round: messages a second
    rounds: list[float]
    #: the distribution: (microseconds, share of the operations that took no longer)
    curve: list[tuple[float, float]]
    #: CPU time of this process for each message, in microseconds, in all its threads, of the best round
    cpu_us: float = 0.0
    #: that were timed one by one, in all rounds
    timed: int = 0


class Perf(Struct):
    """What ``aiordma perf --json`` prints."""

    schema: str
    #: seconds since the epoch
    taken_at: float
    host: str
    port: int
    #: of each measurement, and before it
    seconds: float
    warm_up_s: float
    #: of this end; null: adaptive
    busy_poll_us: int | None
    #: what the server says of itself
    server: Services
    #: Ctrl-C has ended it
    interrupted: bool
    points: list[Point]
    #: comparisons that could not be made, and why
    left_out: list[str]
    #: that this host was busy before it began; empty if it was not
    busy: str = ""


class Wanted(Struct, frozen=True):
    """The measurement."""

    host: str
    port: int
    modes: tuple[Mode, ...]
    sizes: tuple[int, ...]
    against: tuple[Against, ...] = ()
    connections: int = 1
    in_flight: int = 1
    rounds: int = 3
    seconds: float = 0.5
    warm_up_s: float = 0.1
    busy_poll_us: int | None = None
    use_uvloop: bool = False
    only_rdma: bool = False


class _Gathered:
    """Rounds of one point."""

    def __init__(self, turn: Turn, loop: str) -> None:
        self._turn, self._loop = turn, loop
        self._rounds: list[Outcome] = []
        self._samples = Samples()

    def add(self, outcome: Outcome) -> None:
        self._rounds.append(outcome)
        self._samples.merge(outcome.samples)

    def point(self) -> Point:
        turn, times = self._turn, self._samples
        best = max(self._rounds, key=lambda outcome: outcome.rate)
        mean = times.mean
        if not times.count and best.rate:  # one way: the distance between two messages
            mean = 1e6 * turn.connections / best.rate
        return Point(
            mode=turn.mode,
            subject=turn.subject,
            path=best.path,
            reason=best.reason,
            loop=self._loop,
            size_bytes=turn.size,
            connections=turn.connections,
            in_flight=turn.in_flight,
            messages_per_s=round(best.rate, 1),
            bytes_per_s=round(best.rate * turn.size, 1),
            min_us=round(times.at(0), 3),
            mean_us=round(mean, 3),
            median_us=round(times.at(0.5), 3),
            p99_us=round(times.at(0.99), 3),
            p999_us=round(times.at(0.999), 3),
            max_us=round(times.at(1), 3),
            lost=sum(outcome.lost for outcome in self._rounds),
            rounds=[round(outcome.rate, 1) for outcome in self._rounds],
            curve=times.curve(),
            cpu_us=round(best.cpu_s * 1e6 / best.messages, 3) if best.messages else 0.0,
            timed=times.count,
        )


class _Loops:
    """Event loops that stay while others run: of asyncio, and of uvloop.

    Ctrl-C ends what runs, or what is run next. With Python's own handler, a Ctrl-C between two runs was
    raised in what the interpreter just did: in the end of an asynchronous generator it was printed, and lost.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._runners: dict[bool, asyncio.Runner] = {}
        self._interrupted = False
        self._cancel: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # also: this is the main thread
            signal.signal(signal.SIGINT, self._on_interrupt)
            self._stack.callback(signal.signal, signal.SIGINT, signal.default_int_handler)
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def _on_interrupt(self, *_: object) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True
        if self._cancel is not None:
            self._cancel()

    def run(self, use_uvloop: bool, work: Coroutine[Any, Any, T]) -> T:
        """:raises ImportError: uvloop is not installed. :raises KeyboardInterrupt: Ctrl-C, also before it."""
        try:
            return self._of(use_uvloop).run(self._watched(work))
        except asyncio.CancelledError:  # only Ctrl-C cancels it
            raise KeyboardInterrupt from None

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._cancel = functools.partial(loop.call_soon_threadsafe, task.cancel)
        try:
            if self._interrupted:
                work.close()
                raise asyncio.CancelledError
            return await work
        finally:
            self._cancel = None

    def _of(self, use_uvloop: bool) -> asyncio.Runner:
        if use_uvloop not in self._runners:
            factory: Callable[[], asyncio.AbstractEventLoop] | None = None
            if use_uvloop:
                import uvloop

                factory = uvloop.new_event_loop
            runner = asyncio.Runner(loop_factory=factory)
            self._runners[use_uvloop] = self._stack.enter_context(runner)
        return self._runners[use_uvloop]


def measure(wanted: Wanted, progress: Callable[[int, int, str], None]) -> Perf:
    """Each size in each mode, the subjects by turns, so that what else the hosts do concerns all alike.

    Ctrl-C ends it with what there is, unless that is nothing.

    :param progress: called before each turn with its number, how many there are, and what it measures.
    :raises OSError: (or NegotiationError) there is no connection. :raises ImportError: there is no uvloop.
    :raises anyio.BrokenResourceError: or EndOfStream, RpcError, MemoryAccessError: it ended early.
    """
    config = Config.from_env()
    if wanted.busy_poll_us is not None:
        config = dataclasses.replace(config, busy_poll_us=wanted.busy_poll_us)
    with _Loops() as loops:
        services = loops.run(wanted.use_uvloop, _services(wanted, config))
        perf = Perf(
            SCHEMA,
            time.time(),
            wanted.host,
            wanted.port,
            wanted.seconds,
            wanted.warm_up_s,
            config.busy_poll_us,
            services,
            False,
            [],
            [],
            busy(),
        )
        groups = _groups(wanted, config, perf)
        total = wanted.rounds * sum(map(len, groups))
        number = 0
        try:
            for group in groups:
                gathered = [_Gathered(turn, _loop_name(wanted, turn)) for turn in group]
                for round_number in range(wanted.rounds):
                    for turn, into in zip(group, gathered, strict=True):
                        progress(number, total, _title(turn, round_number, wanted.rounds))
                        number += 1
                        into.add(_run(loops, wanted, turn))
                perf.points += [each.point() for each in gathered]
        except KeyboardInterrupt:
            if not perf.points:
                raise
            perf.interrupted = True
    return perf


async def _services(wanted: Wanted, config: Config) -> Services:
    with limit(15, "there was no connection"):
        async with await connect(wanted.host, wanted.port, config=config) as stream:
            return await services_of(stream)


def _groups(wanted: Wanted, config: Config, perf: Perf) -> list[list[Turn]]:
    """What takes turns with each other."""
    groups = []
    left_out: dict[str, dict[Against, list[str]]] = {}
    for mode in wanted.modes:
        subjects: list[Subject] = ["aiordma"]
        for other in wanted.against:
            if problem := _problem(mode, other, perf.server):
                left_out.setdefault(problem, {}).setdefault(other, []).append(mode)
            else:
                subjects.append(other)
        groups += [
            [_turn(wanted, config, perf.server, mode, subject, size) for subject in subjects]
            for size in (wanted.sizes if mode != "connect" else (0,))
        ]
    for problem, of in left_out.items():
        modes = dict.fromkeys(mode for found in of.values() for mode in found)
        perf.left_out.append(f"{', '.join(modes)} against {', '.join(of)}: {problem}")
    return groups


def _turn(wanted: Wanted, config: Config, server: Services, mode: Mode, subject: Subject, size: int) -> Turn:
    return Turn(
        mode,
        subject,
        size,
        wanted.host,
        wanted.port,
        server,
        config,
        wanted.connections,
        _in_flight(wanted, mode, size),
        wanted.seconds,
        wanted.warm_up_s,
        wanted.only_rdma,
    )


def _in_flight(wanted: Wanted, mode: Mode, size: int) -> int:
    if mode in (*ONE_WAY, "connect"):
        return 1
    if mode == "both-ways":
        return max(wanted.in_flight, 2, min(_DEEP, _DEEP_BYTES // size))
    return wanted.in_flight


def _problem(mode: Mode, other: Against, server: Services) -> str:
    """Why there is nothing to compare with; empty: there is."""
    if other == "fallback":
        return ""
    if mode not in _PLAIN_MODES:
        return "asyncio has no such thing (--against fallback is aiordma on TCP)"
    if other == "unix":
        return "" if os.path.exists(server.unix) else "the server is on another host, or another user's"
    if not (server.tcp if other == "tcp" else server.uvloop):
        return "the server does not serve it (--no-against, or it has no uvloop)"
    return ""


def _loop_name(wanted: Wanted, turn: Turn) -> str:
    return "uvloop" if _on_uvloop(wanted, turn) else "asyncio"


def _on_uvloop(wanted: Wanted, turn: Turn) -> bool:
    if turn.subject in ("aiordma", "fallback"):
        return wanted.use_uvloop
    return turn.subject == "uvloop"


def _title(turn: Turn, number: int, rounds: int) -> str:
    size = f", {turn.size} bytes" if turn.size else ""
    return f"{turn.mode}{size}, {turn.subject}, round {number + 1} of {rounds}"


def _run(loops: _Loops, wanted: Wanted, turn: Turn) -> Outcome:
    try:
        return loops.run(_on_uvloop(wanted, turn), take_turn(turn))
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def sizes_of(text: str) -> Sequence[int]:
    """``64,4k,1m``. :raises ValueError: one of them is no size."""
    units = {"k": 1 << 10, "m": 1 << 20}
    found = []
    for part in text.lower().split(","):
        number = part.strip()
        unit = units.get(number[-1:], 1)
        found.append(int(number[:-1] if unit > 1 else number) * unit)
    return found
