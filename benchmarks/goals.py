"""Goals that aiordma set itself for one host: what is measured now and, if one is missed, what bounds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .markdown import number, table
from .targets import P50_64, RATE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .summary import Summary

#: What two processes need that only wake each other. An event loop comes on top of it.
ASLEEP = "two blocking processes need {floor} us, and they have no event loop"
COPIES = "two processes in C that only copy through a ring reach 0.36 to 0.54: see what is counted"
# Counted by `make count-trips`: docs/benchmarks.md, "Counted", says how far these are from the goals.
AWAKE = "empty coroutines, the device and the caches alone take 1.0 us: see what is counted"
CALLS = "of 51,400 instructions, a task and a future alone have 20,600: see what is counted"


@dataclass(frozen=True)
class Goal:
    work: str
    demanded: str
    measured: str
    reached: bool | None
    """None: not measured."""
    bound: str = ""
    """Why it is not reached."""


def _goal(
    work: str, demanded: str, found: float | None, unit: str, least: float, bound: str, *, more: bool
) -> Goal:
    if found is None:
        return Goal(work, demanded, "not measured", None)
    reached = found >= least if more else found <= least
    return Goal(work, demanded, f"{found:.3g}{unit}", reached, "" if reached else bound)


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def goals(summary: Summary) -> Iterator[Goal]:
    """The better of streams and `StreamWriter`, on uvloop as the other side."""
    get = summary.value
    ours = [f"{surface}-{{}}-uvloop" for surface in ("stream", "writer")]
    awake = _least(get(name.format("hybrid"), *P50_64) for name in ours)
    asleep = _least(get(name.format("events"), *P50_64) for name in ours)
    blocking = _least(get(name, *P50_64) for name in ("socket-blocking", "connection"))
    floor = (
        ASLEEP.format(floor=number(blocking)) if blocking else "a sleeping process must be woken at each end"
    )
    work = "64 B round trip"
    tcp = _ratio(get("tcp-uvloop", *P50_64), awake)
    yield _goal(f"{work}, to uvloop TCP", "40x", tcp, "x", 40, AWAKE, more=True)
    yield _goal(work, "1.3 us", awake, " us", 1.3, AWAKE, more=False)
    unix = _ratio(get("unix-uvloop", *P50_64), asleep)
    yield _goal(f"{work}, events only, to uvloop Unix", "1.2x", unix, "x", 1.2, floor, more=True)
    yield _goal(f"{work}, events only", "110 us", asleep, " us", 110, floor, more=False)
    rate = _most(get(name.format("hybrid"), *RATE) for name in ours)
    share = _ratio(rate, summary.copies("warm"))
    yield _goal("1 MiB sends, to one memcpy", "0.8x", share, "x", 0.8, COPIES, more=True)
    for key, work, upside_down in (
        ("per_second", "64 B calls, 64 in flight, to msgpack over streams", False),
        ("p50_us", "64 B call, one at a time, to msgpack over streams", True),
    ):
        pick = _least if upside_down else _most
        mine = pick(get(f"rpc-bare-{loop}", "calls", "64", key) for loop in ("asyncio", "uvloop"))
        other = pick(get(f"msgpack-{loop}", "calls", "64", key) for loop in ("asyncio", "uvloop"))
        factor = _ratio(other, mine) if upside_down else _ratio(mine, other)
        yield _goal(work, "3x", factor, "x", 3, CALLS, more=True)


def goals_table(summary: Summary) -> str:
    words = {True: "yes", False: "**no**", None: "-"}
    rows = [[g.work, g.demanded, g.measured, words[g.reached], g.bound] for g in goals(summary)]
    return table(["work", "goal", "now", "reached", "what bounds it"], rows)
