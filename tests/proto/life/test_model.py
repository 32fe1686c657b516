"""Two lives, whatever happens between them: each byte once, in order, none behind the end; both lives end;
no ring is freed while a WRITE may land in it; and every timer ends.

A program of what the users do and what fails runs first, with turns in between in which everything else
happens in a random order. Then nothing fails any more, and the users go on to the end.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from aiordma.proto.codes import Code
from aiordma.proto.life import StreamLife, Transport

from .world import World

#: Between two transports.
BETWEEN = {Transport.DRAINING, Transport.EXCHANGING, Transport.NEGOTIATING, Transport.RETURNING}
WHO = st.integers(0, 1)


class Streams(RuleBasedStateMachine):
    """The model. A subclass may have lives of another class."""

    kind: ClassVar[type[StreamLife]] = StreamLife

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
            self.kind,
            ring_bytes=ring,
            capacity=capacity,
            mirror=mirror,
            shows_end=shows_end,
            stubborn=stubborn,
        )
        if left:
            on_tcp(self.world)
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
        end = self.world.ends[who]
        if not (end.dead or end.closed or end.wants):
            end.finished_sending = True
            end.do("send_eof")

    @rule(who=WHO)
    def close(self, who: int) -> None:
        end = self.world.ends[who]
        if not (end.dead or end.closed or end.wants):
            end.close()

    @rule(who=WHO)
    def abort(self, who: int) -> None:
        end = self.world.ends[who]
        if not end.dead:
            self.world.excused = True
            # With TCP goes what one end says of rings that the other has left, or has not come to yet.
            self.world.lost_tcp |= any(each.life.transport in BETWEEN for each in self.world.ends)
            end.close("abort")

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
        self.world.excused = True
        self.world.lost_tcp |= any(end.life.transport in BETWEEN for end in self.world.ends)
        self.world.time_passes(host_answers=answers)

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


class Returning(RuleBasedStateMachine):
    """The same, of nothing but streams on their way back to RDMA whose link fails again."""

    kind: ClassVar[type[StreamLife]] = StreamLife

    @initialize(asks=WHO, stubborn=WHO, count=st.sampled_from([10, 15, 20, 30]), seed=st.integers(0, 1000))
    def begin(self, asks: int, stubborn: int, count: int, seed: int) -> None:
        """The users begin to send somewhere on the way back."""
        self.world = on_tcp(World(self.kind, capacity=60, stubborn=stubborn))
        self.world.ends[asks].do("rejoin", 0.0)
        self.world.turns(count, Random(seed))
        for end in self.world.ends:
            end.wants += 300

    @rule(who=WHO, count=st.sampled_from([10, 300]))
    def write(self, who: int, count: int) -> None:
        self.world.ends[who].wants += count

    @rule(count=st.sampled_from([3, 10, 30]), seed=st.integers(0, 1000))
    def turns(self, count: int, seed: int) -> None:
        self.world.turns(count, Random(seed))

    @rule(who=WHO)
    def break_link(self, who: int) -> None:
        self.world.break_link(who)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


class Leaving(RuleBasedStateMachine):
    """The same, of nothing but streams that are full of bytes while they close, or leave and
    lose their links."""

    kind: ClassVar[type[StreamLife]] = StreamLife

    @initialize(mirror=st.booleans(), ring=st.sampled_from([8, 64]))
    def begin(self, mirror: bool, ring: int) -> None:
        self.world = World(self.kind, ring_bytes=ring, mirror=mirror)
        for end in self.world.ends:
            self.world.attach(end.who)
            end.wants += 100

    @rule(count=st.sampled_from([1, 5, 20]), seed=st.integers(0, 1000), slow=st.sampled_from([None, 0, 1]))
    def turns(self, count: int, seed: int, slow: int | None) -> None:
        self.world.turns(count, Random(seed), slow)

    @rule(who=WHO)
    def close(self, who: int) -> None:
        if not self.world.ends[who].closed:
            self.world.ends[who].close()

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        self.world.ends[who].do("leave", Code.SWITCHED, "asked for", self.world.now)

    @rule(who=WHO)
    def break_link(self, who: int) -> None:
        self.world.break_link(who)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


def on_tcp(world: World) -> World:
    """A stream that has left RDMA."""
    for who in (0, 1):
        world.attach(who)
    world.ends[0].do("leave", Code.SWITCHED, "asked for", 0.0)
    world.turns(100, Random(0))
    return world


Returning.TestCase.settings = settings(Streams.TestCase.settings, max_examples=100, stateful_step_count=12)
TestReturning = Returning.TestCase

Leaving.TestCase.settings = settings(Streams.TestCase.settings, max_examples=200, stateful_step_count=8)
TestLeaving = Leaving.TestCase
