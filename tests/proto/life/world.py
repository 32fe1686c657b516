"""Both ends of one stream and all that may happen to them, one small step at a time."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from aiordma.proto.codes import Code
from aiordma.proto.handshake import Timeouts
from tests.proto.life.machine import TRANSITIONS, Input, Limits, Receiving, Transport

from .end import End
from .wire import Link, Tcp, Write

if TYPE_CHECKING:
    from collections.abc import Callable

    from .wire import Cdc

#: Between two transports, ends rely on what TCP brings: with it goes what one end says of rings that the
#: other has left, or has not come to yet.
BETWEEN = {Transport.DRAINING, Transport.EXCHANGING, Transport.NEGOTIATING, Transport.RETURNING}
#: Rows of the table that were seen, in this process.
SEEN: set[tuple[Transport, Input, Transport]] = set()


class World:
    """:param ring_bytes: of each ring.

    :param capacity: bytes that TCP holds each way.
    :param mirror: WRITEs are read from a copy of the peer's ring, and not carried out while they are posted.
    :param shows_end: the devices show how a process has left its link.
    :param stubborn: the end whose user does not read while it waits to send.
    """

    def __init__(
        self,
        *,
        ring_bytes: int = 64,
        capacity: int = 300,
        mirror: bool = False,
        shows_end: bool = False,
        stubborn: int | None = None,
    ) -> None:
        self.now = 0.0
        self.limits = Limits(10.0, 300.0, Timeouts(negotiate=6.0, link=5.0))
        self.ring_bytes, self.mirror, self.shows_end = ring_bytes, mirror, shows_end
        self.links: dict[int, Link] = {}
        self.tcp = Tcp(capacity)
        self.suspected: list[Link] = []
        self.nonce = 0
        #: What may cost bytes: then nothing is expected but an end.
        self.excused = False
        #: An end whose peer has left by TCP may hear no more of it, and waits for the end of the link.
        self.lost_tcp = False
        self._channels = 0
        self.links[0] = Link()
        self.ends: list[End] = []
        self.ends += [End(self, who, stubborn=stubborn == who) for who in (0, 1)]

    def channel(self) -> int:
        """A number for a new pair of rings, on the newest link, or on another if that has failed."""
        self._channels += 1
        newest = self.links[max(self.links)]
        self.links[self._channels] = Link() if any(newest.failed) else newest
        return self._channels

    def note(self, end: End, before: Transport, name: str) -> None:
        """An input has been processed."""
        after = end.life.transport
        if before is not after:
            what = Input(name)
            SEEN.add((before, what, after))
            assert after in TRANSITIONS.get((before, what), ()), f"{before} -- {what} -> {after}"

    def check_freed(self) -> None:
        """No ring is freed into which a WRITE may land."""
        for end in self.ends:
            for ring in end.rings.values():
                if ring.gone and not ring.link.failed[end.who] and not end.todo:
                    late = [
                        item
                        for item in ring.link.under_way[end.who]
                        if isinstance(item, Write) and item.channel == ring.channel
                    ]
                    assert not late, "a ring was freed while a WRITE may land"

    # ---- small steps

    def lands(self, link: Link, who: int) -> bool:
        if not link.under_way[who]:
            return False
        item = link.lands(who)
        if item is not None:
            self._arrive(link, who, item)
        return True

    def _arrive(self, link: Link, who: int, item: Write | Cdc) -> None:
        end = self.ends[who]
        number = end.channels.get(item.channel)
        if number is None:
            return
        ring = end.rings[number]
        if isinstance(item, Write):
            assert not ring.gone, "a WRITE landed in a ring that was freed"
            assert item.position == len(ring.memory)
            ring.memory += item.data
        else:
            link.arrived[who].append(item)

    def finds_out(self, link: Link, who: int) -> bool:
        """An end notices that the other's queue pair is gone: by what it has posted, or a probe."""
        if link.failed[who] or not (link.failed[1 - who] or self.ends[1 - who].dead):
            return False
        if self.ends[who].dead:
            return False
        link.under_way[1 - who].clear()
        self.ends[who].lose_link(link)
        return True

    def steps(self) -> list[Callable[[], bool]]:
        """Everything that may happen next without a fault and without the users."""
        found: list[Callable[[], bool]] = [
            partial(self.lands, link, who) for link in dict.fromkeys(self.links.values()) for who in (0, 1)
        ]
        for end in self.ends:
            if not end.dead:
                found += [end.poll, end.flush, end.input_on_tcp, end.work, end.send]
        return found

    def turns(self, count: int, random: Random) -> None:
        """So many of these steps, at random. The users read."""
        reads = [partial(end.receive, 20) for end in self.ends]
        for _ in range(count):
            steps = self.steps() + reads
            random.shuffle(steps)
            if not any(step() for step in steps):
                return

    def leave_rdma(self) -> None:
        """Both ends go on on TCP."""
        for who in (0, 1):
            self.attach(who)
        self.ends[0].do("leave", Code.SWITCHED, "asked for", self.now)
        self.settle()

    def attach(self, who: int) -> None:
        """The negotiation of the first rings hands the TCP connection over."""
        end = self.ends[who]
        if not end.attached and not end.dead:
            end.attached = True
            end.do("tcp_attached", self.now)

    def end_user(self, who: int, how: str) -> None:
        """The user closes or aborts, unless it waits to send."""
        end = self.ends[who]
        if end.dead or end.closed or (how == "close" and end.wants):
            return
        if how == "abort":
            self.excused = True
            self.lost_tcp |= self.between
        end.close(how)

    # ---- faults

    @property
    def between(self) -> bool:
        """Whether an end is between two transports."""
        return any(end.life.transport in BETWEEN for end in self.ends)

    def break_link(self, who: int) -> None:
        """The newest link fails at one end."""
        if not self.ends[who].dead:
            self.ends[who].lose_link(self.links[max(self.links)])

    def break_tcp(self) -> None:
        self.excused = self.lost_tcp = True
        for who in (0, 1):
            self.tcp.break_for(who)

    def die(self, who: int) -> None:
        """A process ends: the kernel closes its TCP connection, and its device is gone."""
        self.excused = True
        end = self.ends[who]
        if not end.dead:
            end.dead = True
            self.tcp.close(who)
            for link in self.links.values():
                link.failed[who] = True

    def stall(self, *, host_answers: bool) -> None:
        """An end does not run for a while."""
        self.excused = True
        self.lost_tcp |= self.between
        self.time_passes(host_answers=host_answers)

    def time_passes(self, *, host_answers: bool) -> bool:
        """To the next deadline; whether there is one."""
        times = [end.life.deadline() for end in self.ends if not end.dead]
        known = [time for time in times if time is not None]
        if not known:
            return False
        self.now = max(self.now, min(known))
        for end in self.ends:
            deadline = None if end.dead else end.life.deadline()
            if deadline is not None and deadline <= self.now:
                end.do("on_timer", self.now, host_answers=host_answers)
        return True

    # ---- the end

    def settle(self, users: Callable[[], bool] = lambda: False) -> None:
        """Until nothing happens any more, without time."""
        for _ in range(20_000):
            moved = [step() for step in self.steps()]
            if not (users() or any(moved)):
                for link in dict.fromkeys(self.links.values()):
                    moved += [self.finds_out(link, who) for who in (0, 1)]
                if not any(moved):
                    return
        raise AssertionError("it goes on for ever")

    def users_go_on(self) -> bool:
        """Each user sends the rest and its end, reads to the end, and closes."""
        moved = False
        for end in self.ends:
            if end.dead or end.closed:
                continue
            moved |= end.receive(50)
            if not end.wants and not end.finished_sending:
                end.finished_sending = moved = True
                end.do("send_eof")
            lost = end.life.receiving is Receiving.RESET
            if end.finished_sending and not end.wants and (end.at_eof or lost):
                moved = True
                end.close()
        return moved

    def finish(self) -> None:
        """Nothing fails any more: all bytes arrive, both lives end, and no timer is left."""
        for who in (0, 1):
            self.attach(who)
        self.settle(self.users_go_on)
        for _ in range(100):
            done = all(end.dead or end.finished for end in self.ends)
            if done:
                break
            if not self.excused:
                self.tell("they wait for each other")
            if not self.time_passes(host_answers=False):
                if not self.lost_tcp:
                    self.tell("nothing is awaited, and it is not over")
                self.lost_tcp = False
                for link in dict.fromkeys(self.links.values()):
                    for end in self.ends:
                        if not end.dead:
                            end.lose_link(link)
            self.settle(self.users_go_on)
        self.check_end()

    def check_end(self) -> None:
        """What must hold when all is over."""
        for end in self.ends:
            if not end.dead:
                if not end.finished:
                    self.tell("a life did not end")
                assert end.life.deadline() is None
                assert all(ring.gone for n, ring in end.rings.items() if n in end.life._rings)
        if not self.excused:
            for end, other in (self.ends, self.ends[::-1]):
                assert end.broken is None or other.closed, end.broken
                if end.at_eof:
                    assert end.received == other.sent
                else:
                    assert end.received <= other.sent

    def tell(self, what: str) -> None:
        """:raises AssertionError: with where both ends are."""
        texts = []
        for end in self.ends:
            life = end.life
            rings = [(n, r.stage.name, r.own, r.peer, r.freed, r.closed) for n, r in life._rings.items()]
            texts.append(
                f"{end.who}: {life.transport.name} {life.sending.name} {life.receiving.name} {life.tcp.name} "
                f"{life.legs} wants={end.wants} out={len(end.out)} ahead={len(end.ahead)} "
                f"held={len(self.tcp.held[end.who])} deadline={life.deadline()} rings={rings}"
            )
        raise AssertionError("\n".join([what, *texts]))
