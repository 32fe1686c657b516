"""Two lives, whatever happens between them: each byte once, in order, none behind the end; both lives end;
no ring is freed while a WRITE may land in it; and every timer ends.

A program of what the users do and what fails runs first, with turns in between in which everything else
happens in a random order. Then nothing fails any more, and the users go on to the end.
"""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from aiordma.proto.codes import Code

from .world import World

WHO = st.integers(0, 1)


class Streams(RuleBasedStateMachine):
    """Everything."""

    @initialize(
        ring=st.sampled_from([8, 64]),
        capacity=st.sampled_from([60, 300]),
        mirror=st.booleans(),
        shows_end=st.booleans(),
        stubborn=st.sampled_from([None, 0, 1]),
        attached=st.sampled_from([(0, 1), (0, 1), (0,), ()]),
        left=st.booleans(),
        asks=st.sampled_from([None, 0, 1]),
    )
    def begin(
        self,
        ring: int,
        capacity: int,
        mirror: bool,
        shows_end: bool,
        stubborn: int | None,
        attached: tuple[int, ...],
        left: bool,
        asks: int | None,
    ) -> None:
        self.world = World(
            ring_bytes=ring,
            capacity=capacity,
            mirror=mirror,
            shows_end=shows_end,
            stubborn=stubborn,
        )
        if left:
            self.world.leave_rdma()
            if asks is not None:
                self.rejoin(asks)
        for who in attached:
            self.world.attach(who)

    # -- the users

    @rule(who=WHO, count=st.sampled_from([1, 10, 100, 700]))
    def write(self, who: int, count: int) -> None:
        end = self.world.ends[who]
        if not end.finished_sending and not end.closed and not end.dead:
            end.wants += count
            end.send()

    @rule(who=WHO, count=st.sampled_from([1, 20, 200]))
    def read(self, who: int, count: int) -> None:
        self.world.ends[who].receive(count)

    @rule(who=WHO)
    def send_eof(self, who: int) -> None:
        self.world.ends[who].send_eof()

    @rule(who=WHO, how=st.sampled_from(["close", "close", "abort"]))
    def close(self, who: int, how: str) -> None:
        self.world.end_user(who, how)

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        if not self.world.ends[who].dead:
            self.world.ends[who].do("leave", Code.SWITCHED, "asked for", self.world.now)

    @rule(who=WHO)
    def rejoin(self, who: int) -> None:
        if not self.world.ends[who].dead:
            self.world.ends[who].do("rejoin", self.world.now)

    # -- what happens by itself

    @rule(count=st.sampled_from([1, 3, 10, 30, 100]), seed=st.integers(0, 1000))
    def turns(self, count: int, seed: int) -> None:
        self.world.turns(count, Random(seed))

    @rule(who=WHO)
    def attach(self, who: int) -> None:
        self.world.attach(who)

    # -- faults

    @rule(who=WHO)
    def break_link(self, who: int) -> None:
        self.world.break_link(who)

    @rule()
    def break_tcp(self) -> None:
        self.world.break_tcp()

    @rule(who=WHO)
    def device_refuses(self, who: int) -> None:
        if not self.world.ends[who].dead:
            self.world.ends[who].work(fail=True)

    @rule(who=WHO)
    def die(self, who: int) -> None:
        self.world.die(who)

    @rule(answers=st.booleans())
    def time_passes(self, answers: bool) -> None:
        self.world.stall(host_answers=answers)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


Streams.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestStreams = Streams.TestCase


class Part(RuleBasedStateMachine):
    """The same, of one stretch of a life: fewer rules meet in more orders."""

    world: World

    @rule(who=WHO, count=st.sampled_from([10, 300]))
    def write(self, who: int, count: int) -> None:
        end = self.world.ends[who]
        if not end.finished_sending and not end.closed:
            end.wants += count

    @rule(count=st.sampled_from([1, 3, 10, 30]), seed=st.integers(0, 1000))
    def turns(self, count: int, seed: int) -> None:
        self.world.turns(count, Random(seed))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


class Returning(Part):
    """On the way back to RDMA, and the link fails again."""

    @initialize(asks=WHO, stubborn=st.sampled_from([None, 0, 1]), waiting=st.sampled_from([0, 300]))
    def begin(self, asks: int, stubborn: int | None, waiting: int) -> None:
        self.world = World(capacity=60, stubborn=stubborn)
        self.world.leave_rdma()
        self.world.ends[asks].wants = waiting
        self.world.ends[asks].do("rejoin", 0.0)

    @rule(who=WHO)
    def break_link(self, who: int) -> None:
        self.world.break_link(who)


class Leaving(Part):
    """Leaving RDMA, and what is needed for that breaks, or an end is over."""

    @initialize(mirror=st.booleans(), asks=WHO)
    def begin(self, mirror: bool, asks: int) -> None:
        self.world = World(mirror=mirror)
        self.asks = asks
        for who in (0, 1):
            self.world.attach(who)

    @rule()
    def leave(self) -> None:
        self.world.ends[self.asks].do("leave", Code.SWITCHED, "asked for", 0.0)

    @rule(who=WHO)
    def send_eof(self, who: int) -> None:
        self.world.ends[who].send_eof()

    @rule(who=WHO, how=st.sampled_from(["close", "abort"]))
    def close(self, who: int, how: str) -> None:
        self.world.end_user(who, how)

    @rule(who=WHO)
    def break_link(self, who: int) -> None:
        self.world.break_link(who)

    @rule()
    def break_tcp(self) -> None:
        self.world.break_tcp()


class Ending(Part):
    """On TCP, both ends end."""

    @initialize()
    def begin(self) -> None:
        self.world = World(capacity=60)
        self.world.leave_rdma()

    @rule(who=WHO)
    def send_eof(self, who: int) -> None:
        self.world.ends[who].send_eof()

    @rule(who=WHO)
    def close(self, who: int) -> None:
        self.world.end_user(who, "close")


_PARTS = settings(Streams.TestCase.settings, max_examples=80, stateful_step_count=12)
Returning.TestCase.settings = Leaving.TestCase.settings = Ending.TestCase.settings = _PARTS
TestReturning, TestLeaving, TestEnding = Returning.TestCase, Leaving.TestCase, Ending.TestCase
