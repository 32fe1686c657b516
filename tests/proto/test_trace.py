"""Stages of calls, two clocks, counts by size: interpreted and compiled."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .cores import CORES

TRACES = [core.trace for core in CORES.values()]


@pytest.fixture(params=TRACES, ids=list(CORES))
def trace(request: pytest.FixtureRequest) -> Any:
    return request.param


def trip(trace: Any, steps: list[int], ahead: int, number: int = 7) -> tuple[Any, tuple[int, ...], list[int]]:
    """A call whose stages take ``steps``, to a server whose clock is ``ahead``."""
    queued, out, waited, handler, answered, back, wake = steps
    now = 10**12
    client = trace.ClientTrace(number, "m", now)
    now += queued
    block = client.block(now)
    assert block[:8] == number.to_bytes(8, "big")
    now += out
    server = trace.ServerTrace(int.from_bytes(block[:8], "big"), "m", now + ahead)
    now += waited
    server.started = now + ahead
    now += handler
    server.finished = now + ahead
    now += answered
    reply = server.block(now + ahead)
    assert len(reply) == trace.BLOCK_BYTES
    now += back
    assert client.arrive(reply, now) == 1
    now += wake
    assert client.end(now, 0) == sum(steps)
    return client, tuple(steps), [client.sent, client.received, client.replied, client.arrived]


durations = st.lists(st.integers(0, 10**10), min_size=7, max_size=7)


@given(durations, st.integers(-(10**11), 10**15))
def test_every_stage_is_told_apart(steps: list[int], ahead: int) -> None:
    for module in TRACES:
        client, expected, _ = trip(module, steps, ahead)
        assert tuple(client.stages(ahead)) == expected


@given(durations, st.integers(-(10**11), 10**15), st.integers(-(10**10), 10**10))
def test_a_wrong_estimate_moves_time_between_the_directions_only(
    steps: list[int], ahead: int, error: int
) -> None:
    for module in TRACES:
        client, expected, _ = trip(module, steps, ahead)
        stages = client.stages(ahead + error)
        assert min(stages) >= 0
        assert sum(stages) == sum(expected)
        assert (*stages[:1], *stages[2:5], stages[6]) == (*expected[:1], *expected[2:5], expected[6])


@given(st.binary(max_size=60), st.integers(0, (1 << 64) - 1))
def test_blocks_of_a_peer_are_not_trusted(data: bytes, number: int) -> None:
    for module in TRACES:
        for block in (data, data[:40], number.to_bytes(8, "big") + data[:32].ljust(32, b"\xff")):
            client = module.ClientTrace(number, "m", 5)
            client.block(6)
            known = client.arrive(block, 9)
            client.end(10, 0)
            stages = client.stages(0)
            assert (stages is not None) <= bool(known)
            if known:
                assert client.received <= client.started <= client.finished <= client.replied < 1 << 62


def test_without_a_block(trace: Any) -> None:
    client = trace.ClientTrace(1, "m", 5)
    client.block(6)
    assert client.arrive(None, 8) == 0
    assert client.end(9, 14) == 4
    assert client.stages(0) is None
    other = trace.ClientTrace(2, "m", 5)
    other.block(5)
    assert other.arrive(trace.ServerTrace(1, "m", 5).block(6), 8) == 0  # another call's


@given(
    ahead=st.integers(-(10**11), 10**13),
    trips=st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), min_size=1, max_size=300),
)
def test_the_offset_is_right_within_half_of_the_best_trip(ahead: int, trips: list[tuple[int, int]]) -> None:
    for module in TRACES:
        clock = module.ClockOffset()
        for out, back in trips:
            steps = [1000, out, 50, 2000, 50, back, 10]
            clock.add(*trip(module, steps, ahead)[2])
        recent = trips[-2 * clock.window :]
        assert clock.samples == len(trips)
        assert abs(clock.offset - ahead) <= clock.round_trip / 2 + 1
        assert clock.round_trip <= min(sum(each) for each in recent[-clock.window :])
        assert clock.round_trip in {sum(each) for each in recent}


def test_the_offset_follows_a_clock_that_drifts(trace: Any) -> None:
    clock, noise = trace.ClockOffset(), random.Random(3)
    for call in range(5000):
        ahead = call * 100
        out, back = noise.randrange(1000, 50_000), noise.randrange(1000, 50_000)
        clock.add(*trip(trace, [0, out, 0, 0, 0, back, 0], ahead)[2])
        if call > 100:
            assert abs(clock.offset - ahead) < 200 * 100 + 50_000


def test_times_that_cannot_be_are_no_sample(trace: Any) -> None:
    clock = trace.ClockOffset()
    for times in ((10, 5, 5, 9), (0, 9, 5, 10), (0, 5, 20, 10)):
        clock.add(*times)
    assert clock.samples == 0
    assert clock.offset == 0


@given(st.lists(st.integers(0, 1 << 45), min_size=1), st.floats(0, 1))
def test_percentiles(values: list[int], share: float) -> None:
    for module in TRACES:
        histogram = module.Histogram()
        for value in values:
            histogram.add(value)
        assert histogram.count == len(values)
        assert histogram.total == sum(values)
        assert histogram.highest == max(values)
        found = histogram.percentile(share)
        exact = sorted(values)[max(0, min(len(values) - 1, int(share * len(values) + 0.999999) - 1))]
        if exact < 1 << 41:
            assert exact <= found <= exact * 1.07 + 1
        assert sum(count for _, count in histogram.buckets()) == len(values)


@given(st.integers(0, (1 << 41) - 1))
def test_buckets(value: int) -> None:
    for module in TRACES:
        at = module.bucket_of(value)
        assert 0 <= at < 640
        assert value <= module.limit_of(at)
        assert at == 0 or value > module.limit_of(at - 1)


def test_an_empty_histogram(trace: Any) -> None:
    histogram = trace.Histogram()
    assert histogram.percentile(0.5) == 0
    assert histogram.buckets() == []


def test_rate_limit(trace: Any) -> None:
    limit = trace.RateLimit(burst=2, interval=10)
    assert [limit.allow(100.0) for _ in range(4)] == [True, True, False, False]
    assert not limit.allow(105.0)
    assert limit.allow(110.1)
    assert limit.take_refused() == 3
    assert limit.take_refused() == 0
    assert [limit.allow(1000.0) for _ in range(3)] == [True, True, False]
