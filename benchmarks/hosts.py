"""Between hosts without a card: the RoCEv2 wire beside TCP, for streams and calls (`make bench-hosts`; root).

Two network namespaces with a cable (veth) stand for two hosts: aiordma does not see that they are one, so all
bytes go through UDP sockets (`SOFTDEV_WIRE=auto` at both ends). Both ends run on uvloop, each on a CPU of its
own. The peers take turns; the table has medians, how many times as good as TCP, and the CPU time of both.
Below stands what two processes in C reach on the same cable, which bounds the sends.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markdown import Markdown

from tests.cable import Host, cabled_hosts, ip

from . import floor_wire
from .markdown import number, table
from .peers import PEERS
from .runner import Plan, run
from .summary import Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs" / "benchmarks-hosts-results.md"
#: Streams and what they are compared with, then calls.
STREAMS = ("tcp-uvloop", "writer-hybrid-uvloop", "stream-hybrid-uvloop", "writer-events-uvloop")
CALLS = ("msgpack-uvloop", "rpc-bare-uvloop", "rpc-events-uvloop")
WORKLOADS = ("roundtrip", "throughput", "calls")
#: Title, workload, the key of the time or rate, and what it is multiplied by.
COLUMNS = (
    ("64 B there and back, us", ("roundtrip", "64"), "p50_us", 1),
    ("64 KiB there and back, us", ("roundtrip", "65536"), "p50_us", 1),
    ("1 MiB sends, MB/s", ("throughput",), "gigabytes_per_second", 1000),
)
#: Of each column: how many times as good as TCP the better of aiordma's streams is to be.
GOALS = (2.0, 1.0, 1.5)
#: Of a key: what both ends spend.
CPU = {
    "p50_us": ("client_cpu_us", "server_cpu_us"),
    "gigabytes_per_second": ("client_cpu_ns_per_kib", "server_cpu_ns_per_kib"),
}


def measure(mtu: int, rounds: int, seconds: float, tell: Callable[[str], None]) -> dict[str, Any]:
    """JSON-able data. :raises RuntimeError: network namespaces cannot be made here (they need root)."""
    with cabled_hosts() as (server, client):
        for host in (server, client):
            ip("-n", host.namespace, "link", "set", "cable", "mtu", str(mtu))
        environment = {"BENCHMARK_HOST": server.address, "SOFTDEV_WIRE": "auto"}
        peers = [PEERS[name] for name in (*STREAMS, *CALLS)]
        ends = server.command(), client.command()
        plan = Plan(peers, rounds, seconds, False, WORKLOADS, hosts=ends, environment=environment)
        results = run(plan, tell) | {"mtu": mtu}
        return results | {"in_c": _in_c(server, client, rounds, seconds, tell)}


def _in_c(
    server: Host, client: Host, rounds: int, seconds: float, tell: Callable[[str], None]
) -> dict[str, list[float]]:
    """MB/s of each kind, by turns."""
    found: dict[str, list[float]] = {kind: [] for kind in floor_wire.TITLES}
    with tempfile.TemporaryDirectory() as folder:
        program = floor_wire.compiled(folder)
        for number_of_round in range(rounds):
            tell(f"round {number_of_round + 1}/{rounds}  in C")
            for kind, rates in found.items():
                rates.append(floor_wire.once(program, server, client, kind, seconds))
    return found


def _cell(summary: Summary, peer: str, base: str, keys: Sequence[str], key: str, by: float) -> str:
    found, theirs = summary.value(peer, *keys, key), summary.value(base, *keys, key)
    if not found or not theirs:
        return "-"
    factor = theirs / found if key == "p50_us" else found / theirs
    text = f"{found * by:,.0f}" + (f" ({factor:.2f}x)" if peer != base else "")
    if keys[0] == "calls":
        return text
    cpu = " + ".join(number(summary.value(peer, *keys, each)) for each in CPU[key])
    return f"{text}; CPU {cpu}"


def _goals(summary: Summary) -> list[list[str]]:
    ours, rows = [peer for peer in STREAMS if "hybrid" in peer], []
    for (title, keys, key, by), goal in zip(COLUMNS, GOALS, strict=True):
        theirs = summary.value(STREAMS[0], *keys, key)
        found = [value for peer in ours if (value := summary.value(peer, *keys, key))]
        if not theirs or not found:
            rows.append([title, f"{goal:g}x", "not measured", "-"])
            continue
        best = min(found) if key == "p50_us" else max(found)
        factor = theirs / best if key == "p50_us" else best / theirs
        measured = f"{factor:.2f}x ({best * by:,.0f} against {theirs * by:,.0f})"
        rows.append([title, f"{goal:g}x", measured, "yes" if factor >= goal else "**no**"])
    return rows


def _floors(in_c: dict[str, list[float]], theirs: float) -> list[list[str]]:
    rows = []
    for kind, title in floor_wire.TITLES.items():
        middle, least, most = statistics.median(in_c[kind]), min(in_c[kind]), max(in_c[kind])
        rows.append([title, f"{middle:,.0f} [{least:,.0f}-{most:,.0f}]", f"{middle / theirs:.2f}x"])
    return rows


def tables(results: dict[str, Any]) -> str:
    """Markdown."""
    summary = Summary(results)
    streams, calls = [], []
    for peer in STREAMS:
        cells = [_cell(summary, peer, STREAMS[0], keys, key, by) for _, keys, key, by in COLUMNS]
        streams.append([summary.title(peer), *cells])
    for peer in CALLS:
        wanted = [(size, key) for size in ("64", "4096") for key in ("p50_us", "per_second")]
        cells = [_cell(summary, peer, CALLS[0], ("calls", size), key, 1) for size, key in wanted]
        calls.append([summary.title(peer), *cells])
    note = "CPU: client's and server's, us for a round trip, ns for a KiB of sends."
    parts = [
        f"MTU {results['mtu']}. {note}\n",
        table(["", *(title for title, *_ in COLUMNS)], streams),
        table(["", "64 B call, us", "64 in flight, /s", "4 KiB call, us", "64 in flight, /s"], calls),
    ]
    parts.insert(1, table(["to uvloop TCP", "goal", "measured", "reached"], _goals(summary)))
    theirs = summary.value(STREAMS[0], *COLUMNS[-1][1], COLUMNS[-1][2])
    if theirs and "in_c" in results:
        parts.append(
            table(["two processes in C", "MB/s", "to uvloop TCP"], _floors(results["in_c"], theirs * 1000))
        )
    parts += [f"* not measured: {title}: {'; '.join(said)}" for title, said in summary.problems().items()]
    return "\n".join(parts) + "\n"


def written() -> str:
    """Markdown of the last result for each MTU."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("hosts-*.json"))]
    return "\n".join(_machine(each) + "\n" + tables(each) for each in found)


def _machine(results: dict[str, Any]) -> str:
    machine = results["machine"]
    return (
        f"Revision {machine['revision']}, {machine['cpu']}, {machine['cpus']} CPUs,"
        f" kernel {machine['kernel']},"
        f" {results['rounds']} rounds of {results['slice_seconds']:g} s, load before:"
        f" {machine['load_before']:.1f}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-hosts ARGS=...", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="for one number, about [1]")
    parser.add_argument("--mtu", type=int, default=1500, help="of the cable; 4500: jumbo frames [1500]")
    options = parser.parse_args()
    console = Console(stderr=True)

    def tell(line: str) -> None:
        console.print(f"[dim]{line}[/dim]", highlight=False)

    results = measure(options.mtu, options.rounds, options.seconds, tell)
    path = RESULTS / f"hosts-{options.mtu}.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    DOCS.write_text(written(), encoding="utf-8")
    Console().print(Markdown(tables(results)))
    console.print(f"all rounds: {path.name}, tables: {DOCS.name}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
