"""Fragments: whole, bounded, in order within a connection, fair between them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aiordma.proto.errors import LocalProtocolError
from aiordma.proto.fragment import FairQueue, Fragment, Transfer


def test_pieces_of_one_transfer() -> None:
    queue: FairQueue[str] = FairQueue(2, 10)
    transfer = queue.submit("a", 25)
    first, second = queue.take(), queue.take()
    assert first is not None
    assert second is not None
    assert [(f.offset, f.length) for f in (first, second)] == [(0, 10), (10, 10)]
    assert queue.take() is None
    assert not queue.done(first)
    third = queue.take()
    assert third is not None
    assert (third.offset, third.length) == (20, 5)
    assert queue.waiting == 0
    assert not queue.done(third)
    assert queue.done(second)
    assert transfer.finished
    assert queue.outstanding == 0
    with pytest.raises(LocalProtocolError, match="twice"):
        queue.done(second)


def test_empty_transfer_is_one_fragment() -> None:
    queue: FairQueue[str] = FairQueue(1)
    transfer = queue.submit("a", 0)
    assert not transfer.finished
    fragment = queue.take()
    assert fragment is not None
    assert fragment.length == 0
    assert queue.done(fragment)


@pytest.mark.parametrize("bad", [(0, 1), (1, 0)])
def test_bad_limits(bad: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        FairQueue(*bad)
    queue: FairQueue[str] = FairQueue(1)
    with pytest.raises(ValueError, match="at least 1"):
        queue.set_limit(0)
    with pytest.raises(ValueError, match="at least 1"):
        queue.set_lane_limit("x", 0)
    with pytest.raises(ValueError, match="shorter than nothing"):
        queue.submit("a", -1)


def test_small_transfers_do_not_wait_for_large_ones() -> None:
    queue: FairQueue[str] = FairQueue(1, 10)
    queue.submit("large", 10_000)
    for i in range(5):
        queue.submit(f"small{i}", 10)
    order = []
    for _ in range(10):
        fragment = queue.take()
        assert fragment is not None
        order.append(fragment.transfer.connection)
        queue.done(fragment)
    assert order[:7] == ["large", "small0", "small1", "small2", "small3", "small4", "large"]


def test_turns_are_equal() -> None:
    queue: FairQueue[int] = FairQueue(7, 10)
    for connection in range(5):
        queue.submit(connection, 10_000)
    rng = random.Random(1)
    out: list[Fragment[int]] = []
    count: Counter[int] = Counter()
    for _ in range(1000):
        fragment = queue.take()
        if fragment is None:
            queue.done(out.pop(rng.randrange(len(out))))
        else:
            out.append(fragment)
            count[fragment.transfer.connection] += 1
    assert max(count.values()) - min(count.values()) <= 1


def test_a_full_lane_stops_only_its_own_connections() -> None:
    queue: FairQueue[str] = FairQueue(100, 10)
    queue.set_lane_limit("qp1", 2)
    queue.submit("a", 1000, "qp1")
    queue.submit("b", 1000, "qp1")
    queue.submit("c", 50, "qp2")
    taken = []
    while (fragment := queue.take()) is not None:
        taken.append(fragment)
    count = Counter(f.transfer.connection for f in taken)
    assert count == {"a": 1, "b": 1, "c": 5}
    queue.done(taken[0])
    more = queue.take()
    assert more is not None
    assert more.transfer.lane == "qp1"
    assert queue.take() is None
    queue.drop_lane("qp1")
    assert queue.take() is not None


def test_limit_can_change() -> None:
    queue: FairQueue[str] = FairQueue(1, 10)
    queue.submit("a", 50)
    first = queue.take()
    assert first is not None
    assert queue.take() is None
    queue.set_limit(2)
    assert queue.take() is not None
    queue.set_limit(1)
    queue.done(first)
    assert queue.take() is None


def test_cancel_takes_a_connection_out_of_its_lane_s_line() -> None:
    queue: FairQueue[str] = FairQueue(9, 10)
    queue.set_lane_limit("qp", 1)
    for name in "abc":
        queue.submit(name, 10, "qp")
    first = queue.take()
    assert first is not None
    assert queue.take() is None  # b and c wait for the lane
    queue.cancel("b")
    queue.done(first)
    second = queue.take()
    assert second is not None
    assert second.transfer.connection == "c"
    queue.submit("d", 10, "qp")
    assert queue.take() is None
    queue.cancel("d")
    queue.done(second)
    assert queue.waiting == 0


def test_cancel_waits_for_the_device() -> None:
    queue: FairQueue[str] = FairQueue(1, 10)
    running = queue.submit("a", 100)
    queued = queue.submit("a", 100)
    other = queue.submit("b", 10)
    fragment = queue.take()
    assert fragment is not None
    assert queue.cancel("a") == [queued]
    assert queue.cancel("a") == []
    assert not running.finished
    assert queue.done(fragment)
    assert running.finished
    last = queue.take()
    assert last is not None
    assert last.transfer is other


class Scheduling(RuleBasedStateMachine):
    """Any order of calls: limits hold, every byte goes out once and in order, nothing is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue(3, 10)
        self.limit = 3
        self.lane_limit = {0: 2}
        self.queue.set_lane_limit(0, 2)
        self.out: list[Fragment[int]] = []
        self.transfers: list[Transfer[int]] = []
        self.next_offset: dict[int, int] = {}

    @rule(connection=st.integers(0, 4), length=st.integers(0, 45), lane=st.integers(0, 1))
    def submit(self, connection: int, length: int, lane: int) -> None:
        self.transfers.append(self.queue.submit(connection, length, lane))

    @rule()
    def take(self) -> None:
        fragment = self.queue.take()
        if fragment is None:
            return
        transfer = fragment.transfer
        assert fragment.offset == self.next_offset.get(id(transfer), 0)
        self.next_offset[id(transfer)] = fragment.offset + fragment.length
        earlier: Any = [t for t in self.transfers if t.connection == transfer.connection]
        earlier = earlier[: earlier.index(transfer)]
        assert all(t.cancelled or t.taken == t.length for t in earlier)
        self.out.append(fragment)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        fragment = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        assert self.queue.done(fragment) == fragment.transfer.finished

    @rule(connection=st.integers(0, 4))
    def cancel(self, connection: int) -> None:
        for transfer in self.queue.cancel(connection):
            assert transfer.finished

    @rule(limit=st.integers(1, 3))
    def change_lane_limit(self, limit: int) -> None:
        self.queue.set_lane_limit(0, limit)
        self.lane_limit[0] = max(limit, sum(f.transfer.lane == 0 for f in self.out))

    @invariant()
    def limits_hold(self) -> None:
        assert self.queue.outstanding == len(self.out) <= self.limit
        assert sum(f.transfer.lane == 0 for f in self.out) <= self.lane_limit[0]

    def teardown(self) -> None:
        while self.queue.waiting or self.out:
            fragment = self.queue.take()
            if fragment is not None:
                self.out.append(fragment)
            else:
                assert self.out, "stalled"
                self.queue.done(self.out.pop(0))
        assert all(t.finished for t in self.transfers)


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
