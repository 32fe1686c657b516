"""What the row of a process says about causes, as sentences: its loop stands still, its memory is full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..tables import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .rates import BusyProcess

Level = Literal["bad", "slow", "fine"]

#: A loop is blocked now and then if its timer came so late, in milliseconds, and so often in a minute.
_LATE_MS, _LATE_TIMES = 50.0, 2
#: What share of the memory is in use where hardly any is left.
_FULL = 0.95


def of_processors(rows: list[BusyProcess]) -> Iterator[tuple[Level, str]]:
    """Those whose loops are late because other programs have the processors."""
    late = [row for row in rows if row.queued_ms >= _LATE_MS]
    if late:
        worst = max(late, key=lambda row: row.queued_ms)
        which = f"{worst.queued_ms:.0f} ms at most in the last minute ({worst.program}[{worst.pid}])"
        yield "slow", f"This host is busy: {len(late)} event loops have waited for a processor, {which}."


def of_process(now: BusyProcess, before: BusyProcess | None, seconds: float) -> Iterator[tuple[Level, str]]:
    """
    :param before: the same one, so many seconds earlier.
    """
    name = f"{now.program}[{now.pid}]"
    if now.state == "stuck":
        yield "bad", f"{name} stands still: {now.text} (py-spy dump --pid {now.pid} shows where it is)."
    elif now.state not in ("answered", "stopped"):
        yield "bad", f"{name} does not tell: {now.text or now.state}."
    polls = 0 if before is None else now.slow_polls - before.slow_polls
    if polls > 0:
        slowest = f"{now.slowest_poll_us / 1000:.0f} ms at most"
        yield "slow", f"{name} blocks its event loop: {polls} times in the last {seconds:.0f} s, {slowest}."
    elif now.latest_timer_ms >= _LATE_MS and now.late_timers >= _LATE_TIMES:
        late = f"{now.late_timers} times in the last minute, by {now.latest_timer_ms:.0f} ms at most"
        remedy = f"(aiordma adm --pid {now.pid} trace start makes its log name what blocks it)"
        text = f"a timer that comes once a second was late {late} {remedy}"
        yield "slow", f"{name} blocks its event loop: {text}."
    if before is not None:
        yield from _since(name, now, before, f"in the last {seconds:.0f} s")


def _since(name: str, now: BusyProcess, before: BusyProcess, when: str) -> Iterator[tuple[Level, str]]:
    if (handlers := now.slow_handlers - before.slow_handlers) > 0:
        yield "slow", f"{name} has slow handlers: {handlers} {when} (its log names them)."
    if (leaks := now.leaks - before.leaks) > 0:
        yield "slow", f"{name} has forgotten something: {leaks} new leaks (aiordma stat --leaks)."
    used = f"{bytes_text(now.memory_bytes)} of {bytes_text(now.memory_limit_bytes)} are in use"
    limit = "(AIORDMA_MEMORY_LIMIT_BYTES; aiordma stat --memory shows who holds it)"
    if (refused := now.refused_blocks - before.refused_blocks) > 0:
        yield (
            "bad",
            f"{name} has no registered memory left: it refused {refused} blocks {when}; {used} {limit}.",
        )
    elif (smaller := now.smaller_blocks - before.smaller_blocks) > 0:
        text = f"{smaller} blocks were smaller than wanted {when}; {used} {limit}"
        yield "slow", f"{name} runs short of registered memory: {text}."
    elif now.memory_limit_bytes and now.memory_bytes >= _FULL * now.memory_limit_bytes:
        yield "slow", f"{name} has hardly any registered memory left: {used} {limit}."
