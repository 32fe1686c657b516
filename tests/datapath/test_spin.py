"""How long an operation may busy-poll: learned from busy polls, from sleeps, and from the run queue."""

from __future__ import annotations

import os
import threading

import pytest

from aiordma.datapath._spin import RunQueueDelay, SpinPolicy

US = 1_000
MAX = 100 * US


class Queue(RunQueueDelay):
    """A run queue as the test wants it."""

    waited_ns = 0
    reads = 0

    def read(self) -> int:
        self.reads += 1
        return self.waited_ns


def sleep(policy: SpinPolicy, took_ns: int, queue: Queue | None = None, delayed_ns: int = 0) -> None:
    """An operation sleeps; of the time that it takes, the thread waits ``delayed_ns`` for a CPU."""
    policy.park(1_000_000)
    if queue is not None:
        queue.waited_ns += delayed_ns
    policy.woken(1_000_000 + took_ns)


def test_it_begins_with_a_short_time_and_polls_less_when_nothing_is_found() -> None:
    policy = SpinPolicy(Queue())
    begin = policy.budget_ns
    assert 0 < begin < MAX
    policy.missed()
    assert policy.budget_ns == begin - begin // 4


def test_short_sleeps_make_it_poll_up_to_a_limit() -> None:
    policy = SpinPolicy(Queue())
    for _ in range(10):
        sleep(policy, 60 * US)
    assert policy.budget_ns == MAX


def test_long_sleeps_change_nothing() -> None:
    policy = SpinPolicy(Queue())
    before = policy.budget_ns
    for _ in range(100):
        sleep(policy, 5_000 * US)
    assert policy.budget_ns == before


def test_what_is_found_late_makes_it_poll_longer() -> None:
    policy = SpinPolicy(Queue())
    policy.found_after(15 * US)
    assert policy.budget_ns == 60 * US


def test_two_ends_on_one_cpu_stop_polling_though_each_sleep_is_short() -> None:
    """The peer cannot run while this end polls. Each sleep ends soon all the same, so that each of
    them alone seems to say that polling would have paid."""
    policy = SpinPolicy(Queue())
    polled = 0
    for _ in range(10_000):
        if policy.budget_ns:
            polled += policy.budget_ns
            policy.missed()
        sleep(policy, 60 * US)
    assert polled / 10_000 < 2 * US, "a small part of what a sleep costs"


def test_it_tries_again_and_polls_on_when_the_other_cpu_is_free() -> None:
    policy = SpinPolicy(Queue())
    for _ in range(3_000):
        if policy.budget_ns:
            policy.missed()
        sleep(policy, 60 * US)
    waits = 0
    while policy.budget_ns < MAX // 2:
        sleep(policy, 60 * US)
        waits += 1
        assert waits < 2_000
    policy.found_after(3 * US)
    for _ in range(15):
        policy.missed()
        policy.found_after(3 * US)
    assert policy.budget_ns > 0, "what is found now and then keeps it polling"


def test_a_sleep_is_judged_without_the_wait_for_a_cpu() -> None:
    queue = Queue()
    policy = SpinPolicy(queue)
    for _ in range(16):
        policy.missed()
    assert policy.budget_ns == 0
    for _ in range(2_000):
        sleep(policy, 400 * US, queue, 300 * US)
    assert policy.budget_ns > 0
    assert queue.reads < 2 * 2_000, "not at each sleep"


def test_a_sleep_that_was_long_for_other_reasons_is_none_to_poll_for() -> None:
    queue = Queue()
    policy = SpinPolicy(queue)
    for _ in range(16):
        policy.missed()
    for _ in range(2_000):
        sleep(policy, 400 * US, queue, 10 * US)
    assert policy.budget_ns == 0


def test_a_fixed_time_stays() -> None:
    policy = SpinPolicy(Queue())
    policy.set(7 * US)
    for _ in range(50):
        policy.missed()
        policy.found_after(50 * US)
        sleep(policy, 10 * US)
    assert policy.budget_ns == 7 * US
    policy.set(0)
    sleep(policy, 10 * US)
    assert policy.budget_ns == 0
    policy.set(-1)
    assert policy.budget_ns > 0


def test_waking_without_having_slept_is_no_measurement() -> None:
    policy = SpinPolicy(Queue())
    before = policy.budget_ns
    policy.woken(5_000)
    sleep(policy, 1_000 * US)
    policy.woken(5_000)
    assert policy.budget_ns == before


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/schedstat"), reason="a kernel without SCHED_INFO")
def test_the_kernel_tells_the_run_queue_delay_of_this_thread() -> None:
    queue = RunQueueDelay()
    first = queue.read()
    assert first >= 0
    assert queue.read() >= first
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(RunQueueDelay().read()))
    thread.start()
    thread.join()
    assert seen[0] >= 0
