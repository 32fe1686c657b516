"""One end in the model: the driver of a life, with rings, a TCP carrier and a user, all in memory."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from aiordma.proto.clc import Proposal
from aiordma.proto.codes import Code
from aiordma.proto.events import Accepted, Confirmed, Proposed
from aiordma.proto.frames import Assembler, data_header
from aiordma.proto.rejoin import Yielded
from tests.proto.life import machine as lives
from tests.proto.life.machine import Leg, RingStage, StreamLife, Tcp, Transport
from tests.proto.test_handshake import ACCEPT, CONFIRM

from .wire import Cdc, Link, Write

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.proto.life.machine import Output

    from .world import World

#: Bytes read ahead of the user.
AHEAD = 40


def pattern(start: int, count: int) -> bytes:
    """Bytes of a direction: no ring's length repeats."""
    return bytes((start + n) % 251 for n in range(count))


class Ring:
    """One end's half of a pair of rings. Positions count from the rings' beginning."""

    def __init__(self, channel: int, link: Link, size: int) -> None:
        self.channel, self.link, self.size = channel, link, size
        self.sent = self.freed = 0
        #: Positions and numbers of WRITEs that have not completed.
        self.open: deque[tuple[int, int]] = deque()
        #: What was sent and not announced as read.
        self.kept = bytearray()
        self.arrived = self.read = self.told = 0
        #: The peer's WRITEs, as far as they have landed.
        self.memory = bytearray()
        self.flags_heard = 0
        self.early: Cdc | None = None
        self.gone = False
        self.last_word = 0
        self.stopping = self.reported = False
        self.last: int | None = None

    def unread(self) -> int:
        return self.arrived - self.read


