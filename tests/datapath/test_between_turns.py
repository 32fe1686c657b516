"""Polling between turns of the loop: when it begins and ends, whom it makes way for, and no lost wake-up."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from aiordma.datapath._between_turns import BetweenTurns
from aiordma.datapath._spin import RunQueueDelay

US = 1_000
MS = 1_000 * US
BEGIN = 1_000 * MS
QUICK = US // 2  # a yield when nobody else wants the CPU


class NoQueue(RunQueueDelay):
    """No run-queue delay."""

    def read(self) -> int:
        return 0


def made(fixed_us: int | None = None) -> BetweenTurns:
    between = BetweenTurns(NoQueue())
    between.policy.set(-1 if fixed_us is None else fixed_us * US)
    return between


def wait(between: BetweenTurns, now: int, answer_after: int | None, yields: int = QUICK) -> tuple[int, bool]:
    """One wait in a loop that has nothing else to do: when it ended, and whether the answer was found."""
    if not between.expect(now):
        return now, False
    answer = None if answer_after is None else now + answer_after
    assert between.look(now) == 0, "the turn in which it begins belongs to others"
    while True:
        now += US  # the loop's turn
        if between.look(now) < 0:
            return now, False
        end = between.yielded(now, now + yields)
        now += yields
        if end < 0:
            return now, False
        if answer is not None and answer <= end:
            now = max(now, answer)
            between.found(now)
            return now, True
        now = max(now, end)


def settle(between: BetweenTurns, answer_after: int, times: int = 50, yields: int = QUICK) -> int:
    """Waits that are all answered so late, by polling or by an event; the time after them."""
    now = BEGIN
    for _ in range(times):
        began = now
        now, found = wait(between, now, answer_after, yields)
        if not found:
            now = max(now, began + answer_after)
            between.policy.woken(now)
    return now


def test_it_ends_when_nothing_comes_and_looks_in_slices_until_then() -> None:
    between = made(fixed_us=50)
    assert between.expect(BEGIN)
    assert between.look(BEGIN) == 0
    ends = []
    now = BEGIN + US
    while (end := between.look(now)) >= 0:
        assert now < end <= now + 10 * US, "other descriptors and timers wait no longer than that"
        ends.append(end)
        now = end
    assert now == BEGIN + 50 * US
    assert len(ends) >= 5
    assert between.waits == 1
    assert between.hits == 0


def test_what_comes_in_time_is_found() -> None:
    between = made()
    for turn in range(100):
        now, found = wait(between, BEGIN + turn * MS, 15 * US)
        assert found
        assert now == BEGIN + turn * MS + 15 * US
    assert between.waits == between.hits == 100


def test_it_learns_how_long_answers_take() -> None:
    between = made()
    now = settle(between, 150 * US)
    assert wait(between, now, 150 * US)[1]


def test_answers_that_take_too_long_end_it() -> None:
    between = made()
    settle(between, 5 * MS)
    hits = between.hits
    began = settle(between, 5 * MS, times=1_000)
    assert between.hits == hits
    assert wait(between, began, 5 * MS)[0] - began < 20 * US


def test_events_only_never_polls() -> None:
    between = made(fixed_us=0)
    assert not between.expect(BEGIN)
    assert between.look(BEGIN) == -1


def test_more_that_is_expected_begins_the_wait_anew() -> None:
    between = made(fixed_us=50)
    between.expect(BEGIN)
    assert between.look(BEGIN) == 0
    now = BEGIN + 40 * US
    between.expect(now)
    assert between.look(now) == 0
    assert between.look(now + 40 * US) > 0
    assert between.look(now + 50 * US) == -1


def test_a_peer_that_needs_this_cpu_gets_it_and_is_not_counted() -> None:
    """Two ends on one CPU: each yield lasts as long as the peer's work, and its answer is there then."""
    between = made()
    now = BEGIN
    for _ in range(1_000):
        now, found = wait(between, now, 60 * US, yields=60 * US)
        assert found


def test_a_cpu_that_others_keep_is_left_to_them() -> None:
    """Each yield costs milliseconds: a sleeper would have been woken."""
    between = made()
    now, lost, waits = BEGIN, 0, 20_000
    for _ in range(waits):
        began = now
        now, found = wait(between, now, 60 * US, yields=3 * MS)
        lost += now - began
        if not found:
            now += 60 * US
            between.policy.woken(now)
    assert lost < (now - BEGIN) // 50


def test_it_polls_again_when_the_others_are_gone() -> None:
    between = made()
    now = BEGIN
    for _ in range(100):
        now, _found = wait(between, now, 60 * US, yields=3 * MS)
        now += MS
    later = now + 6_000 * MS
    assert settle_from(between, later)


def settle_from(between: BetweenTurns, now: int) -> bool:
    for _ in range(5_000):
        began = now
        now, found = wait(between, now, 60 * US)
        if found:
            return True
        now = max(now, began + 60 * US)
        between.policy.woken(now)
    return False


def test_a_loss_now_and_then_is_outweighed_by_what_was_gained() -> None:
    between = made()
    now = BEGIN
    for round_ in range(20):
        for _ in range(1_000):
            now, found = wait(between, now, 60 * US)
            assert found or round_ == 0
            if not found:
                now += 60 * US
                between.policy.woken(now)
        now, _found = wait(between, now, 60 * US, yields=3 * MS)
    assert between.hits > 18_000


def test_an_answer_that_was_there_long_before_it_was_seen_says_nothing_about_polling() -> None:
    between = made()
    between.expect(BEGIN)
    between.look(BEGIN)
    before = between.policy.budget_ns
    between.found(BEGIN + 5 * MS)  # the loop was busy, or the thread did not run
    assert between.hits == 0
    assert between.policy.budget_ns == before


