"""A network with traffic, run in the engine; what came out of it, judged by the network's goals."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from . import dcqcn
from ._core import Simulation
from .devices import LOSSY_ALPHA
from .ecn import thresholds
from .errors import NetworkError
from .headroom import buffers, cells
from .model import ROCE_HEADERS, WIRE_EXTRA
from .options import Options
from .scheduling import cnp_cap_bps
from .topology import build

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .model import Network
    from .topology import Topology

__all__ = ["Failure", "Loop", "Outcome", "Running", "Traffic", "Transfer", "assemble", "run"]

_T = TypeVar("_T")

#: Bytes of a transfer that never ends.
ENDLESS = 1 << 40
_PAUSE_FRAME = 84


@dataclass(frozen=True)
class Transfer:
    """Bytes from one host to another."""

    source: str
    target: str
    bytes: int = ENDLESS
    #: After the beginning, or after the arrival of the transfer `after` (its place in the traffic).
    start_us: float = 0
    roce: bool = True
    after: int = -1


@dataclass(frozen=True)
class Failure:
    """A cable between switches that breaks; routes change `converge_us` later."""

    at_us: float
    #: Its place among the cables between switches.
    cable: int
    converge_us: float = 50


@dataclass(frozen=True)
class Loop:
    """For some time, what one host sends to another runs in a circle of switches until its TTL is over."""

    source: str
    target: str
    circle: tuple[str, ...]
    at_us: float
    for_us: float
    #: Switches that a packet can still pass when it comes to the circle.
    ttl: int = 64


@dataclass(frozen=True)
class Traffic:
    """What the hosts do."""

    name: str
    transfers: tuple[Transfer, ...]
    duration_us: float
    failures: tuple[Failure, ...] = ()
    #: Hosts that take packets more slowly than they arrive: Gb/s.
    drain_gbps: Mapping[str, float] = field(default_factory=dict)
    #: Hosts whose incoming ports have enough to do all the time: judged by the goal for throughput.
    busy: tuple[str, ...] = ()
    loops: tuple[Loop, ...] = ()


@dataclass
class Running:
    """A simulation and where the network's parts are in it."""

    network: Network
    topology: Topology
    traffic: Traffic
    sim: Simulation
    #: Port numbers from node to neighbour, one for each parallel cable.
    ports: dict[tuple[str, str], list[int]]
    flows: list[int]

    def host_ports(self, host: str) -> list[int]:
        """Ports of a host's adapters."""
        return [number for peer in self.topology.switches_of(host) for number in self.ports[host, peer]]

    def switch_ports(self) -> dict[int, str]:
        """Ports by which switches send, with a name."""
        return {
            number: f"{node} to {peer}"
            for (node, peer), numbers in self.ports.items()
            if node in self.topology.switches
            for number in numbers
        }


@dataclass(frozen=True)
class Outcome:
    """Of one run. Times in microseconds, queues in cells."""

    traffic: str
    seed: int
    duration_us: float
    events: int
    packets: int
    lossless_drops: int
    lossy_drops: int
    lost: int
    pauses: int
    #: Share of windows of `sample_us` in which no port sent a pause.
    quiet: float
    #: Pauses of all ports in each window.
    pauses_by_window: tuple[int, ...]
    #: Of the busy hosts' ports, the least one, until all had arrived; -1 if the traffic keeps none busy.
    throughput: float
    latency_50_us: float
    latency_90_us: float
    latency_99_us: float
    latency_most_us: float
    queue_most: int
    resent: int
    finished: int
    transfers: int
    #: Mean time from start to arrival of finished transfers.
    completion_us: float
    sample_us: float
    #: The fullest queue over time, and the port's name.
    queue_name: str
    queue: tuple[int, ...]
    #: Gb/s of up to eight senders over time.
    rates: tuple[tuple[float, ...], ...]
    #: Pauses by port name, for ports that sent any.
    pauses_by_port: Mapping[str, int]
    #: Queues that a watchdog emptied, and lossless packets that it dropped.
    watchdogs: int = 0
    watchdog_drops: int = 0
    #: Packets whose TTL was over.
    expired: int = 0


