"""Who is slow, as sentences: what a look at all processes, and an earlier one, say about causes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from ..tables import NONE, clean, moment_text
from .ends import of_connections
from .processes import Level, of_process, of_processors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...admin.report import Killed
    from .rates import BusyLink, CalledMethod, NewFallback, Top

#: Calls are slow from here on, in microseconds.
_SLOW_US = 10_000.0
#: Less is no number with one digit behind the point.
_SHOWN_US = 50.0
#: So many calls have a percentile 99 that says something.
_MANY = 100
#: Sentences at most.
_MOST = 20

#: What happened to links and devices, as sentences.
_BROKE = {"link lost": "lost its link to", "device down": "cannot use its device"}


class Happened(NamedTuple):
    """An event of a process, and when it was there last, in seconds since the epoch."""

    program: str
    pid: int
    kind: str
    text: str
    at: float


class Sentence(Struct):
    """One cause, or that there is none."""

    level: Level
    text: str


def sentences(
    before: Top | None, now: Top, killed: Iterable[Killed] = (), events: Iterable[Happened] = ()
) -> list[Sentence]:
    """The worst first.

    :param before: the look that ``now`` counts from.
    :param killed, events: of late.
    """
    causes = [*_of_killed(killed), *_of_events(events), *_causes(before, now)]
    found = [Sentence(level, clean(text)) for level, text in causes]
    found.sort(key=lambda each: each.level != "bad")
    if found:
        return found[:_MOST]
    on_rdma = sum(each.on_rdma for each in now.processes)
    on_tcp = sum(each.on_tcp for each in now.processes)
    if not now.processes:
        return [Sentence("fine", NONE[0].upper() + NONE[1:] + ".")]
    return [Sentence("fine", f"Nothing is slow: {on_rdma} connections are on RDMA, {on_tcp} on TCP.")]


def _of_killed(rows: Iterable[Killed]) -> Iterator[tuple[Level, str]]:
    for row in rows:
        had = f"it had {row.open_connections} connections"
        yield "bad", f"{row.program}[{row.pid}] was killed, or crashed, at {moment_text(row.last_at)}: {had}."


def _of_events(events: Iterable[Happened]) -> Iterator[tuple[Level, str]]:
    for row in events:
        if row.kind in _BROKE:
            name = f"{row.program}[{row.pid}]"
            yield "bad", f"{name} {_BROKE[row.kind]} {row.text} (at {moment_text(row.at)})."


def _causes(before: Top | None, now: Top) -> Iterator[tuple[Level, str]]:
    earlier = {(row.pid, row.program): row for row in before.processes} if before is not None else {}
    for process in now.processes:
        yield from of_process(process, earlier.get((process.pid, process.program)), now.seconds)
    yield from of_processors(now.processes)
    yield from of_connections(now)
    for link in now.links:
        yield from _of_link(link)
    yield from _of_methods(now.methods)
    for fallback in now.fallbacks:
        yield from _of_fallback(fallback)


def _name(row: BusyLink | CalledMethod | NewFallback) -> str:
    return f"{row.program}[{row.pid}]"


def _of_link(row: BusyLink) -> Iterator[tuple[Level, str]]:
    if row.state == "failed":
        yield "bad", f"The link of {_name(row)} to {row.peer} on {row.device} has failed."
    if row.waits:
        yield (
            "slow",
            f"The link of {_name(row)} to {row.peer} is narrow: {row.waits} messages waited for its window "
            "(AIORDMA_WINDOW).",
        )


def _of_methods(rows: list[CalledMethod]) -> Iterator[tuple[Level, str]]:
    servers = {row.method: row for row in rows if row.side == "server" and row.traced}
    for row in rows:
        takes, share = _takes_us(row)
        if not row.calls_per_s or takes < _SLOW_US:
            continue
        text = f"{row.method} takes {takes / 1000:.0f} ms or more ({share}) at the {row.side} {_name(row)}"
        server = servers.get(row.method)
        if row.side == "client" and server is not None and _takes_us(server)[0] * 2 < takes:
            of_server = _takes_us(server)[0]
            handler = f"{of_server / 1000:.1f}" if of_server >= _SHOWN_US else "under 0.1"
            text += f", and its handler {handler} ms: calls wait before it begins"
        yield "slow", text + "."
    for row in rows:
        if row.new_errors:
            yield "slow", f"{row.new_errors} calls of {row.method} failed at the {row.side} {_name(row)}."


def _takes_us(row: CalledMethod) -> tuple[float, str]:
    """Microseconds, and of how many calls since it began: of a few the slowest one says nothing."""
    if row.traced >= _MANY:
        return row.p99_us, "one call in 100"
    return (row.p50_us, "every second call") if row.traced else (0.0, "")


def _of_fallback(row: NewFallback) -> Iterator[tuple[Level, str]]:
    if row.new:
        how = "began on TCP" if row.when == "began" else "left RDMA"
        yield "slow", f"{row.new} connections of {_name(row)} {how}: {row.text}."
