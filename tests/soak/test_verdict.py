"""The rules of the verdict find what grows, hangs or dies, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from .conductor import Options
from .trend import MOST_POINTS, Curve, slope, thinned
from .verdict import MIB, TOLERANCES, Record, growth, judge, stalls

TOTAL = 3600.0


def curve(value: Callable[[float], float], step: float = 5.0) -> Curve:
    return [(time * step, value(time * step)) for time in range(int(TOTAL / step))]


def steady(_: float) -> float:
    return 100 * MIB


SHAPES: dict[str, Callable[[float], float]] = {
    "steady": steady,
    "a sawtooth with short teeth": lambda time: 100 * MIB + time % 60 / 60 * 50 * MIB,
    "a sawtooth with long teeth": lambda time: 100 * MIB + time % 1000 / 1000 * 50 * MIB,
    "a cache that fills at the beginning": lambda time: 100 * MIB + min(time / 360, 1) * 80 * MIB,
    "what shrinks": lambda time: (200 - time / TOTAL * 100) * MIB,
    "one step": lambda time: (100 if time < 2000 else 120) * MIB,
    "rare peaks": lambda time: (300 if int(time / 5) % 7 == 0 else 100) * MIB,
    "less than is allowed": lambda time: (100 + time / TOTAL * 12) * MIB,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_does_not_grow(shape: str) -> None:
    assert not growth(curve(SHAPES[shape]), TOLERANCES["pss"], TOTAL).grows


def test_a_growing_curve_is_found() -> None:
    random = Random(1)

    def noisy(time: float) -> float:
        return (100 + time / TOTAL * 20 + random.uniform(-5, 5)) * MIB

    found = growth(curve(noisy), TOLERANCES["pss"], TOTAL)
    assert found.grows
    assert found.an_hour / MIB == pytest.approx(20, rel=0.1)
    assert (found.after - found.before) / MIB == pytest.approx(12, rel=0.2)


def test_growth_that_begins_late_is_found() -> None:
    late = curve(lambda time: (100 + max(0, time - 1800) / 20) * MIB)
    assert growth(late, TOLERANCES["pss"], TOTAL).grows


def test_growth_beneath_a_sawtooth_is_found() -> None:
    found = growth(curve(lambda time: (100 + time % 60 + time / TOTAL * 40) * MIB), TOLERANCES["pss"], TOTAL)
    assert found.grows


def test_a_few_descriptors_are_allowed() -> None:
    for count, grows in ((10, False), (20, True)):
        leak = curve(lambda time, count=count: 50 + int(time / TOTAL * count))  # type: ignore[misc]
        assert growth(leak, TOLERANCES["fds"], TOTAL).grows is grows


def test_a_step_is_noted() -> None:
    record = Record("server", curves={"pss": curve(SHAPES["one step"])})
    verdict = judge([record], 30, TOTAL)
    assert verdict.clean
    assert "server: pss rose, and does not go on: 100.0 MiB" in verdict.notes[0]


def test_slow_work_may_be_silent_for_longer() -> None:
    """At a quarter of the pace, connections that live for seconds live for half a minute."""
    slow, fast = (Options(TOTAL, 1, 30, 5, 60, pace) for pace in (0.25, 2))
    assert (slow.silence, fast.silence) == (120, 30)
    record = Record("client", progress={"connect": curve(lambda time: time // 100)})
    assert judge([record], slow.silence, TOTAL).clean
    assert not judge([record], fast.silence, TOTAL).clean


def test_too_few_points_say_nothing() -> None:
    assert not growth([(0, 1), (TOTAL, 1e12)], TOLERANCES["pss"], TOTAL).rose


def test_the_slope_ignores_outliers() -> None:
    assert slope([(time, 2.0 * time if time % 5 else 1e9) for time in range(100)]) == pytest.approx(2)
    assert slope([]) == 0
    assert slope([(1, 5)]) == 0


def test_long_curves_are_thinned() -> None:
    points = thinned([(time, 3.0 * time) for time in range(10_000)])
    assert len(points) <= MOST_POINTS
    assert slope(points) == pytest.approx(3)


def test_a_hang_is_found() -> None:
    def stops(time: float) -> float:
        return min(time, 1000) + max(0, time - 1100)

    assert stalls(curve(lambda time: time), 30, TOTAL) == []
    assert stalls(curve(stops), 30, TOTAL) == [(1000, 1105)]
    assert stalls(curve(lambda time: min(time, 1000)), 30, TOTAL) == [(1000, TOTAL)]
    assert stalls(curve(lambda time: max(0, time - 100)), 30, TOTAL) == [(0, 105)]


def test_work_that_was_never_done_is_a_hang() -> None:
    assert stalls([(time, 0) for time in range(10)], 30, 10) == [(0, 10)]
    assert stalls([], 30, 10) == [(0, 10)]


def test_the_verdict_names_what_it_finds() -> None:
    well = Record(
        "server", {"pss": curve(steady), "rss": curve(lambda time: time * MIB)}, {"calls": curve(abs)}
    )
    assert judge([well], 30, TOTAL) == ([], [])
    ill = Record(
        "client",
        {"fds": curve(lambda time: time), "pss": curve(steady)},
        {"calls": curve(steady), "streams": curve(abs)},
        ["wrong byte at 5"],
        said="a warning",
    )
    verdict = judge([well, ill], 30, TOTAL)
    assert not verdict.clean
    assert [finding.split(":")[1].strip() for finding in verdict.findings] == [
        "wrong byte at 5",
        "said on standard error",
        "hang",
        "fds grows",
    ]
    assert "no calls was done from 0 s to 3600 s" in verdict.findings[2]
    assert "1080 descriptors in the second fifth, 3238 descriptors in the last" in verdict.findings[3]


def test_of_the_dead_only_the_death_is_told() -> None:
    dead = Record("client", progress={"calls": [(5.0, 5.0)]}, death="died by itself, status -11")
    assert judge([dead], 30, TOTAL).findings == ["client: died by itself, status -11"]
