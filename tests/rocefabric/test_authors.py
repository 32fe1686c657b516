"""Beside the ns-3 model of DCQCN's authors: shares, queue, notifications, and how a new sender catches up.

The figures were measured with github.com/bobzhuyb/ns3-rdma at commit e8a27d0 and its sample configuration:
40 Gb/s, 1 us to the switch, packets of 1020 bytes, Kmin 40 and Kmax 1000 packets of 1030 bytes, Pmax 100 %,
a pool of 4.12 MB; 2, 4 or 8 senders to one host. See "Beside the authors" in `benchmarks/notes/fabric.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from rocefabric import dcqcn, simulate
from rocefabric._core import Simulation
from rocefabric.options import Options

from .networks import star

MS = 1_000_000_000
PACKET = 1020
#: What that switch grants each port and does not count: the queue and its thresholds are what lies above it.
GRANTED = 1030
LINE = 40e9


class Incast:
    """Senders to one host, as that model has them; looked at every 50 us."""

    def __init__(self, starts_ms: tuple[int, ...], seed: int = 1, *, at_interval: bool = True) -> None:
        options = Options(
            seed=seed,
            cell_bytes=PACKET,
            window=1 << 20,
            mark_departing=True,
            cnp_at_interval=at_interval,
            timeout_ps=10_000 * MS,
        )
        self.sim = sim = Simulation(dcqcn.profile("ns3"), options)
        hosts = [sim.add_host() for _ in range(1 + len(starts_ms))]
        switch = sim.add_switch(4_120_000 // PACKET, 1, 16, 0.5, 0)
        cables = [sim.add_cable(host, switch, int(8e12 / LINE), 1_000_000) for host in hosts]
        # There, a packet that leaves is marked by what it leaves behind; here, by the queue with itself.
        kmin, kmax = (1 + (GRANTED + each * 1030) / PACKET for each in (40, 1000))
        for cable in cables:
            sim.set_port(cable + 1, 120, kmin, kmax, 1, 0, 0)
        self.out = cables[0] + 1
        self.flows = [
            sim.add_flow(
                [cable, self.out], [cables[0], cable + 1], 1 << 30, PACKET, PACKET, True, at * MS, -1
            )
            for cable, at in zip(cables[1:], starts_ms, strict=True)
        ]

    def rates(self) -> list[float]:
        """Gb/s of each sender now."""
        return [self.sim.rate(flow) / 1e9 for flow in self.flows]

    def queue(self) -> float:
        """KB in the queue."""
        return max(0, self.sim.queue(self.out) * PACKET - GRANTED) / 1e3

    def flow(self, at: int) -> dict[str, int]:
        found: dict[str, int] = self.sim.flow(self.flows[at])
        return found


def jain(shares: list[float]) -> float:
    return sum(shares) ** 2 / len(shares) / sum(each**2 for each in shares)


@dataclass(frozen=True)
class Settled:
    """From 100 ms on."""

    queue: float
    queue_95: float
    #: Per sender and second.
    notified: float
    alpha: float
    #: Jain's index of the rates at one moment, on average.
    fair: float
    used: float


def settled(run: Incast, until_ms: int = 250) -> Settled:
    sim, senders = run.sim, len(run.flows)
    sim.run(100 * MS)
    before = [run.flow(at) for at in range(senders)]
    queues, alphas, fair = [], [], []
    for now in range(100 * MS, until_ms * MS, MS // 20):
        sim.run(now)
        queues.append(run.queue())
        rates = run.rates()
        fair.append(jain(rates))
        alphas.append(sum(sim.flow(flow)["rate"]["alpha"] for flow in run.flows) / senders)
    seconds = (until_ms - 100) / 1e3
    after = [run.flow(at) for at in range(senders)]
    packets = sum(new["expected"] - old["expected"] for new, old in zip(after, before, strict=True))
    notes = sum(new["notes"] - old["notes"] for new, old in zip(after, before, strict=True))
    assert jain([new["expected"] - old["expected"] for new, old in zip(after, before, strict=True)]) > 0.99
    return Settled(
        sum(queues) / len(queues),
        sorted(queues)[int(0.95 * len(queues))],
        notes / senders / seconds,
        sum(alphas) / len(alphas),
        sum(fair) / len(fair),
        packets * PACKET * 8 / seconds / LINE,
    )


#: Per number of senders. That model cuts a packet's 204 ns off to 203: its line is taken to be 0.5 % faster.
NS3 = {
    2: Settled(16.9, 49.0, 1368, 0.0735, 0.993, 0.9935),
    4: Settled(19.8, 57.1, 1811, 0.0966, 0.991, 0.9925),
    8: Settled(25.6, 70.9, 2385, 0.1264, 0.982, 0.9915),
}
#: With receivers that answer the first marked packet at once, as the paper says: that model with this change.
NS3_AT_ONCE = {
    2: Settled(35.5, 47.9, 2193, 0.1143, 0.997, 1.0),
    8: Settled(47.0, 56.1, 2958, 0.1503, 0.984, 1.0),
}


@pytest.mark.parametrize(
    ("senders", "at_interval"), [(2, True), (4, True), (8, True), (2, False), (8, False)]
)
def test_settled_senders(senders: int, at_interval: bool) -> None:
    found = settled(Incast((0,) * senders, at_interval=at_interval))
    theirs = (NS3 if at_interval else NS3_AT_ONCE)[senders]
    assert found.queue == pytest.approx(theirs.queue, rel=0.12)
    assert found.queue_95 == pytest.approx(theirs.queue_95, rel=0.06)
    assert found.notified == pytest.approx(theirs.notified, rel=0.05)
    assert found.alpha == pytest.approx(theirs.alpha, rel=0.05)
    assert found.fair == pytest.approx(theirs.fair, abs=0.01)
    assert found.used == pytest.approx(theirs.used, abs=0.005)


def test_how_two_senders_begin() -> None:
    """Gb/s of each, ms after the start: cut to a sixth in half a millisecond, the line full after 20 ms."""
    theirs = {
        0.1: 29.96, 0.2: 16.74, 0.3: 9.31, 0.5: 6.48, 1: 7.13,
        2: 7.81, 5: 9.81, 10: 13.13, 15: 16.49, 20: 19.81,
    }  # fmt: skip
    run = Incast((0, 0))
    fullest = 0.0
    for (before, _), (at, rate) in pairwise([(0.0, 0.0), *theirs.items()]):
        for now in range(int(before * MS), int(at * MS), MS // 100):
            run.sim.run(now)
            fullest = max(fullest, run.queue())
        run.sim.run(int(at * MS))
        assert run.rates() == [pytest.approx(rate, rel=0.015)] * 2
    assert fullest == pytest.approx(424, rel=0.02)


def test_eight_senders_begin_with_pauses() -> None:
    """The pool of 4.12 MB fills, so the switch pauses them; after 9.04 ms they fill the line again."""
    run = Incast((0,) * 8)
    run.sim.run(MS)
    assert run.sim.pauses > 0
    assert run.sim.port(run.out)["most_cells"] * PACKET == pytest.approx(4.112e6, rel=0.02)
    while sum(run.rates()) < 39.9:
        run.sim.run(run.sim.now + MS // 50)
    assert run.sim.now / MS == pytest.approx(9.04, rel=0.02)
    assert run.sim.lossless_drops == 0


def test_a_second_sender_has_its_share_at_once() -> None:
    """The first one is at line rate, too: both are cut alike, and do not differ until the line is full."""
    run = Incast((0, 30))
    for now in range(3020, 4900, 2):
        run.sim.run(now * MS // 100)
        one, other = run.rates()
        assert one == pytest.approx(other, rel=0.01)
    assert run.rates() == [pytest.approx(19.15, rel=0.03)] * 2


def test_a_third_sender_gets_its_share() -> None:
    """How far it is behind the two settled ones, in fair shares: means over spans after its start, in ms.

    The first notifications cut it far deeper than them, since its alpha is 0.5 and theirs is below 0.1.
    """
    theirs = {(1, 5): 1.10, (5, 10): 0.79, (10, 20): 0.59, (20, 30): 0.46, (30, 40): 0.24, (40, 60): 0.12}
    tolerance = (0.05, 0.05, 0.1, 0.15, 0.15, 0.15)
    found = [behind(Incast((0, 0, 100), seed), tuple(theirs)) for seed in range(1, 7)]
    means = [sum(each) / len(each) for each in zip(*found, strict=True)]
    for mean, expected, within in zip(means, theirs.values(), tolerance, strict=True):
        assert mean == pytest.approx(expected, abs=within)


def behind(run: Incast, spans: tuple[tuple[int, int], ...]) -> list[float]:
    found = []
    for begin, end in spans:
        sums = [0.0] * 3
        for now in range((100 + begin) * MS, (100 + end) * MS, MS // 10):
            run.sim.run(now)
            sums = [total + rate for total, rate in zip(sums, run.rates(), strict=True)]
        found.append(3 * ((sums[0] + sums[1]) / 2 - sums[2]) / sum(sums))
    return found


def test_the_file_says_when_receivers_notify() -> None:
    at_once, at_interval = (
        simulate.options_of(star(2, f'[ecn]\ncnp_sent = "{when}"'), 1) for when in ("arrival", "interval")
    )
    assert (at_once.cnp_at_interval, at_interval.cnp_at_interval) == (False, True)