def options_of(network: Network, seed: int, window: int | None = None, duration_us: float = 0) -> Options:
    """What holds for the whole network. A watchdog that would wake up after the end is left out."""
    slowest = network.slowest_gbps
    # The planned response time includes sending the pause frame.
    response = network.pfc.response_ns * 1000 - _PAUSE_FRAME * 8e3 / slowest
    half = max(0, int(response / 2))
    cell = {switch.cell_bytes for switch in network.switches}
    if len(cell) > 1:
        raise NetworkError(
            f"{network.where('switches', 0)}: the simulator needs one cell_bytes for all switches"
        )
    marking, ecn = network.marking, network.ecn
    watchdog_us = 1000 * network.pfc.watchdog_ms
    watched = watchdog_us < duration_us
    return Options(
        seed=seed,
        cell_bytes=cell.pop(),
        window=network.senders.window if window is None else window,
        answer_ps=half,
        obey_ps=half,
        resume_cells=2 * cells(network.frame, network.switches[0].cell_bytes),
        poll_ps=int(ecn.poll_us * 1e6),
        weight=ecn.weight,
        timeout_ps=int(network.senders.timeout_us * 1e6),
        mark_departing=ecn.mark == "departure",
        spaced_marks=ecn.spaced_marks,
        cnp_interval_ps=int(ecn.cnp_interval_us * 1e6),
        cnp_at_interval=ecn.cnp_sent == "interval",
        bulk_quantum=40 * marking.other_weight,
        roce_quantum=40 * marking.roce_weight,
        watchdog_ps=watchdog_us * 1_000_000 if watched else 0,
        restore_ps=2 * watchdog_us * 1_000_000 if watched else 0,
    )


# long: one constructor call for each kind of part
def assemble(
    network: Network,
    traffic: Traffic,
    *,
    seed: int = 1,
    profile: str | dcqcn.Profile = "sigcomm15",
    headroom: int | None = None,
    pauses: bool = True,
    window: int | None = None,
) -> Running:
    """Build a simulation with the planned settings.

    :param profile: "none" for a network without ECN; a name in `dcqcn.PROFILES`, with each host's own line
        rate, and steps for the slowest of them (`dcqcn.scaled`); or a profile, which is taken as it is.
    :param headroom: cells for every port, instead of the plan's.
    :param pauses: without them, what does not fit the shared buffer is dropped.
    :param window: packets that a sender may have under way, instead of the network's.
    :raises NetworkError: if the plan does not fit the buffers, or a host of the traffic is not there.
    """
    topology = build(network)
    if isinstance(profile, dcqcn.Profile):
        senders = profile
    else:
        # Without marks, senders of any profile stay at line rate.
        named = "sigcomm15" if profile == dcqcn.NONE else profile
        senders = dcqcn.scaled(dcqcn.profile(named), network.slowest_gbps)
    sim = Simulation(senders, options_of(network, seed, window, traffic.duration_us))
    nodes: dict[str, int] = {}
    divisions = {name: buffers(network, topology, name) for name in topology.switches}
    marks = functools.cache(functools.partial(thresholds, network, topology))
    adapters: dict[str, list[int]] = {}
    for name in topology.hosts:
        # Adapters share nothing but the host's name.
        adapters[name] = [sim.add_host() for _ in topology.ports[name]]
    for name, switch in topology.switches.items():
        division = divisions[name]
        if division.shared <= 0:
            raise NetworkError(f"headroom and guarantees do not fit into the buffer of {name}: see the plan")
        latency = int(switch.latency_ns * 1000)
        alpha = network.pfc.alpha
        nodes[name] = sim.add_switch(division.shared, division.guarantee, alpha, LOSSY_ALPHA, latency)
    ports: dict[tuple[str, str], list[int]] = {}
    cap_ps = int(8e12 / cnp_cap_bps(network))
    before = dict.fromkeys(topology.ports, 0)
    for cable in topology.cables:
        link = cable.link
        delay = int(link.length_m / network.pfc.meters_per_us * 1e6)
        one, other = (
            adapters[end][before[end]] if end in adapters else nodes[end] for end in (cable.a, cable.b)
        )
        first = sim.add_cable(one, other, round(8e3 / link.rate_gbps), delay)
        for number, node, peer in ((first, cable.a, cable.b), (first + 1, cable.b, cable.a)):
            ports.setdefault((node, peer), []).append(number)
            if node not in topology.switches:
                before[node] += 1
                drain = traffic.drain_gbps.get(node, 1e9) / len(topology.ports[node])
                sim.set_port(number, 0, 1e18, 1e18, 0, 0, round(8e3 / drain))
                continue
            room = divisions[node].headroom[before[node]] if headroom is None else headroom
            before[node] += 1
            mark = marks(link.rate_gbps, topology.switches[node].cell_bytes)
            kmin, kmax = (1e18, 1e18) if profile == dcqcn.NONE else (mark.kmin, mark.kmax)
            sim.set_port(number, room if pauses else 0, kmin, kmax, mark.pmax, cap_ps, 0)
    running = Running(network, topology, traffic, sim, ports, [])
    _add_traffic(running, random.Random(seed))
    return running


@dataclass(frozen=True)
class _Ends:
    """The adapters of a transfer: the ports by which its hosts send, and their switches."""

    source: int
    first: str
    target: int
    last: str

    def back(self) -> _Ends:
        return _Ends(self.target, self.last, self.source, self.first)


