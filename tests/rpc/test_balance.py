"""The choice among servers: three ways of picking, reconnecting, ejecting. Virtual time, no I/O."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aiordma.rpc.balance import Ejection, Picking, State, Target, Targets
from aiordma.rpc.errors import Code, RpcError
from aiordma.rpc.retry import Backoff

STEADY = Backoff(first_s=1.0, factor=2.0, most_s=8.0, jitter=0.0)
HUNG = RpcError(Code.DEADLINE_EXCEEDED, "no answer")


def made(count: int, picking: Picking, **options: object) -> Targets[str]:
    names = [chr(ord("a") + i) for i in range(count)]
    return Targets(names, picking, reconnect=STEADY, draw=lambda: 0.5, **options)  # type: ignore[arg-type]


def connect(targets: Targets[str], *names: str) -> None:
    for target in targets.all:
        if target.address in names:
            targets.connecting(target)
            targets.connected(target, f"client {target.address}")


def picked(targets: Targets[str], count: int, now: float = 0.0) -> str:
    chosen = [targets.pick(now) for _ in range(count)]
    return "".join("-" if target is None else target.address for target in chosen)


def test_pick_first_stays_and_connects_to_one() -> None:
    targets = made(3, Picking.PICK_FIRST)
    assert picked(targets, 1) == "-"
    (first,) = targets.wanted(0.0)
    assert first.address == "a"
    targets.connecting(first)
    assert targets.wanted(0.0) == []
    targets.connected(first, "client a")
    assert targets.wanted(0.0) == []
    assert picked(targets, 3) == "aaa"


def test_pick_first_goes_on_to_the_next_and_comes_back() -> None:
    targets = made(3, Picking.PICK_FIRST)
    order = []
    for now in range(4):
        (target,) = targets.wanted(float(now))
        order.append(target.address)
        targets.connecting(target)
        targets.lost(target, OSError("refused"), float(now))
    assert order == ["a", "b", "c", "a"]
    assert targets.wanted(3.0)[0].address == "b"
    connect(targets, "c")
    assert picked(targets, 2, 5.0) == "cc"
    targets.lost(targets.all[2], None, 6.0)
    # c was fine until now, so it is the best guess.
    assert targets.wanted(7.0)[0].address == "c"


def test_round_robin_takes_turns_and_leaves_out_what_cannot() -> None:
    targets = made(3, Picking.ROUND_ROBIN)
    assert [t.address for t in targets.wanted(0.0)] == ["a", "b", "c"]
    connect(targets, "a", "b", "c")
    assert Counter(picked(targets, 9)) == {"a": 3, "b": 3, "c": 3}
    targets.all[1].serving = False
    assert Counter(picked(targets, 8)) == {"a": 4, "c": 4}
    targets.lost(targets.all[0], None, 0.0)
    assert picked(targets, 3) == "ccc"
    targets.all[2].serving = False
    assert picked(targets, 1) == "-"


def test_least_loaded() -> None:
    targets = made(3, Picking.LEAST_LOADED)
    connect(targets, "a", "b", "c")
    chosen = []
    for _ in range(6):
        target = targets.pick(0.0)
        assert target is not None
        targets.begin(target)
        chosen.append(target)
    assert Counter(t.address for t in chosen) == {"a": 2, "b": 2, "c": 2}
    busy = targets.all[1]
    targets.end(busy, None, 0.0)
    assert targets.pick(0.0) is busy


def test_one_server_needs_no_choice() -> None:
    targets = made(1, Picking.LEAST_LOADED)
    assert picked(targets, 1) == "-"
    connect(targets, "a")
    assert picked(targets, 1) == "a"
    targets.all[0].serving = False
    assert picked(targets, 1) == "-"


def test_pauses_between_attempts_grow_and_start_again() -> None:
    targets = made(1, Picking.ROUND_ROBIN)
    (target,) = targets.all
    now, pauses = 0.0, []
    for _ in range(5):
        assert targets.wanted(now) == [target]
        targets.connecting(target)
        targets.lost(target, OSError(), now)
        assert targets.wanted(now) == []
        assert targets.next_change(now) == target.retry_at
        pauses.append(target.retry_at - now)
        now = target.retry_at
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert not targets.may_come_soon()
    targets.connecting(target)
    assert not targets.may_come_soon()
    targets.connected(target, "client")
    targets.lost(target, OSError(), now)
    assert target.retry_at - now == 0.5


def test_calls_wait_only_for_what_may_come() -> None:
    targets = made(2, Picking.ROUND_ROBIN)
    assert targets.may_come_soon()
    for target in targets.all:
        targets.connecting(target)
    assert targets.may_come_soon()
    targets.lost(targets.all[0], OSError(), 0.0)
    assert targets.may_come_soon()
    targets.lost(targets.all[1], OSError(), 0.0)
    assert not targets.may_come_soon()


def fail(targets: Targets[str], target: Target[str], times: int, now: float, error: Exception = HUNG) -> None:
    for _ in range(times):
        targets.begin(target)
        targets.end(target, error, now)


def test_a_server_whose_calls_fail_is_left_out_for_growing_times() -> None:
    targets = made(3, Picking.ROUND_ROBIN, ejection=Ejection(failures=3, pause=STEADY))
    connect(targets, "a", "b", "c")
    sick = targets.all[0]
    fail(targets, sick, 2, 0.0)
    assert "a" in picked(targets, 3)
    fail(targets, sick, 1, 0.0)
    assert Counter(picked(targets, 4)) == {"b": 2, "c": 2}
    assert targets.next_change(0.0) == 1.0
    assert "a" in picked(targets, 3, 1.0)
    fail(targets, sick, 3, 1.0)
    assert sick.ejected_until == 3.0
    # A success ends the row.
    targets.begin(sick)
    targets.end(sick, None, 3.0)
    fail(targets, sick, 3, 3.0)
    assert sick.ejected_until == 4.0
    assert targets.statistics(3.5)[0]._asdict() | {"state": 0} == {
        "address": "a", "state": 0, "serving": True, "ejected": True, "in_flight": 0,
        "calls": 10, "failed": 9, "connects": 1, "ejections": 3,
    }  # fmt: skip


def test_not_every_failure_counts() -> None:
    targets = made(3, Picking.ROUND_ROBIN, ejection=Ejection(failures=2, pause=STEADY))
    connect(targets, "a", "b", "c")
    sick = targets.all[0]
    fail(targets, sick, 9, 0.0, RpcError(Code.NOT_FOUND))
    fail(targets, sick, 9, 0.0, ValueError())
    fail(targets, sick, 1, 0.0)
    fail(targets, sick, 1, 0.0, RpcError(Code.NOT_FOUND))
    fail(targets, sick, 1, 0.0)
    assert sick.ejections == 0


def test_ejection_stops_at_its_share() -> None:
    targets = made(3, Picking.ROUND_ROBIN, ejection=Ejection(failures=1, pause=STEADY))
    connect(targets, "a", "b", "c")
    for target in targets.all:
        fail(targets, target, 5, 0.0)
    assert [target.ejections for target in targets.all] == [1, 0, 0]
    # And when nothing else is left, an ejected one is used.
    targets.lost(targets.all[1], None, 0.0)
    targets.lost(targets.all[2], None, 0.0)
    assert picked(targets, 1) == "a"
    alone = made(1, Picking.PICK_FIRST, ejection=Ejection(failures=1))
    connect(alone, "a")
    fail(alone, alone.all[0], 5, 0.0)
    assert picked(alone, 1) == "a"


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="at least one server"):
        Targets([])
    with pytest.raises(ValueError, match="failures=-1"):
        Ejection(failures=-1)
    with pytest.raises(ValueError, match="most_share=2"):
        Ejection(most_share=2)
    with pytest.raises(ValueError, match="random"):
        Targets(["a"], "random")  # type: ignore[arg-type]


class Servers(RuleBasedStateMachine):
    """Servers that come, go, fail and recover, with calls on all of them, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.targets: Targets[str] = made(4, Picking.ROUND_ROBIN, ejection=Ejection(failures=2, pause=STEADY))
        self.running: list[Target[str]] = []

    @rule(picking=st.sampled_from(Picking))
    def pick_otherwise(self, picking: Picking) -> None:
        self.targets.picking = picking

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def connect_wanted(self) -> None:
        for target in self.targets.wanted(self.now):
            assert target.state in (State.IDLE, State.BACKOFF)
            self.targets.connecting(target)

    @rule(index=st.integers(0, 3), well=st.booleans())
    def connecting_ends(self, index: int, well: bool) -> None:
        target = self.targets.all[index]
        if target.state is State.CONNECTING:
            if well:
                self.targets.connected(target, f"client {target.address}")
            else:
                self.targets.lost(target, OSError(), self.now)

    @rule(index=st.integers(0, 3))
    def lose(self, index: int) -> None:
        if self.targets.all[index].state is State.READY:
            self.targets.lost(self.targets.all[index], OSError(), self.now)

    @rule(index=st.integers(0, 3), serving=st.booleans())
    def health(self, index: int, serving: bool) -> None:
        self.targets.all[index].serving = serving

    @rule()
    def call(self) -> None:
        target = self.targets.pick(self.now)
        able = [t for t in self.targets.all if t.state is State.READY and t.serving]
        assert (target is None) == (not able)
        if target is not None:
            assert target.client == f"client {target.address}"
            assert target.usable(self.now) or not any(t.usable(self.now) for t in able)
            if self.targets.picking is Picking.LEAST_LOADED:
                usable = [t for t in able if t.usable(self.now)] or able
                assert target.in_flight == min(t.in_flight for t in usable)
            self.targets.begin(target)
            self.running.append(target)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), error=st.sampled_from([None, HUNG, RpcError(Code.NOT_FOUND), ValueError()]))
    def call_ends(self, data: st.DataObject, error: Exception | None) -> None:
        index = data.draw(st.integers(0, len(self.running) - 1))
        self.targets.end(self.running.pop(index), error, self.now)

    @invariant()
    def in_flight_is_counted(self) -> None:
        running = Counter(self.running)
        for target in self.targets.all:
            assert target.in_flight == running[target]

    @invariant()
    def not_too_many_are_ejected(self) -> None:
        assert sum(t.ejected_until > self.now for t in self.targets.all) <= 2

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """A server without a connection is wanted, under way, or has a time; PICK_FIRST needs but one."""
        if any(t.usable(self.now) or t.state is State.CONNECTING for t in self.targets.all):
            return
        idle = [t for t in self.targets.all if t.state in (State.IDLE, State.BACKOFF)]
        assert not idle or self.targets.wanted(self.now) or self.targets.next_change(self.now) < math.inf


TestServers = Servers.TestCase
