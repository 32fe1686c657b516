"""The rules of ``datapath/_late.pyx`` as a model: every order of the loop's steps and of the helping thread.

The loop's thread gives Python's lock up between two steps, and nowhere else; there the other thread does
what it does in one piece. Each rule can be taken away, and then some order shows why it is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

#: What the loop's thread does, step by step; the thread may help between any two of them.
PROGRAMS = {
    "writes, and is blocked": ("append", "tell", "blocked", "flush"),
    "is blocked twice": ("append", "tell", "blocked", "append", "tell again", "blocked", "flush"),
    "posts without the lock": ("append", "tell", "post begins", "post counted", "blocked", "flush"),
    "calls amid a queue": ("append", "tell", "flush begins", "called", "flush ends"),
    "leaves RDMA": ("append", "tell", "stop", "blocked", "flush"),
    "has a filter": ("append", "tell", "filter", "blocked", "flush"),
    "fails": ("append", "tell", "refuse", "blocked", "flush"),
    "destroys its queue pair": ("append", "tell", "detach", "destroy", "blocked"),
    "ends": ("append", "tell", "close", "destroy", "blocked"),
}
RULES = (
    "filled before told",
    "told again",
    "outside",
    "flushing",
    "is_quiet",
    "hook",
    "fail_owner",
    "detach",
    "closed",
    "look again",
)


@dataclass(frozen=True, slots=True)
class State:
    dirty: int = 0  # pieces of work that are to be posted
    posted: int = 0
    number: int = 0  # what the loop tells; 0: nothing
    told: int = 0
    seen: int = 0  # by the thread, without the lock
    helped: int = 0  # the number that is done
    again: bool = False  # it was helped since
    outside: bool = False
    flushing: bool = False
    leaves: bool = False
    hooked: bool = False
    refuses: bool = False
    closed: bool = False
    destroyed: bool = False
    attached: bool = False
    fault: str = ""


class Model:
    """:param without: the rule that is not kept; empty: all are."""

    def __init__(self, without: str = "") -> None:
        self.without = without

    def keeps(self, rule: str) -> bool:
        return rule != self.without

    def _tell(self, s: State) -> State:
        return replace(s, told=s.told + 1, number=s.told + 1, again=False)

    def _append(self, s: State) -> State:
        return replace(s, dirty=s.dirty + 1, attached=True)

    def step(self, s: State, name: str) -> State:
        """What the loop's thread does."""
        if not self.keeps("filled before told") and (name == "tell" or (name == "append" and not s.told)):
            name = {"append": "tell", "tell": "append"}[name]
        if name == "append":
            return self._append(s)
        if name == "tell":
            return self._tell(s)
        if name == "tell again":
            return self._tell(s) if s.again and self.keeps("told again") else s
        if name in ("flush", "flush ends"):
            return replace(s, number=0, posted=s.posted + s.dirty, dirty=0, flushing=False, again=False)
        if name == "close" and not self.keeps("closed"):
            return s
        if name == "detach" and not self.keeps("detach"):
            return s
        if name in ("close", "detach"):
            return replace(s, closed=name == "close", attached=False, dirty=0, number=0)
        changes = {
            "post begins": {"outside": True},
            "post counted": {"outside": False},
            "flush begins": {"flushing": True},
            "stop": {"leaves": True},
            "filter": {"hooked": True},
            "refuse": {"refuses": True},
            "destroy": {"destroyed": True},
        }
        return replace(s, **changes.get(name, {}))  # type: ignore[arg-type]

    def look(self, s: State) -> State:
        """The thread, without the lock."""
        return replace(s, seen=s.number)

    def help(self, s: State) -> State:
        """The thread, with the lock."""
        if not s.seen or s.seen == s.helped:
            return s
        if s.seen != s.number:
            return s if self.keeps("look again") else replace(s, fault="acts on what is over")
        for barred, rule, fault in (
            (s.outside, "outside", "posts between a post and its count"),
            (s.flushing, "flushing", "enters a queue that is being served"),
        ):
            if barred:
                return s if self.keeps(rule) else replace(s, fault=fault)
        return self._post(s, replace(s, helped=s.seen, again=True))

    def _post(self, s: State, done: State) -> State:
        for barred, rule, fault in (
            (s.leaves, "is_quiet", "calls Python for a stream that leaves"),
            (s.hooked, "hook", "calls the filter"),
            (s.refuses and s.dirty, "fail_owner", "fails a link, and calls"),
        ):
            if barred:
                return done if self.keeps(rule) else replace(s, fault=fault)
        if s.destroyed and s.dirty:
            return replace(s, fault="posts on a queue pair that is gone")
        return replace(done, posted=s.posted + s.dirty, dirty=0)


def explore(model: Model, program: tuple[str, ...]) -> set[str]:
    """The faults of all orders."""
    faults: set[str] = set()
    waiting, known = [(State(), 0)], {(State(), 0)}
    while waiting:
        state, at = waiting.pop()
        nexts = []
        if at < len(program):
            nexts.append((model.step(state, program[at]), at + 1))
        nexts += [(model.look(state), at), (model.help(state), at)]
        if at < len(program) and program[at - 1 : at] == ("blocked",):
            # A loop that is blocked stays so until the thread has had its time.
            settled = model.help(model.look(state))
            barred = state.leaves or state.hooked or state.refuses
            if settled.dirty and not barred and not settled.fault:
                faults.add("waits for a loop that is blocked")
        for found in nexts:
            if found[0].fault:
                faults.add(found[0].fault)
            elif found not in known:
                known.add(found)
                waiting.append(found)
    return faults


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_order_breaks_the_rules(program: str) -> None:
    assert explore(Model(), PROGRAMS[program]) == set()


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    assert set().union(*(explore(Model(rule), program) for program in PROGRAMS.values()))
