"""Who is slow, as sentences: what a look at all processes, and the one before, say about causes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ..tables import bytes_text, clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .rates import BusyConnection, BusyLink, BusyProcess, CalledMethod, NewFallback, Top

__all__ = ["Sentence", "sentences"]

#: Bytes that wait for a program which does not read: less is on its way.
_WAITING_BYTES = 64 * 1024
#: Calls are slow from here on, in microseconds.
_SLOW_US = 10_000.0
#: Less is no number with one digit behind the point.
_SHOWN_US = 50.0
#: Sentences at most.
_MOST = 20

Level = Literal["bad", "slow", "fine"]


class Sentence(Struct):
    """One cause, or that there is none."""

    level: Level
    text: str


def sentences(before: Top | None, now: Top) -> list[Sentence]:
    """The worst first."""
    found = [Sentence(level, clean(text)) for level, text in _causes(before, now)]
    found.sort(key=lambda each: each.level != "bad")
    if found:
        return found[:_MOST]
    on_rdma = sum(each.on_rdma for each in now.processes)
    on_tcp = sum(each.on_tcp for each in now.processes)
    if not now.processes:
        return [Sentence("fine", "No process uses aiordma (of those that this user may look at).")]
    return [Sentence("fine", f"Nothing is slow: {on_rdma} connections are on RDMA, {on_tcp} on TCP.")]


def _causes(before: Top | None, now: Top) -> Iterator[tuple[Level, str]]:
    earlier = {(row.pid, row.program): row for row in before.processes} if before is not None else {}
    for process in now.processes:
        yield from _of_process(process, earlier.get((process.pid, process.program)))
    for connection in now.connections:
        yield from _of_connection(connection)
    for link in now.links:
        yield from _of_link(link)
    yield from _of_methods(now.methods)
    for fallback in now.fallbacks:
        yield from _of_fallback(fallback)


def _name(row: BusyProcess | BusyConnection | BusyLink | CalledMethod | NewFallback) -> str:
    return f"{row.program}[{row.pid}]"


def _of_process(now: BusyProcess, before: BusyProcess | None) -> Iterator[tuple[Level, str]]:
    if now.state == "stuck":
        yield "bad", f"{_name(now)} stands still: {now.text} (py-spy dump --pid {now.pid} shows where it is)."
    elif now.state not in ("answered", "stopped"):
        yield "bad", f"{_name(now)} does not tell: {now.text or now.state}."
    if before is None:
        return
    polls = now.slow_polls - before.slow_polls
    if polls > 0:
        slowest = f"{now.slowest_poll_us / 1000:.0f} ms at most"
        yield (
            "slow",
            f"{_name(now)} blocks its event loop: {polls} times since the last look, {slowest}.",
        )
    if (handlers := now.slow_handlers - before.slow_handlers) > 0:
        yield "slow", f"{_name(now)} has slow handlers: {handlers} since the last look (its log names them)."
    if (leaks := now.leaks - before.leaks) > 0:
        yield "slow", f"{_name(now)} has forgotten something: {leaks} new leaks (aiordma stat --leaks)."


def _of_connection(row: BusyConnection) -> Iterator[tuple[Level, str]]:
    where = f"connection {row.number}, {row.local} to {row.remote}"
    if row.waiting_bytes >= _WAITING_BYTES:
        yield "slow", f"{_name(row)} does not read: {bytes_text(row.waiting_bytes)} wait for it ({where})."
    if row.blocked:
        yield (
            "slow",
            f"{row.remote} reads more slowly than {_name(row)} sends: its ring was full {row.blocked} times "
            f"({where}).",
        )


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
    slow = [row for row in rows if row.traced and row.calls_per_s and row.p99_us >= _SLOW_US]
    servers = {row.method: row for row in rows if row.side == "server" and row.traced}
    for row in slow:
        text = (
            f"{row.method} takes {row.p99_us / 1000:.0f} ms (one call in 100) at the {row.side} {_name(row)}"
        )
        server = servers.get(row.method)
        if row.side == "client" and server is not None and server.p99_us * 2 < row.p99_us:
            handler = f"{server.p99_us / 1000:.1f}" if server.p99_us >= _SHOWN_US else "under 0.1"
            text += f", and its handler {handler} ms: calls wait before it begins"
        yield "slow", text + "."
    for row in rows:
        if row.new_errors:
            yield "slow", f"{row.new_errors} calls of {row.method} failed at the {row.side} {_name(row)}."


def _of_fallback(row: NewFallback) -> Iterator[tuple[Level, str]]:
    if row.new:
        how = "began on TCP" if row.when == "began" else "left RDMA"
        yield "slow", f"{row.new} connections of {_name(row)} {how}: {row.text}."