def _ends(running: Running, source: str, target: str, dice: random.Random) -> _Ends:
    """Adapters with the shortest way between them, one of them at random."""

    def one(choices: Sequence[_T]) -> _T:
        return choices[0] if len(choices) == 1 else dice.choice(choices)

    first, last = one(running.topology.ends(source, target))
    return _Ends(one(running.ports[source, first]), first, one(running.ports[target, last]), last)


def _route(running: Running, ends: _Ends, dice: random.Random, down: frozenset[int]) -> list[int]:
    """Ports from host to host: at each switch one of the shortest ways; none if there is no way."""
    topology, node, last = running.topology, ends.first, ends.last
    table = topology.hops(last, down)
    found = [ends.source]
    while node != last:
        if node not in table:
            return []
        step = dice.choice(table[node])
        # The ports of a cable have the numbers 2 n and 2 n + 1.
        found.append(dice.choice([each for each in running.ports[node, step] if each // 2 not in down]))
        node = step
    # The last port is the switch's, at the other end of the host's cable.
    return [*found, ends.target ^ 1]


def _add_traffic(running: Running, dice: random.Random) -> None:
    network, sim, traffic = running.network, running.sim, running.traffic
    fabric = [
        at for at, cable in enumerate(running.topology.cables)
        if cable.a in running.topology.switches and cable.b in running.topology.switches
    ]  # fmt: skip
    none: frozenset[int] = frozenset()
    all_ends = []
    for transfer in traffic.transfers:
        for name in (transfer.source, transfer.target):
            if name not in running.topology.hosts:
                raise NetworkError(f"traffic {traffic.name}: there is no host {name!r}")
        packets = max(1, min(1 << 30, -(-transfer.bytes // network.mtu)))
        rest = transfer.bytes - (packets - 1) * network.mtu
        last = min(network.mtu, max(1, rest)) + ROCE_HEADERS + WIRE_EXTRA
        ends = _ends(running, transfer.source, transfer.target, dice)
        all_ends.append(ends)
        forth, back = (_route(running, each, dice, none) for each in (ends, ends.back()))
        start = int(transfer.start_us * 1e6)
        number = sim.add_flow(forth, back, packets, network.wire, last, transfer.roce, start, transfer.after)
        running.flows.append(number)
    if traffic.failures and not fabric:
        raise NetworkError(f"traffic {traffic.name}: there is no cable between switches that could break")
    down: frozenset[int] = none
    for failure in sorted(traffic.failures, key=lambda each: each.at_us):
        cable = fabric[failure.cable % len(fabric)]
        down |= {cable}
        sim.fail(int(failure.at_us * 1e6), 2 * cable)
        when = int((failure.at_us + failure.converge_us) * 1e6)
        for number, ends in zip(running.flows, all_ends, strict=True):
            ways = [_route(running, each, dice, down) for each in (ends, ends.back())]
            if all(ways):  # otherwise its packets go on to the broken cable, and are lost
                sim.reroute(when, number, *ways)
    _add_loops(running, all_ends, dice)


def _add_loops(running: Running, all_ends: Sequence[_Ends], dice: random.Random) -> None:
    topology, none = running.topology, frozenset[int]()
    peers = {port: peer for (_, peer), ports in running.ports.items() for port in ports}
    numbers: dict[tuple[str, str], list[int]] = {}
    for place, transfer in enumerate(running.traffic.transfers):
        numbers.setdefault((transfer.source, transfer.target), []).append(place)
    for loop in running.traffic.loops:
        around = [*loop.circle, loop.circle[0]]
        for one, other in itertools.pairwise(around):
            if other not in topology.beside.get(one, ()):
                text = f"there is no cable between switches {one!r} and {other!r} of a loop"
                raise NetworkError(f"traffic {running.traffic.name}: {text}")
        for each in numbers.get((loop.source, loop.target), ()):
            number, ends = running.flows[each], all_ends[each]
            forth, back = (_route(running, each, dice, none) for each in (ends, ends.back()))
            nodes = [ends.first, *(peers[port] for port in forth[1:-1])]
            at = next((place for place, node in enumerate(nodes) if node in loop.circle), None)
            if at is None:
                raise NetworkError(
                    f"traffic {running.traffic.name}: what {loop.source} sends to {loop.target} passes no "
                    "switch of the loop"
                )
            turn = loop.circle.index(nodes[at])
            steps = [
                (loop.circle[step % len(loop.circle)], loop.circle[(step + 1) % len(loop.circle)])
                for step in range(turn, turn + loop.ttl)
            ]
            circle = [running.ports[step][0] for step in steps]
            running.sim.reroute(int(loop.at_us * 1e6), number, [*forth[: at + 1], *circle, -1], back)
            running.sim.reroute(int((loop.at_us + loop.for_us) * 1e6), number, forth, back)


def _percentile(histogram: Sequence[int], share: float, most_us: float) -> float:
    """Microseconds, at most ``most_us``: the histogram has steps of 100 ns, of which the end counts."""
    left = sum(histogram) * share
    for at, count in enumerate(histogram):
        left -= count
        if left <= 0:
            return min((at + 1) / 10, most_us)
    return most_us


def run(running: Running, *, seed: int = 1, samples: int = 200, warm: float = 0.2) -> Outcome:
    """Run the traffic to its end.

    :param samples: looks at queues and rates; the pauses are counted between two of them.
    :param warm: share of the time before throughput counts.
    """
    sim, traffic = running.sim, running.traffic
    step = int(traffic.duration_us * 1e6 / samples)
    queues: list[list[int]] = []
    rates: list[tuple[float, ...]] = []
    shown = running.flows[:8]
    windows: list[int] = []
    before = 0
    busy = [_Busy(running, host) for host in traffic.busy]
    for at in range(samples):
        if at == int(warm * samples):
            for each in busy:
                each.begin()
        sim.run((at + 1) * step)
        windows.append(sim.pauses - before)
        before = sim.pauses
        queues.append(sim.queues())
        rates.append(tuple(sim.rate(flow) / 1e9 for flow in shown))
    least = min((each.share() for each in busy), default=-1.0)
    return _outcome(running, seed, windows, least, queues, rates)


class _Busy:
    """How much of a host's ports its incoming transfers used, until the last of them had arrived."""

    def __init__(self, running: Running, host: str) -> None:
        self._sim = running.sim
        self._ports = running.host_ports(host)
        transfers = zip(running.flows, running.traffic.transfers, strict=True)
        self._flows = [flow for flow, transfer in transfers if transfer.target == host]
        self._at, self._before = 0, 0.0

    def begin(self) -> None:
        """What arrives from now on counts."""
        self._at, self._before = self._sim.now, self._received()

    def _received(self) -> float:
        """Time that the ports were busy with what they received, on average."""
        ports = [self._sim.port(number) for number in self._ports]
        return float(sum(port["received_bytes"] * port["byte_ps"] for port in ports) / len(ports))

    def share(self) -> float:
        """From 0 to 1; -1 if all had arrived before it counted."""
        done = [self._sim.flow(flow)["done_at"] for flow in self._flows]
        end = max(done) if done and min(done) >= 0 else self._sim.now
        taken = self._received() - self._before
        return float(taken / (end - self._at)) if end > self._at else -1.0


# long: one constructor call
def _outcome(
    running: Running,
    seed: int,
    windows: list[int],
    throughput: float,
    queues: list[list[int]],
    rates: list[tuple[float, ...]],
) -> Outcome:
    sim, traffic, names = running.sim, running.traffic, running.switch_ports()
    fullest = max(names, key=lambda number: sim.port(number)["most_cells"])
    flows = [sim.flow(flow) for flow in running.flows]
    times = [
        flow["done_at"] - flow["start_ps"]
        for flow, transfer in zip(flows, traffic.transfers, strict=True)
        if flow["done_at"] >= 0 and transfer.after < 0
    ]
    counts, latencies, most_us = sim.pauses_by_port(), sim.latencies(), sim.slowest_ps / 1e6
    everyone = names | {
        number: host for host in running.topology.hosts for number in running.host_ports(host)
    }
    paused: dict[str, int] = {}
    for number, name in everyone.items():
        if counts[number]:  # parallel cables have one name
            paused[name] = paused.get(name, 0) + counts[number]
    return Outcome(
        traffic=traffic.name,
        seed=seed,
        duration_us=traffic.duration_us,
        events=sim.events,
        packets=sim.created,
        lossless_drops=sim.lossless_drops,
        lossy_drops=sim.lossy_drops,
        lost=sim.lost,
        pauses=sim.pauses,
        quiet=windows.count(0) / len(windows),
        pauses_by_window=tuple(windows),
        throughput=throughput,
        latency_50_us=_percentile(latencies, 0.5, most_us),
        latency_90_us=_percentile(latencies, 0.9, most_us),
        latency_99_us=_percentile(latencies, 0.99, most_us),
        latency_most_us=most_us,
        queue_most=sim.port(fullest)["most_cells"],
        resent=sum(flow["resent"] for flow in flows),
        finished=sum(flow["done_at"] >= 0 for flow in flows),
        transfers=len(flows),
        completion_us=sum(times) / len(times) / 1e6 if times else -1.0,
        sample_us=traffic.duration_us / len(queues),
        queue_name=names[fullest],
        queue=tuple(each[fullest] for each in queues),
        rates=tuple(rates),
        pauses_by_port=paused,
        watchdogs=sim.watchdogs,
        watchdog_drops=sim.watchdog_drops,
        expired=sim.expired,
    )
