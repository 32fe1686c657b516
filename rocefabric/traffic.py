"""Traffic models: what hosts of a data center do to each other, in sixty kinds.

Each is a function of the network's hosts and a seed. Sizes are bytes, loads are shares of the hosts' ports.
The two distributions of flow sizes are rounded from what was published: web search (Alizadeh and others,
DCTCP, SIGCOMM 2010) and data mining (Greenberg and others, VL2, SIGCOMM 2009), cut off at 5 MB so that a
simulation of milliseconds sees their tails.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from typing import TYPE_CHECKING, TypeAlias

from .errors import NetworkError
from .simulate import Failure, Traffic, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .topology import Topology

__all__ = ["MODELS", "make", "possible"]

Model: TypeAlias = "Callable[[Sequence[str], float, random.Random], Traffic]"

#: Size in bytes up to which so many percent of the flows are.
SIZES = {
    "websearch": (
        (6_000, 15), (13_000, 20), (19_000, 30), (33_000, 40), (53_000, 53), (133_000, 60), (667_000, 70),
        (1_467_000, 80), (3_333_000, 90), (5_000_000, 100),
    ),
    "datamining": (
        (180, 10), (250, 20), (560, 30), (900, 40), (1_100, 50), (1_870, 60), (3_160, 70), (10_000, 80),
        (400_000, 90), (3_160_000, 95), (5_000_000, 100),
    ),
}  # fmt: skip
DURATION_US = 2000.0


def _size(kind: str, dice: random.Random) -> int:
    table = SIZES[kind]
    percent = dice.uniform(0, 100)
    at = bisect_left([share for _, share in table], percent)
    low, below = table[at - 1] if at else (64, 0)
    high, above = table[at]
    return int(low + (high - low) * (percent - below) / (above - below))


def _incast(senders: int, size: int) -> Model:
    def make(hosts: Sequence[str], gbps: float, dice: random.Random) -> Traffic:
        chosen = dice.sample(list(hosts), min(senders + 1, len(hosts)))
        transfers = tuple(Transfer(each, chosen[0], size) for each in chosen[1:])
        # Time to drain it all, once more as much for the slow end, but two milliseconds at least.
        needed = size * len(transfers) * 8e-3 / gbps
        busy = (chosen[0],) if needed > DURATION_US else ()
        return Traffic("", transfers, min(4 * DURATION_US, max(DURATION_US, 2 * needed)), busy=busy)

    return make


def _endless(senders: int) -> Model:
    def make(hosts: Sequence[str], gbps: float, dice: random.Random) -> Traffic:
        chosen = dice.sample(list(hosts), min(senders + 1, len(hosts)))
        transfers = tuple(Transfer(each, chosen[0]) for each in chosen[1:])
        # DCQCN takes ten milliseconds to find its rates.
        return Traffic("", transfers, 10 * DURATION_US, busy=(chosen[0],))

    return make


def _permutation(flows: int, background: bool = False) -> Model:
    """Every host sends to one other, over several connections, and receives from one other."""

    def make(hosts: Sequence[str], gbps: float, dice: random.Random) -> Traffic:
        order = list(hosts)
        dice.shuffle(order)
        targets = [*order[1:], order[0]]
        transfers = [
            Transfer(one, other) for one, other in zip(order, targets, strict=True) for _ in range(flows)
        ]
        if background:
            back = zip(targets, order, strict=True)
            transfers += [Transfer(one, other, roce=False) for one, other in back]
        return Traffic("", tuple(transfers), DURATION_US)

    return make


def _shift(by: float) -> Model:
    def make(hosts: Sequence[str], gbps: float, dice: random.Random) -> Traffic:
        step = max(1, int(by * len(hosts)))
        pairs = [(host, hosts[(at + step) % len(hosts)]) for at, host in enumerate(hosts)]
        return Traffic("", tuple(Transfer(*pair) for pair in pairs), DURATION_US)

    return make


def _all_to_all(members: int, size: int) -> Model:
    def make(hosts: Sequence[str], gbps: float, dice: random.Random) -> Traffic:
        chosen = dice.sample(list(hosts), min(members, len(hosts)))
        pairs = [(one, other) for one in chosen for other in chosen if one != other]
        return Traffic("", tuple(Transfer(*pair, size) for pair in pairs), DURATION_US)

    return make


def _storage(clients: int, size: int) -> Model:
    """Writes to a first server, which copies to two others when it has them; each client has two in a row."""

    def make(hosts: Sequence[str], gbps: float, dice: random.Random) -> Traffic:
        transfers: list[Transfer] = []
        for client in dice.sample(list(hosts), min(clients, max(1, len(hosts) - 3))):
            after = -1
            for _ in range(2):
                others = [host for host in hosts if host != client]
                first, *copies = dice.sample(others, min(3, len(others)))
                start = dice.uniform(0, 200) if after < 0 else 5
                transfers.append(Transfer(client, first, size, start, after=after))
                after = len(transfers) - 1
                transfers += [Transfer(first, copy, size, 2, after=after) for copy in copies]
        return Traffic("", tuple(transfers), DURATION_US)

    return make


def _all_reduce(members: int, size: int) -> Model:
    """Ring: each member passes a part on as soon as it has the one before: the first 14 of 2 (n - 1)."""

    def make(hosts: Sequence[str], gbps: float, dice: random.Random) -> Traffic:
        ring = dice.sample(list(hosts), min(members, len(hosts)))
        count = len(ring)
        transfers: list[Transfer] = []
        for step in range(min(2 * (count - 1), 14)):
            for at in range(count):
                after = (step - 1) * count + (at - 1) % count if step else -1
                transfers.append(
                    Transfer(ring[at], ring[(at + 1) % count], max(1, size // count), 1, after=after)
                )
        return Traffic("", tuple(transfers), DURATION_US)

    return make


def _mix(kind: str, load: float, background: float = 0) -> Model:
    """Flows that begin at random, between random hosts, as many as keep ports at `load`."""

    def make(hosts: Sequence[str], gbps: float, dice: random.Random) -> Traffic:
        mean = sum(_size(kind, dice) for _ in range(2000)) / 2000
        transfers: list[Transfer] = []
        for share, roce in ((load, True), (background, False)):
            pace = share * gbps * 1e3 / 8 / mean * len(hosts) if share else 0
            at = dice.expovariate(pace) if share else DURATION_US
            while at < DURATION_US:
                source, target = dice.sample(list(hosts), 2)
                transfers.append(Transfer(source, target, _size(kind, dice), at, roce))
                at += dice.expovariate(pace)
        return Traffic("", tuple(transfers), 1.5 * DURATION_US)

    return make


def _bursts(senders: int, size: int, period_us: float) -> Model:
    def make(hosts: Sequence[str], gbps: float, dice: random.Random) -> Traffic:
        chosen = dice.sample(list(hosts), min(senders + 1, len(hosts)))
        starts = [period_us * at for at in range(int(DURATION_US / period_us))]
        transfers = tuple(Transfer(each, chosen[0], size, start) for start in starts for each in chosen[1:])
        return Traffic("", transfers, 1.5 * DURATION_US)

    return make


def _slow(share: float, senders: int) -> Model:
    def make(hosts: Sequence[str], gbps: float, dice: random.Random) -> Traffic:
        chosen = dice.sample(list(hosts), min(senders + 2, len(hosts)))
        transfers = [Transfer(each, chosen[0]) for each in chosen[2:] or chosen[1:]]
        transfers += [Transfer(chosen[-1], chosen[1])] if chosen[2:] else []
        return Traffic("", tuple(transfers), DURATION_US, drain_gbps={chosen[0]: share * gbps})

    return make


def _failing(model: Model, failures: int) -> Model:
    def make(hosts: Sequence[str], gbps: float, dice: random.Random) -> Traffic:
        base = model(hosts, gbps, dice)
        broken = tuple(Failure(300.0 + 200 * at, 5 * at) for at in range(failures))
        return Traffic("", base.transfers, base.duration_us, broken)

    return make


def _elephants_and_mice(elephants: int, mice: int) -> Model:
    def make(hosts: Sequence[str], gbps: float, dice: random.Random) -> Traffic:
        target, *others = dice.sample(list(hosts), min(elephants + 1, len(hosts)))
        transfers = [Transfer(each, target) for each in others]
        for _ in range(mice):
            source, other = dice.sample(list(hosts), 2)
            transfers.append(Transfer(source, other, dice.randrange(64, 4096), dice.uniform(0, DURATION_US)))
        return Traffic("", tuple(transfers), 1.5 * DURATION_US, busy=(target,))

    return make


KB, MB = 1000, 1_000_000
MODELS: dict[str, Model] = {
    **{f"incast-{n}-64k": _incast(n, 64 * KB) for n in (2, 4, 8, 16, 32, 39, 63)},
    **{f"incast-{n}-1m": _incast(n, MB) for n in (2, 4, 8, 16, 39)},
    **{f"endless-{n}": _endless(n) for n in (1, 2, 4, 8, 16, 39)},
    **{f"permutation-{n}": _permutation(n) for n in (1, 2, 4, 8)},
    "permutation-tcp": _permutation(2, background=True),
    **{f"shift-{name}": _shift(by) for name, by in (("next", 0.0), ("quarter", 0.25), ("half", 0.5))},
    **{
        f"all-to-all-{n}-{k}k": _all_to_all(n, k * KB)
        for n, k in ((4, 256), (8, 64), (16, 32), (32, 8), (64, 2))
    },
    **{
        f"storage-{n}-{k}k": _storage(n, k * KB) for n, k in ((4, 256), (16, 64), (16, 4), (48, 64), (60, 16))
    },
    **{f"all-reduce-{n}-{m}m": _all_reduce(n, m * MB) for n, m in ((4, 1), (8, 2), (16, 4), (64, 8))},
    **{f"websearch-{load}": _mix("websearch", load / 100) for load in (20, 40, 60, 80)},
    **{f"datamining-{load}": _mix("datamining", load / 100) for load in (20, 40, 60)},
    "websearch-30-tcp-30": _mix("websearch", 0.3, 0.3),
    "datamining-30-tcp-30": _mix("datamining", 0.3, 0.3),
    **{f"bursts-{n}-{k}k": _bursts(n, k * KB, 250) for n, k in ((4, 64), (8, 32), (16, 32), (32, 8))},
    **{f"slow-{share}-{n}": _slow(share / 100, n) for share, n in ((50, 1), (20, 1), (50, 8))},
    "failure-permutation": _failing(_permutation(2), 1),
    "failure-two-permutation": _failing(_permutation(2), 2),
    "failure-websearch-40": _failing(_mix("websearch", 0.4), 1),
    "elephants-2-mice": _elephants_and_mice(2, 500),
    "elephants-8-mice": _elephants_and_mice(8, 500),
}


def possible(topology: Topology) -> list[str]:
    """The models that a network can have: without cables between switches, none of them breaks."""
    return [name for name in MODELS if topology.fabric_cables() or not name.startswith("failure-")]


def make(name: str, topology: Topology, seed: int = 1) -> Traffic:
    """The traffic of one model between the RoCE hosts of a network.

    :raises KeyError: if there is no such model.
    :raises NetworkError: if the network has fewer than two RoCE hosts.
    """
    model = MODELS[name]
    hosts = [name for name, host in topology.hosts.items() if host.roce]
    if len(hosts) < 2:
        raise NetworkError(f"traffic {name}: it needs two hosts with RoCE, and there are {len(hosts)}")
    gbps = min(sum(port.link.rate_gbps for port in topology.ports[host]) for host in hosts)
    found = model(hosts, gbps, random.Random(f"{name} {seed}"))
    return Traffic(name, found.transfers, found.duration_us, found.failures, found.drain_gbps, found.busy)