def crowd(between: BetweenTurns, now: int, sends: int) -> tuple[int, int]:
    """It is idle for a moment, and then others bring more to send, three times for each answer.

    When it ended, and how many sends found the engine polling."""
    polled = 0
    for number in range(sends):
        polled += between.sent(now)
        if between.active:
            between.look(now)  # the turn in which it begins
            now += US
            if between.look(now) > 0:
                between.yielded(now, now + QUICK)
        now += 5 * US
        if number % 3 == 2 and between.expecting_since:
            between.found(now)
    return now, polled


def test_a_program_with_much_in_flight_does_not_poll() -> None:
    between = made()
    now, polled = crowd(between, BEGIN, 1_000)
    assert between.crowded
    assert between.rests == 1
    assert polled < 100
    for _ in range(5):
        now, polled = crowd(between, now + 5_000 * MS, 1_000)
        assert polled < 100, "it tries again, and stops again"
    assert between.rests == 6


def test_it_polls_again_when_answers_come_one_at_a_time() -> None:
    between = made()
    now, _polled = crowd(between, BEGIN, 1_000)
    now += 5_000 * MS
    for turn in range(1_000):
        assert between.sent(now + turn * MS)
        assert wait(between, now + turn * MS, 15 * US)[1]
    assert not between.crowded
    assert between.rests == 1


def test_several_writes_for_one_answer_are_not_much_in_flight() -> None:
    """A server that writes head and body, in one turn or in several, with work of its own between."""
    between = made()
    now = BEGIN
    for _ in range(1_000):
        for _ in range(3):
            assert between.sent(now)
            assert between.look(now) == 0
            now += 30 * US
        _now, found = wait(between, now, 15 * US)
        assert found
        now += MS
    assert between.rests == 0


def test_with_a_fixed_time_much_in_flight_changes_nothing() -> None:
    between = made(fixed_us=50)
    _now, polled = crowd(between, BEGIN, 1_000)
    assert polled == 1_000
    assert not between.crowded


class Loop:
    """The poller's invariant (`_cq.pyx`) and a loop, step by step; the peer acts between any two steps."""

    def __init__(
        self, peer: deque[int], fixed_us: int | None, others: deque[int], parking: deque[bool]
    ) -> None:
        self.between = made(fixed_us)
        self.peer = peer  # how many steps pass before each message
        self.others = others  # how long the program's own callbacks take, turn by turn
        self.parking = parking  # whether what a message calls posts something and waits for it
        self.now = BEGIN
        self.queue = self.sent = self.served = 0
        self.armed = self.event = self.scheduled = self.dispatching = False

    def step(self, took: int) -> None:
        """Time passes, and messages arrive: the device raises an event if it is armed."""
        self.now += took
        while self.peer and self.peer[0] == 0:
            self.peer.popleft()
            self.complete()
        if self.peer:
            self.peer[0] -= 1

    def complete(self) -> None:
        self.queue += 1
        self.sent += 1
        if self.armed:
            self.event = True

    def poll(self) -> None:
        if self.dispatching:
            return
        self.step(50)
        taken, self.queue = self.queue, 0
        self.dispatching = True
        for _ in range(taken):
            self.served += 1
            if self.between.expecting_since:
                self.between.found(self.now)
            if self.between.expect(self.now):
                self.scheduled = True
            if self.parking and self.parking.popleft():
                self.complete()  # the device carries it out as it is posted
                self.park()
        self.dispatching = False
        self.step(50)

    def park(self) -> None:
        if not self.armed:
            self.arm()

    def arm(self) -> None:
        self.step(50)
        self.armed = True
        self.step(50)
        if self.dispatching:
            self.scheduled = True
        self.poll()

    def service(self) -> None:
        self.scheduled = False
        self.poll()
        if self.between.active:
            end = self.between.look(self.now)
            if end > 0:
                before = self.now
                self.step(QUICK)
                end = self.between.yielded(before, self.now)
                while end > 0 and not self.queue and self.now < end:
                    self.step(100)
                if end > 0:
                    self.poll()
            if end >= 0:
                self.scheduled = True
                return
        self.park()

    def on_event(self) -> None:
        self.event = self.armed = False
        self.poll()
        if self.between.active:
            self.scheduled = True
        else:
            self.park()

    def run(self) -> int:
        """Until the loop sleeps and the peer is done; the number of turns."""
        self.arm()
        turns = 0
        while True:
            self.step(500)
            work = self.others.popleft() if self.others else 0
            if work:
                self.step(work * US)
                if work % 2 and self.between.sent(self.now):
                    self.scheduled = True
            if self.event:
                self.on_event()
            elif self.scheduled:
                turns += 1
                self.service()
            elif self.peer:
                assert self.armed, "it sleeps, and nothing would wake it"
            else:
                return turns


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 400), max_size=40),
    st.sampled_from([None, 0, 20, 200]),
    st.lists(st.integers(0, 300), max_size=40),
    st.lists(st.booleans(), max_size=40),
)
def test_no_message_is_left_behind_and_the_loop_sleeps_in_the_end(
    peer: list[int], fixed_us: int | None, others: list[int], parking: list[bool]
) -> None:
    loop = Loop(deque(peer), fixed_us, deque(others), deque(parking))
    turns = loop.run()
    assert loop.served == loop.sent
    assert loop.armed
    assert not loop.event
    assert turns <= 60 * (loop.sent + 1) + len(others) + 1, "polling ends when nothing comes"
