"""The simulator once more, in plain Python: slow, short, and the same event by event.

Written against the description, with objects and lists where the engine has arrays. It offers the engine's
methods, so that one scenario can be built on both.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rocefabric._rate import ReactionPoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocefabric.dcqcn import Profile
    from rocefabric.options import Options

BULK, ROCE, CNP = range(3)
DATA, ACK, NAK, NOTE = range(4)
ARRIVE, DONE, PAUSE, ANSWER, WAKE, START, TIMEOUT, FAIL, REROUTE, DRAINED, LOOK, WATCH, RESTORE = range(13)
DRAIN_HIGH, DRAIN_LOW = 20_000_000, 10_000_000
FAR = 1 << 62


@dataclass
class Packet:
    flow: Flow
    kind: int
    seq: int
    wire: int
    cells: int
    group: int
    path: Sequence[int]
    born: int
    ready: int
    hop: int = 0
    ingress: Port | None = None
    marked: int = 0


@dataclass
class Port:
    number: int
    node: Node
    byte_ps: int
    delay_ps: int
    peer: Port = field(init=False)
    queues: tuple[deque[Packet], ...] = field(default_factory=lambda: (deque(), deque(), deque()))
    deficit: list[int] = field(default_factory=lambda: [0, 0])
    turn: int = 0
    sending: Packet | None = None
    busy: bool = False
    paused: bool = False
    paused_at: int = 0
    storming: bool = False
    down: bool = False
    wake_at: int = 0
    wanted: bool = False
    told: bool = False
    due: bool = False
    headroom: int = 0
    used: dict[str, int] = field(default_factory=lambda: {"guarantee": 0, "shared": 0, "headroom": 0})
    average: float = 0.0
    ticked: int = 0
    kmin: float = 1e18
    kmax: float = 1e18
    pmax: float = 0.0
    spared: int = -1
    lot: float = 0.0
    cap_ps: int = 0
    cap_ready: int = 0
    drain_ps: int = 0
    free_at: int = 0
    marks: int = 0
    pauses: int = 0

    def cells(self, group: int) -> int:
        return sum(packet.cells for packet in self.queues[group])


@dataclass
class Node:
    switch: bool = False
    shared: int = 0
    shared_used: int = 0
    guarantee: int = 0
    alpha: float = 0.0
    lossy_alpha: float = 0.0
    latency_ps: int = 0
    #: Flows in the order of service, beginning with the next one.
    flows: deque[Flow] = field(default_factory=deque)


@dataclass
class Flow:
    number: int
    node: Node
    forth: Sequence[int]
    back: Sequence[int]
    packets: int
    wire: int
    last_wire: int
    roce: bool
    start_ps: int
    window: float
    threshold: float
    rate: ReactionPoint
    followers: list[Flow] = field(default_factory=list)
    finished: bool = False
    next_seq: int = 0
    una: int = 0
    una_before: int = -1
    expected: int = 0
    naked: bool = False
    noted_at: int = -FAR
    noticed: bool = False
    done_at: int = -1
    resent: int = 0
    timeouts: int = 0


class Simulation:
    """The engine's interface, as far as the comparison uses it."""

    def __init__(self, profile: Profile, options: Options) -> None:
        self.profile, self.options = profile, options
        self.nodes: list[Node] = []
        self.ports: list[Port] = []
        self.flows: list[Flow] = []
        self.heap: list[tuple[int, int, int, Any, Any]] = []
        self.order = itertools.count()
        self.now = self.events = self.created = self.delivered = self.lost = self.pauses = self.live = 0
        self.lossless_drops = self.lossy_drops = 0
        self.expired = self.watchdogs = self.watchdog_drops = 0
        self.ways: list[tuple[Sequence[int], Sequence[int]]] = []
        self.random = options.seed * 0x9E3779B97F4A7C15 & (1 << 64) - 1 or 1
        self.trace: list[tuple[int, ...]] | None = None

    def at(self, when: int, what: int, a: Any, b: Any = 0) -> None:
        heapq.heappush(self.heap, (when, next(self.order), what, a, b))

    # ---- building

    def add_host(self) -> int:
        self.nodes.append(Node())
        return len(self.nodes) - 1

    def add_switch(
        self, shared: int, guarantee: int, alpha: float, lossy_alpha: float, latency_ps: int
    ) -> int:
        self.nodes.append(Node(True, shared, 0, guarantee, alpha, lossy_alpha, latency_ps))
        return len(self.nodes) - 1

    def add_cable(self, one: int, other: int, byte_ps: int, delay_ps: int) -> int:
        first = len(self.ports)
        for at, node in enumerate((one, other)):
            self.ports.append(Port(first + at, self.nodes[node], byte_ps, delay_ps))
        self.ports[first].peer, self.ports[first + 1].peer = self.ports[first + 1], self.ports[first]
        return first

    def set_port(
        self, at: int, headroom: int, kmin: float, kmax: float, pmax: float, cap_ps: int, drain_ps: int
    ) -> None:
        port = self.ports[at]
        port.headroom, port.kmin, port.kmax, port.pmax = headroom, kmin, kmax, pmax
        port.cap_ps, port.drain_ps = cap_ps, drain_ps

    def add_flow(
        self,
        forth: Sequence[int],
        back: Sequence[int],
        packets: int,
        wire: int,
        last_wire: int,
        roce: bool,
        start_ps: int,
        after: int,
    ) -> int:
        window, port = float(self.options.window), self.ports[forth[0]]
        own = dataclasses.replace(self.profile, line_bps=self.profile.line_bps or 8e12 / port.byte_ps)
        flow = Flow(
            len(self.flows), port.node, forth, back, packets, wire, last_wire, roce, start_ps,
            window if roce else 10.0, window, ReactionPoint(own),
        )  # fmt: skip
        self.flows.append(flow)
        if after < 0:
            self.at(start_ps, START, flow)
        else:
            self.flows[after].followers.insert(0, flow)
        return flow.number

    def fail(self, at_ps: int, port: int) -> None:
        self.at(at_ps, FAIL, self.ports[port])

    def reroute(self, at_ps: int, flow: int, forth: Sequence[int], back: Sequence[int]) -> None:
        self.ways.append((forth, back))
        self.at(at_ps, REROUTE, self.flows[flow], len(self.ways) - 1)

    # ---- a switch

    def make(self, flow: Flow, kind: int, seq: int, wire: int, group: int, path: Sequence[int]) -> Packet:
        self.created += 1
        self.live += 1
        cells = -(-(wire - 20) // self.options.cell_bytes)
        return Packet(flow, kind, seq, wire, cells, group, path, self.now, self.now)

    def admit(self, port: Port, cells: int) -> bool:
        node, used = port.node, port.used
        own = min(cells, node.guarantee - used["guarantee"])
        rest = cells - own
        free = node.shared - node.shared_used
        if rest == 0 or (used["shared"] + rest <= node.alpha * free and rest <= free):
            used["shared"] += rest
            node.shared_used += rest
        elif used["headroom"] + rest <= port.headroom:
            used["headroom"] += rest
            if not port.wanted:
                port.wanted = True
                self.at(self.now + self.options.answer_ps, ANSWER, port)
        else:
            return False
        used["guarantee"] += own
        return True

    def release(self, packet: Packet) -> None:
        port = packet.ingress
        assert port is not None
        node, rest = port.node, packet.cells
        if packet.group != ROCE:
            node.shared_used -= rest
            return
        for part in ("headroom", "shared", "guarantee"):
            taken = min(rest, port.used[part])
            port.used[part] -= taken
            rest -= taken
            if part == "shared":
                node.shared_used -= taken
        level = node.alpha * (node.shared - node.shared_used) - self.options.resume_cells
        if port.wanted and port.used["headroom"] == 0 and port.used["shared"] <= max(level, 0):
            port.wanted = False
            self.at(self.now + self.options.answer_ps, ANSWER, port)

    def look(self, port: Port) -> None:
        if self.options.poll_ps:
            looks = self.now // self.options.poll_ps - port.ticked
            if looks > 0:
                port.ticked += looks
                queue = port.cells(ROCE)
                port.average = queue + (port.average - queue) * (1 - self.options.weight) ** looks

    def draw(self) -> float:
        x, most = self.random, (1 << 64) - 1
        x ^= x >> 12
        x ^= x << 25 & most
        x ^= x >> 27
        self.random = x
        return ((x * 0x2545F4914F6CDD1D & most) >> 11) / (1 << 53)

    def mark(self, port: Port, packet: Packet) -> None:
        queue = port.average if self.options.poll_ps else port.cells(ROCE)
        if not port.kmin < queue <= port.kmax:
            port.spared = -1
        certain = queue > port.kmax
        share = port.pmax * (queue - port.kmin) / (port.kmax - port.kmin)
        if certain or (queue > port.kmin and self.drawn(port, share)):
            packet.marked = 1
            port.marks += 1

    def drawn(self, port: Port, share: float) -> bool:
        if not self.options.spaced_marks:
            return self.draw() < share
        port.spared += 1
        marked = port.spared > 0 and port.spared * share >= port.lot
        if marked or port.spared == 0:
            port.spared, port.lot = 0, self.draw()
        return marked

    def forward(self, packet: Packet, ingress: Port) -> None:
        self.live -= 1
        if packet.path[packet.hop] < 0:
            self.expired += 1
            return
        port, node = self.ports[packet.path[packet.hop]], ingress.node
        if port.down:
            self.lost += 1
            return
        if packet.group == ROCE:
            if port.storming:
                self.watchdog_drops += 1
                return
            if not self.admit(ingress, packet.cells):
                self.lossless_drops += 1
                return
            self.look(port)
            if packet.kind == DATA and not self.options.mark_departing:
                self.mark(port, packet)
        else:
            free = node.shared - node.shared_used
            limited = packet.group == BULK and port.cells(BULK) + packet.cells > node.lossy_alpha * free
            if packet.cells > free or limited:
                self.lossy_drops += 1
                return
            node.shared_used += packet.cells
        self.live += 1
        packet.ingress, packet.ready = ingress, self.now + node.latency_ps
        port.queues[packet.group].append(packet)
        self.start(port)

    # ---- sending

    def offer(self, port: Port, group: int) -> tuple[int, Flow | None, int]:
        """Bytes that could go now, the host's flow that they come from, and when there will be some."""
        if group == ROCE and port.paused:
            return 0, None, FAR
        if queue := port.queues[group]:
            return (queue[0].wire, None, FAR) if queue[0].ready <= self.now else (0, None, queue[0].ready)
        soonest = FAR
        for flow in port.node.flows:
            if flow.roce != (group == ROCE) or flow.next_seq >= flow.packets:
                continue
            if flow.next_seq - flow.una >= flow.window:
                continue
            when = flow.rate.when(self.now) if flow.roce else self.now
            if when <= self.now:
                return flow.wire, flow, soonest
            soonest = min(soonest, when)
        return 0, None, soonest

    def weigh(self, port: Port, sizes: list[int]) -> int:
        if not all(sizes):
            port.deficit = [0, 0]
            return ROCE if sizes[ROCE] else BULK
        while port.deficit[port.turn] < sizes[port.turn]:
            port.turn = 1 - port.turn
            quanta = (self.options.bulk_quantum, self.options.roce_quantum)
            port.deficit[port.turn] += quanta[port.turn]
        port.deficit[port.turn] -= sizes[port.turn]
        return port.turn

    def start(self, port: Port) -> None:
        if port.busy or port.down:
            return
        if port.due:
            port.due = False
            if port.wanted != port.told:
                self.send_pause(port)
                return
        soonest = FAR
        if notes := port.queues[CNP]:
            soonest = port.cap_ready if port.cap_ready > self.now else notes[0].ready
            if soonest <= self.now:
                port.cap_ready = self.now + port.cap_ps * notes[0].wire
                self.send(port, notes.popleft())
                return
        offers = [self.offer(port, group) for group in (BULK, ROCE)]
        if not (offers[0][0] or offers[1][0]):
            soonest = min(soonest, offers[0][2], offers[1][2])
            if soonest != FAR and (port.wake_at <= self.now or soonest < port.wake_at):
                port.wake_at = soonest
                self.at(soonest, WAKE, port)
            return
        group = self.weigh(port, [offers[BULK][0], offers[ROCE][0]])
        flow = offers[group][1]
        if flow is None:
            if group == ROCE:
                self.look(port)
                if self.options.mark_departing and port.queues[ROCE][0].kind == DATA:
                    self.mark(port, port.queues[ROCE][0])
            self.send(port, port.queues[group].popleft())
            return
        wire = flow.last_wire if flow.next_seq == flow.packets - 1 else flow.wire
        packet = self.make(flow, DATA, flow.next_seq, wire, group, flow.forth)
        flow.next_seq += 1
        flow.node.flows.rotate(-flow.node.flows.index(flow) - 1)
        if flow.roce:
            flow.rate.sent(self.now, wire)
        self.send(port, packet)

    def send(self, port: Port, packet: Packet) -> None:
        done = self.now + packet.wire * port.byte_ps
        port.busy, port.sending = True, packet
        self.at(done, DONE, port)
        self.at(done + port.delay_ps, ARRIVE, port, packet)

    def send_pause(self, port: Port) -> None:
        done = self.now + 84 * port.byte_ps
        port.told, port.busy = port.wanted, True
        port.pauses += port.told
        self.pauses += port.told
        self.at(done, DONE, port)
        self.at(done + port.delay_ps + self.options.obey_ps, PAUSE, port.peer, int(port.told))

    # ---- a host

    def answer(self, flow: Flow, kind: int, seq: int, port: Port) -> None:
        group = CNP if kind == NOTE else ROCE if flow.roce else BULK
        port.queues[group].append(self.make(flow, kind, seq, 98 if kind == NOTE else 86, group, flow.back))
        self.start(port)

    def deliver(self, packet: Packet, port: Port) -> None:
        flow = packet.flow
        self.delivered += 1
        self.live -= 1
        if packet.kind != DATA:
            self.told(packet, port)
            return
        if flow.roce and port.drain_ps:
            port.free_at = max(port.free_at, self.now) + packet.wire * port.drain_ps
            if port.free_at - self.now > DRAIN_HIGH and not port.wanted:
                port.wanted = True
                self.at(self.now + self.options.answer_ps, ANSWER, port)
                self.at(port.free_at - DRAIN_LOW, DRAINED, port)
        if flow.roce and self.options.cnp_at_interval:
            flow.noticed = flow.noticed or bool(packet.marked)
            if flow.noted_at < 0:
                self.look_for_marks(flow, port)
        elif packet.marked and self.now - flow.noted_at >= self.options.cnp_interval_ps:
            flow.noted_at = self.now
            self.answer(flow, NOTE, 0, port)
        if packet.seq < flow.expected:
            self.answer(flow, ACK, flow.expected, port)
        elif packet.seq > flow.expected:
            if not flow.naked:
                flow.naked = True
                self.answer(flow, NAK, flow.expected, port)
        else:
            self.next_one(flow, port)

    def next_one(self, flow: Flow, port: Port) -> None:
        flow.naked = False
        flow.expected += 1
        last = flow.expected == flow.packets
        if last:
            flow.done_at = self.now
            for follower in flow.followers:
                self.at(self.now + follower.start_ps, START, follower)
            flow.followers = []
        every = max(1, min(16, self.options.window // 4)) if flow.roce else 1
        if last or flow.expected % every == 0:
            self.answer(flow, ACK, flow.expected, port)

    def told(self, packet: Packet, port: Port) -> None:
        flow, seq, most = packet.flow, packet.seq, float(self.options.window)
        if packet.kind == NOTE:
            flow.rate.notified(self.now)
            return
        fresh = seq - flow.una
        if fresh > 0:
            flow.una, flow.next_seq = seq, max(flow.next_seq, seq)
            if not flow.roce:
                more = fresh if flow.window < flow.threshold else fresh / flow.window
                flow.window = min(flow.window + more, most)
        if packet.kind == NAK and flow.una <= seq < flow.next_seq:
            flow.resent += flow.next_seq - seq
            flow.next_seq = seq
            if not flow.roce:
                flow.window = flow.threshold = flow.window / 2 if flow.window > 4 else 2.0
        if flow.una >= flow.packets and not flow.finished:
            flow.finished = True
            flow.node.flows.remove(flow)
        self.start(port)

    # ---- events

    def handle(self, what: int, a: Any, b: Any) -> None:
        if what == ARRIVE:
            b.hop += 1
            if a.down:
                self.lost += 1
                self.live -= 1
            elif a.peer.node.switch:
                self.forward(b, a.peer)
            else:
                self.deliver(b, a.peer)
        elif what == DONE:
            packet, a.busy, a.sending = a.sending, False, None
            if packet is not None and a.node.switch:
                self.release(packet)
            self.start(a)
        elif what == WAKE:
            if a.wake_at == self.now:
                a.wake_at = 0
                self.start(a)
        elif what == ANSWER:
            a.due = True
            self.start(a)
        elif what == PAUSE:
            if b and not a.paused:
                a.paused_at = self.now
                if self.options.watchdog_ps and a.node.switch:
                    self.at(self.now + self.options.watchdog_ps, WATCH, a)
            a.paused = bool(b)
            if not a.paused:
                self.start(a)
        elif what == DRAINED:
            if a.free_at - self.now > DRAIN_LOW:
                self.at(a.free_at - DRAIN_LOW, DRAINED, a)
            else:
                a.wanted = False
                self.at(self.now + self.options.answer_ps, ANSWER, a)
        elif what == LOOK:
            self.look_for_marks(a, self.ports[b])
        elif what == WATCH:
            self.watch(a)
        elif what == RESTORE:
            if a.paused:
                self.at(self.now + self.options.restore_ps, RESTORE, a)
            else:
                a.storming = False
        elif what == FAIL:
            self.broken(a)
            self.broken(a.peer)
        else:
            self.of_flow(what, a, b)

    def watch(self, port: Port) -> None:
        wait = self.options.watchdog_ps
        if not port.paused or port.storming or self.now - port.paused_at < wait:
            return
        if not port.queues[ROCE]:
            self.at(self.now + wait, WATCH, port)
            return
        port.storming = True
        self.watchdogs += 1
        while port.queues[ROCE]:
            self.release(port.queues[ROCE].popleft())
            self.watchdog_drops += 1
            self.live -= 1
        self.at(self.now + self.options.restore_ps, RESTORE, port)

    def look_for_marks(self, flow: Flow, port: Port) -> None:
        flow.noted_at = self.now
        if flow.noticed:
            self.answer(flow, NOTE, 0, port)
        flow.noticed = False
        if flow.done_at < 0:
            self.at(self.now + self.options.cnp_interval_ps, LOOK, flow, port.number)

    def of_flow(self, what: int, flow: Flow, way: int) -> None:
        if what == START:
            flow.rate.begin(self.now)
            flow.node.flows.append(flow)
            self.at(self.now + self.options.timeout_ps, TIMEOUT, flow)
        elif what == TIMEOUT:
            if flow.finished:
                return
            if flow.una == flow.una_before and flow.next_seq > flow.una:
                flow.timeouts += 1
                flow.resent += flow.next_seq - flow.una
                flow.next_seq, flow.naked = flow.una, False
                if not flow.roce:
                    flow.threshold, flow.window = flow.window / 2 if flow.window > 4 else 2.0, 1.0
            flow.una_before = flow.una
            self.at(self.now + self.options.timeout_ps, TIMEOUT, flow)
        elif what == REROUTE:
            flow.forth, flow.back = self.ways[way]
        self.start(self.ports[flow.forth[0]])

    def broken(self, port: Port) -> None:
        port.down = True
        for queue in port.queues:
            while queue:
                packet = queue.popleft()
                if packet.ingress is not None and port.node.switch:
                    self.release(packet)
                self.lost += 1
                self.live -= 1

    def run(self, until_ps: int) -> int:
        began = self.events
        while self.heap and self.heap[0][0] <= until_ps:
            self.now, _, what, a, b = heapq.heappop(self.heap)
            self.events += 1
            if self.trace is not None:
                if what == ARRIVE:
                    self.trace.append((self.now, what, a.number, b.flow.number, b.seq, b.kind, b.marked))
                else:
                    self.trace.append((self.now, what, a.number, b))
            self.handle(what, a, b)
        self.now = until_ps
        return self.events - began
