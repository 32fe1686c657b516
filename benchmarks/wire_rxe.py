"""`python -m benchmarks.wire_rxe`: the software device with the kernel's rxe, compared to rxe with rxe.

Run it where tests/vm/run puts a cable with an rxe device at each end:

    tests/vm/run --net wire -- .venv/bin/python -m benchmarks.wire_rxe

It adds a second cable of the same kind (veth, the same frames, a path MTU of 4096), with another rxe device
at one end and the software device in its own namespace at the other. rxe works in the initial namespace
only, so both ends of the first cable are there, and policy routing sends the packets between them over it
(tests/vm/net/wire). Both setups share two emulated processors, and take turns.

As on two hosts, each end's program has its own processor. The programs poll, and run only while their
processor is otherwise idle (SCHED_IDLE): otherwise rxe's work in the kernel would wait for them. That work is
bound to no processor; the processors of rxe's ends do it. A cable of this kind delivers packets on the
sender's processor. For bandwidth the receiver's processor takes over (RPS), for latency the sender's; for rxe
and rxe these are the faster choices. Factors are medians of the ratio to rxe and rxe in each turn, followed
by the number of turns with a factor above 1.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from statistics import median
from typing import NamedTuple

from aiordma.verbs import softlib
from tests.cable import ADDRESSES
from tests.vm.wire import ends
from tests.vm.wire.tools import Place, between

CLIENT, SERVER = (("taskset", "-c", cpu, "chrt", "--idle", "0") for cpu in "01")

#: Processors that may do the kernel's unbound work (a mask): those of rxe.
WORKQUEUES = Path("/sys/devices/virtual/workqueue/cpumask")


class Pair(NamedTuple):
    client: Place
    server: Place
    #: The server's address for the tool's own connection.
    to: str
    #: Ends of the cable, the client's first: the command prefix to run there, and the interface.
    cable: tuple[tuple[list[str], str], tuple[list[str], str]]
    #: Processors of the ends where rxe works.
    rxe: str

    def give_processors(self, *, receivers: bool) -> None:
        """receivers: the first one handles packets to the client, the second packets to the server."""
        for mask, (there, interface) in zip("12", self.cable, strict=True):
            path = f"/sys/class/net/{interface}/queues/rx-0/rps_cpus"
            ends.run(*there, "sh", "-c", f"echo {mask if receivers else 0} >{path}")
        WORKQUEUES.write_text(self.rxe)


class Turn(NamedTuple):
    #: WRITEs, in megabytes per second.
    rate: float
    #: SEND round trips, in microseconds.
    median: float
    mean: float


def pairs() -> dict[str, Pair]:
    rxe, soft = ADDRESSES["ipv4"]
    preloaded = ends.inside("env", f"LD_PRELOAD={softlib.locate()}")
    by_rxe: tuple[list[str], str] = ([], "cable")
    by_soft = (ends.inside(), "cable")

    def on_soft(how: tuple[str, ...]) -> Place:
        return Place(ends.SOFT, soft, (*how, *preloaded))

    return {
        "rxe to rxe": Pair(
            Place("rxe0", "10.99.1.1", CLIENT),
            Place("rxe1", "10.99.1.2", SERVER),
            "10.99.1.2",
            (([], "veth0"), ([], "veth1")),
            "3",
        ),
        "software device to rxe": Pair(
            on_soft(CLIENT), Place("rxe2", rxe, SERVER), rxe, (by_soft, by_rxe), "2"
        ),
        "rxe to software device": Pair(
            Place("rxe2", rxe, CLIENT), on_soft(SERVER), soft, (by_rxe, by_soft), "1"
        ),
    }


def results(pair: Pair, tool: str, *options: str) -> list[str]:
    """Return the fields of the client's result line."""
    said = between(pair.client, pair.server, pair.to, tool, "-F", *options)[0]
    found = re.search(r"#bytes.*\n\s*(.*)", said)
    assert found, said
    return found[1].split()


def bandwidth(pair: Pair, writes: int) -> float:
    """Megabytes per second of 64 KiB WRITEs."""
    pair.give_processors(receivers=True)
    return float(results(pair, "ib_write_bw", "-m", "4096", "-s", "65536", "-n", str(writes))[3]) * 1.048576


def latency(pair: Pair, sends: int) -> tuple[float, float]:
    """Microseconds of a 64-byte SEND round trip, both ends polling: the median, and the mean."""
    pair.give_processors(receivers=False)
    half = results(pair, "ib_send_lat", "-s", "64", "-n", str(sends))
    return float(half[4]) * 2, float(half[5]) * 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each [5]")
    parser.add_argument("--writes", type=int, default=1500, help="of 64 KiB in a turn [1500]")
    parser.add_argument("--sends", type=int, default=1000, help="round trips of 64 B in a turn [1000]")
    options = parser.parse_args()
    for interface in ("veth0", "veth1"):
        ends.run("ip", "link", "set", interface, "mtu", "4500")
    turns: list[dict[str, Turn]] = []
    with ends.cable(), ends.rxe("rxe2"):
        for first in range(options.rounds):
            turns.append({})
            order = list(pairs().items())
            for _ in range(first % len(order)):  # rotate the order, so that no setup always runs first
                order.append(order.pop(0))
            for name, pair in order:
                turns[-1][name] = Turn(bandwidth(pair, options.writes), *latency(pair, options.sends))
    print(f"{f'medians of {len(turns)} turns':24} {'WRITE 64 KiB':>27} {'64 B and back':>25} {'mean':>25}")
    for name in pairs():
        mine, beside = [turn[name] for turn in turns], [turn["rxe to rxe"] for turn in turns]
        line = f"{name:24}"
        for field, unit in zip(Turn._fields, ("MB/s", "us", "us"), strict=True):
            values = [getattr(turn, field) for turn in mine]
            others = [getattr(turn, field) for turn in beside]
            # Compare turn by turn: a machine that slows down meanwhile is slower for both.
            times = [value / other for value, other in zip(values, others, strict=True)]
            line += f" {median(values):7.1f} {unit} {median(times):.2f}x, {sum(t > 1 for t in times)} above"
        rates, trips, _ = zip(*mine, strict=True)
        print(f"{line}  ({min(rates):.0f}-{max(rates):.0f} MB/s, {min(trips):.1f}-{max(trips):.1f} us)")


if __name__ == "__main__":
    main()
