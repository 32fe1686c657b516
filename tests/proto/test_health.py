"""Which device is used for whom: against a model that keeps everything, and rules that must always hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto.health import EAGER, Health, wait_before

RETRY = 10.0


def test_the_order_of_the_setting_while_all_is_well() -> None:
    assert Health(3).order("a", 0.0) == [[0, 1, 2]]


def test_a_failed_way_is_the_last_choice_for_one_host() -> None:
    health = Health(2)
    health.way_failed(0, "a", "lost", 100.0, RETRY)
    assert health.order("a", 101.0) == [[1], [0]]
    assert health.order("b", 101.0) == [[0, 1]]
    assert health.order("a", 110.0) == [[0, 1]]
    assert not health.why_down(0)


def test_links_that_fail_together_count_once() -> None:
    health = Health(2)
    for _ in range(5):
        health.way_failed(0, "a", "lost", 100.0, RETRY)
    assert health.order("a", 110.0) == [[0, 1]]


def test_each_failure_doubles_the_time_up_to_a_bound() -> None:
    health = Health(2)
    now = 0.0
    waits = []
    for _ in range(8):
        health.failed(1, "port", now, RETRY)
        waits.append(health.tried_again_at(1) - now)
        now = health.tried_again_at(1)
        assert health.order("a", now) == [[0, 1]]
        assert health.why_down(1) == "port"
    assert waits == [10, 20, 40, 80, 160, 320, 320, 320]
    health.works(1, "a")
    assert not health.why_down(1)
    health.failed(1, "port", now, RETRY)
    assert health.tried_again_at(1) == now + 10


def test_a_port_that_is_up_again_is_used_at_once_for_everybody() -> None:
    health = Health(2)
    health.failed(0, "port", 0.0, RETRY)
    health.way_failed(0, "a", "port", 0.0, RETRY)
    health.way_failed(1, "a", "lost", 0.0, RETRY)
    assert health.order("a", 1.0) == [[1], [0]]
    health.recovered(0)
    assert health.order("a", 1.0) == [[0], [1]]


def test_a_stream_asks_a_few_times_at_once_and_then_less_and_less() -> None:
    waits = [wait_before(attempt, RETRY) for attempt in range(EAGER + 8)]
    assert waits == [0.0] * EAGER + [10, 20, 40, 80, 160, 320, 320, 320]


HOSTS = st.sampled_from("ab")
DEVICES = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("failed"), DEVICES, HOSTS),
    st.tuples(st.just("way_failed"), DEVICES, HOSTS),
    st.tuples(st.just("works"), DEVICES, HOSTS),
    st.tuples(st.just("recovered"), DEVICES, HOSTS),
    st.tuples(st.just("time"), st.integers(1, 400), HOSTS),
)


@given(st.lists(STEPS, max_size=60))
def test_what_always_holds(steps: list[tuple[str, int, str]]) -> None:
    health, now = Health(3), 0.0
    down: dict[int, float] = {}
    for what, number, host in steps:
        if what == "time":
            now += number
        elif what == "failed":
            health.failed(number, "why", now, RETRY)
            assert RETRY <= health.tried_again_at(number) - now <= 32 * RETRY
            down[number] = health.tried_again_at(number)
        elif what == "way_failed":
            health.way_failed(number, host, "why", now, RETRY)
            assert number not in health.order(host, now)[0] or len(health.order(host, now)[0]) == 1
        else:
            if what == "works":
                health.works(number, host)
            else:
                health.recovered(number)
            down.pop(number, None)
        for each in "ab":
            order = health.order(each, now)
            flat = [device for group in order for device in group]
            assert sorted(flat) == [0, 1, 2]  # all of them, each once: something is always tried
            bad = {device for device, until in down.items() if now < until}
            # Whatever is down comes last, and nothing that is good comes behind it.
            assert set(flat[len(flat) - len(bad) :]) == bad
        for device in range(3):
            assert bool(health.why_down(device)) == (device in down)
        assert all(not health._paths or until <= now + 32 * RETRY for _, until, _ in health._paths.values())