class End:
    """:param who: 0 or 1.

    :param stubborn: the user does not read while it waits to send.
    """

    def __init__(self, world: World, who: int, *, stubborn: bool) -> None:
        self.world, self.who, self.stubborn = world, who, stubborn
        self.life = StreamLife((who + 1, 2 - who), world.limits)
        self.rings: dict[int, Ring] = {}
        self.channels: dict[int, int] = {}  # of the world, to the numbers of the life
        self.todo: deque[Callable[[], list[Output]]] = deque()
        self.assembler = Assembler()
        self.ahead = bytearray()
        self.old_ahead: dict[int, bytearray] = {}
        self.most_ahead = AHEAD
        self.out = bytearray()
        self.attached = self.heard_eof = False
        self.job: lives.Negotiate | None = None
        self.job_channel: int | None = None
        #: What the user has sent and received, and wants to send.
        self.sent = self.received = self.wants = 0
        self.finished_sending = self.closed = self.aborted = self.at_eof = False
        self.broken: str | None = None
        self.dead = self.finished = False
        self.open_ring(0, 0)

    # ---- inputs and outputs

    def feed(self, outputs: list[Output], before: Transport, name: str) -> None:
        """Carry out what one input has led to."""
        self.world.note(self, before, name)
        for output in outputs:
            self.carry_out(output)

    def do(self, name: str, *arguments: object, **named: object) -> None:
        """One input, and all that the driver reports at once because of it."""
        self.todo.append(self.input(name, *arguments, **named))
        while self.todo:
            step = self.todo.popleft()
            step()
        self.look_at_legs()
        self.world.check_freed()

    def input(self, name: str, *arguments: object, **named: object) -> Callable[[], list[Output]]:
        def step() -> list[Output]:
            before = self.life.transport
            outputs: list[Output] = getattr(self.life, name)(*arguments, **named)
            self.feed(outputs, before, name)
            return outputs

        return step

    def carry_out(self, output: Output) -> None:  # one case for each output
        match output:
            case lives.StopSending(number):
                ring = self.rings[number]
                ring.stopping = True
                self.post_cdc(ring)
                self.settle(number)
            case lives.Resume(number):
                ring = self.rings[number]
                if ring.early is not None:
                    self.believe(ring, ring.early)
            case lives.Announce(number, _):
                self.post_cdc(self.rings[number])
            case lives.FreeRing(number):
                assert not self.rings[number].gone
                self.rings[number].gone = True
            case lives.PeerLostLink(number):
                self.lose_link(self.rings[number].link, at_once=True)
            case lives.SuspectLink(number):
                self.world.suspected.append(self.rings[number].link)
            case lives.Resend(start):
                ring = self.rings[self.life.ring.number]
                self.put_data(bytes(ring.kept[start - ring.freed :]))
            case lives.ReceiveFrom(leg, read_until):
                self.begin_leg(leg, read_until)
            case lives.Put(data):
                self.out += data
            case lives.ReadAhead(on):
                self.most_ahead = 1 << 20 if on else AHEAD
            case lives.ReleaseTcp():
                assert not self.out
                rest, self.assembler = self.assembler.rest, Assembler()
                self.todo.append(self.input("tcp_attached", self.world.now, rest))
            case lives.CloseTcp():
                self.close_tcp(reset=False)
            case lives.ResetTcp():
                self.close_tcp(reset=True)
            case lives.Negotiate(event):
                self.job = None if event is not None and type(event).__name__ == "Unanswered" else output
                if isinstance(event, Yielded):
                    self.job = None
            case lives.Abandon():
                self.job, self.job_channel = None, None
            case lives.Broken(reason, fault):
                # An end that has taken back its word says it on the link, behind what TCP still brings.
                assert not fault or self.world.lost_tcp, reason
                self.broken = reason
            case lives.Finished():
                assert not self.finished
                self.finished = True
            case lives.SendBy() | lives.LeftRdma() | lives.Rejoined():
                pass

    # ---- rings

    def open_ring(self, number: int, channel: int) -> None:
        self.rings[number] = Ring(channel, self.world.links[channel], self.world.ring_bytes)
        self.channels[channel] = number

    def post(self, ring: Ring, item: Write | Cdc) -> int:
        return ring.link.post(self.who, item)

    def post_cdc(self, ring: Ring) -> None:
        number = self.channels[ring.channel]
        if not ring.link.failed[self.who] and number in self.life._rings:
            ring.told = max(ring.told, ring.read)
            ring.last = self.post(ring, Cdc(ring.channel, ring.sent, ring.read, self.life.flags(number)))
            ring.reported = False

    def stage(self, ring: Ring) -> RingStage:
        number = self.channels[ring.channel]
        known = self.life._rings.get(number)
        return RingStage.LEFT if known is None else known.stage

    def settle(self, number: int) -> None:
        """Report what has completed."""
        ring = self.rings[number]
        acked, failed = ring.link.acked[self.who], ring.link.failed[self.who]
        while ring.open and ring.open[0][1] <= acked:
            ring.open.popleft()
        if ring.last is not None and ring.last <= acked and not ring.reported:
            ring.reported = True
            self.todo.append(self.input("delivered", number))
        if ring.stopping and (failed or (ring.last is not None and ring.last <= acked)):
            ring.stopping = False
            placed = ring.sent
            if failed:
                placed = ring.freed if self.world.mirror or not ring.open else ring.open[0][0]
            cursors = lives.Cursors(ring.sent, placed, ring.freed, ring.arrived, ring.told, ring.size)
            self.todo.append(self.input("quiesced", number, cursors, self.world.now))

    def poll(self) -> bool:
        """Take what has arrived by links; whether something was new."""
        moved = False
        for link in set(self.world.links.values()):
            while link.arrived[self.who]:
                moved = True
                self.hear(link.arrived[self.who].popleft())
        for number in list(self.rings):
            before = len(self.todo)
            self.settle(number)
            moved = moved or len(self.todo) > before
            while self.todo:
                self.todo.popleft()()
        self.look_at_legs()
        return moved

    def hear(self, message: Cdc) -> None:
        number = self.channels.get(message.channel)
        if number is None:
            return
        ring = self.rings[number]
        if self.stage(ring) < RingStage.QUIESCED or number not in self.life._rings:
            self.believe(ring, message)
        else:
            ring.early = message
        ring.flags_heard |= message.flags
        self.do("peer_flags", number, message.flags)

    def believe(self, ring: Ring, message: Cdc) -> None:
        """Take the cursors of a message."""
        assert ring.freed <= message.read <= ring.sent
        assert ring.arrived <= message.sent <= ring.told + ring.size
        del ring.kept[: message.read - ring.freed]
        ring.freed, ring.arrived = message.read, message.sent
        assert len(ring.memory) >= ring.arrived, "a cursor came before its bytes"

    def lose_link(self, link: Link, *, at_once: bool = False) -> None:
        """This end's queue pair fails; what arrived before is dispatched."""
        if link.failed[self.who]:
            return
        if not at_once:
            self.poll()
        link.failed[self.who] = True
        for number, ring in self.rings.items():
            if ring.link is link and not ring.gone:
                step = self.input("link_failed", number, "lost", self.world.now, may_leave=True)
                self.todo.append(step)
                if ring.stopping:
                    self.settle(number)
        if not at_once:
            while self.todo:
                self.todo.popleft()()
            self.look_at_legs()

    # ---- legs

    def begin_leg(self, leg: Leg, read_until: int | None) -> None:
        if read_until is not None:
            ring = self.rings[leg.number]
            assert ring.arrived <= read_until <= len(ring.memory), "bytes that are not in the ring"
            ring.arrived = read_until
            self.ahead = self.old_ahead[leg.number] = bytearray()
            self.assembler = Assembler()

    def look_at_legs(self) -> None:
        """Go on to the leg that follows, when all of this one has been read."""
        while True:
            leg = self.life.legs[0]
            if leg.path == "ring":
                ring = self.rings[leg.number]
                if self.stage(ring) is not RingStage.LEFT or ring.unread() or ring.gone:
                    return
            elif self.old_ahead[leg.number] or len(self.life.legs) == 1:
                return
            self.input("drained", leg)()
            while self.todo:
                self.todo.popleft()()

    # ---- TCP

    def put_data(self, data: bytes) -> None:
        if data:
            self.out += data_header(len(data)) + data

    def close_tcp(self, *, reset: bool) -> None:
        self.out.clear()
        self.world.tcp.close(self.who, reset=reset)

    def flush(self) -> bool:
        """Give the kernel what it takes; whether anything has happened."""
        tcp, who = self.world.tcp, self.who
        if tcp.closed[who]:
            return False
        count = min(len(self.out), tcp.room(who))
        if count:
            tcp.take(who, bytes(self.out[:count]))
            del self.out[:count]
        if tcp.reset[who] and self.out:
            self.out.clear()
            self.do("tcp_failed", "reset", self.world.now, sending=True)
            return True
        if not self.out and self.life.awaits_flush and not self.told_flushed():
            self.do("tcp_flushed", self.world.now)
            return True
        return count > 0

    def told_flushed(self) -> bool:
        frames = self.life.frames
        return frames is not None and frames._flushed

    def input_on_tcp(self, most: int = 1 << 20) -> bool:
        """Read from TCP as the life allows it; whether anything has happened."""
        tcp, who = self.world.tcp, self.who
        life = self.life
        if tcp.closed[who]:
            return False
        if life.tcp is Tcp.FRAMES:
            frames = life.frames
            assert frames is not None
            if len(self.ahead) >= self.most_ahead or frames.failure or self.assembler.on_ring:
                return False
        else:
            most = min(most, life.missing)
            if not most:
                return False
        data = bytes(tcp.held[who][:most])
        del tcp.held[who][: len(data)]
        if not data:
            if tcp.reset[who] and not self.heard_eof:
                self.poll()
                self.heard_eof = True
                self.do("tcp_failed", "reset", self.world.now)
                return True
            if tcp.fin[1 - who]:
                self.poll()
                if self.heard_eof:
                    return False
                self.heard_eof = life.frames is not None
                self.do("tcp_eof", self.world.now, shows_end=self.world.shows_end)
                return True
            return False
        if life.tcp is Tcp.FRAMES:
            self.take_frames(data)
        else:
            self.poll()
            self.do("tcp_bytes", data, self.world.now)
        return True

    def take_frames(self, data: bytes) -> None:
        assembler, ahead = self.assembler, self.ahead
        flags = assembler.flags
        for part in assembler.feed(data):
            if not self.closed:
                ahead += part
        if assembler.flags != flags:
            self.do("tcp_end", assembler.flags, self.world.now)
        while assembler.messages:
            message = assembler.messages.pop(0)
            if self.life.frames is not None:
                self.do("tcp_message", message, self.world.now, pending=bool(self.out))
        if assembler.on_ring and self.life.frames is not None and not self.life.frames.on_ring:
            self.do("tcp_on_ring", self.world.now)

    # ---- the negotiation's work

    def work(self, *, fail: bool = False) -> bool:
        """Do the device work that the negotiation waits for."""
        job, self.job = self.job, None
        if job is None or self.life.frames is None or self.life.frames.attempt is None:
            return False
        number, now, world = self.life.frames.attempt.number, self.world.now, self.world
        if fail:
            self.do("refused", Code.NO_DEVICE, "none", now)
        elif job.event is None:
            world.nonce += 1
            nonce = bytes([world.nonce * 7 % 256]) + world.nonce.to_bytes(15)
            self.do("proposed", Proposal(engine_id=b"E" * 16, nonce=nonce, host_id=b"H" * 16), now)
        elif isinstance(job.event, Proposed):
            channel = world.channel()
            self.job_channel = channel
            self.open_ring(number, channel)
            self.do("prepared", ACCEPT.changed(token=channel + 1), now)
        elif isinstance(job.event, Accepted):
            channel = job.event.accept.token - 1
            self.open_ring(number, channel)
            self.do("prepared", CONFIRM.changed(token=channel + 1), now)
            self.establish(number)
        elif isinstance(job.event, Confirmed):
            self.establish(number)
        return True

    def establish(self, number: int) -> None:
        frames = self.life.frames
        if frames is None or frames.attempt is None or frames.attempt.number != number:
            return
        ring = self.rings[number]
        mine, theirs = 2 * ring.channel + self.who, 2 * ring.channel + 1 - self.who
        self.do("established", (mine + 1, theirs + 1), self.world.now)
        if ring.flags_heard:
            self.do("peer_flags", number, ring.flags_heard)
        if ring.link.failed[self.who]:
            self.do("link_failed", number, "lost", self.world.now, may_leave=True)

    # ---- the user

    def send_eof(self) -> None:
        if not (self.dead or self.closed or self.wants or self.finished_sending):
            self.finished_sending = True
            self.do("send_eof")

    def close(self, how: str = "close") -> None:
        self.closed = self.finished_sending = True
        self.wants = 0
        for ahead in self.old_ahead.values():
            ahead.clear()
        self.do(how, self.world.now)

    def may_send(self) -> bool:
        return self.life.sending is lives.Sending.SEND and not self.dead

    def send(self) -> bool:
        """Send what the user waits with, as far as it goes."""
        if not self.wants:
            return False
        if self.life.sending in (lives.Sending.RESET, lives.Sending.STOPPED, lives.Sending.DATA_SENT):
            self.wants = 0  # the user gets an error
            return True
        if not self.may_send():
            return False
        leg = self.life.sends_by
        if leg.path == "tcp":
            if self.out:
                return False
            count = min(self.wants, 60)
            self.put_data(pattern(self.sent, count))
        else:
            ring = self.rings[leg.number]
            count = min(self.wants, ring.size - (ring.sent - ring.freed))
            if count <= 0:
                return False
            data = pattern(self.sent, count)
            ring.kept += data
            if not ring.link.failed[self.who]:
                posted = self.post(ring, Write(ring.channel, ring.sent, data))
                ring.open.append((ring.sent, posted))
            ring.sent += count
            self.post_cdc(ring)
        self.sent += count
        self.wants -= count
        self.flush()
        return True

    def receive(self, most: int) -> bool:
        """The user reads, unless it is closed, or waits to send and is stubborn; whether something came."""
        if self.closed or self.dead or (self.stubborn and self.wants):
            return False
        leg = self.life.legs[0]
        if leg.path == "ring":
            ring = self.rings[leg.number]
            count = min(most, ring.unread())
            data = bytes(ring.memory[ring.read : ring.read + count])
            ring.read += count
            if count and self.stage(ring) is RingStage.ON_RDMA:
                self.post_cdc(ring)
        else:
            buffer = self.old_ahead[leg.number]
            data = bytes(buffer[:most])
            del buffer[:most]
        assert data == pattern(self.received, len(data)), "other bytes than were sent"
        self.received += len(data)
        assert not (data and self.at_eof), "bytes behind the end"
        self.look_at_legs()
        if not data and self.life.receiving is lives.Receiving.SIZE_KNOWN and not self.at_eof:
            if self.life.legs[0] == leg:
                self.at_eof = True
                return True
        return bool(data)
