"""Write results as Markdown, for the documentation and for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from . import waiting
from .goals import goals_table
from .markdown import number, table
from .summary import Summary
from .targets import verdicts
from .wire import RATES as WIRE_RATES
from .wire import TIMES
from .workloads.load import RATES

BASE = "tcp-uvloop"

THROUGHPUT_NOTE = """\
Median over the rounds, [smallest-largest], (ratio to uvloop TCP streams, share of one warm `memcpy`);
CPU: sender's + receiver's. A receiver that returns `bytes` of up to 256 KiB pays page faults for them or not,
depending on the layout of its heap, and some CPUs copy ten times more slowly between certain addresses
(aiordma's own copies avoid those), so some rows differ much from round to round. "Memory kept" is the
same with glibc configured, in all processes, to keep freed memory.
"""


PERFTEST_TITLES = {
    "posix": "UCX streams in C, shared memory",
    "cma": "UCX streams in C, process_vm_readv",
}


LOAD_NOTE = """\
64 B, due at a fixed rate whether or not earlier ones were answered; times count from when a message was due:
p50 / p99 / p99.9 in microseconds, and the server's CPU time for each. A row ends where a peer cannot keep up.
"""


CALLS_NOTE = """\
Unary calls that echo bytes, on one connection: p50 / p99 of one call at a time in microseconds, and calls per
second with 64 in flight.
"""


ORDERS_NOTE = """\
A message of fields and a list of ten more (some 600 bytes), built for each call, packed, checked, added up by
the handler and answered by a receipt: by aiordma's typed calls (msgpack), by msgpack and pyzmq with the same
types, by protobuf on gRPC, by pickle on Ray. p50 / p99 and the client's CPU time of one call at a time in
microseconds, and calls per second with 64 in flight.
"""


WIRE_NOTE = """\
The software device through UDP sockets, by perftest, beside plain sockets: over loopback, or over a cable
(veth) between two network namespaces. Median over the rounds, [smallest-largest].
"""


def markdown(results: dict[str, Any]) -> str:
    """A section for each kind of work that was measured."""
    summary = Summary(results)
    parts = [_machine(results), "## Targets\n", _targets(summary)]
    if any(summary.peers(workload) for workload in ("throughput", "calls")):
        parts += ["## Goals\n", goals_table(summary)]
    for workload, title, note, show in _SECTIONS:
        if summary.peers(workload) or (workload == "wire" and "wire" in results):
            parts += [f"## {title}\n", note, show(summary)]
    if problems := summary.problems():
        parts += ["## Not measured\n", *(f"* {title}: {'; '.join(said)}" for title, said in problems.items())]
    return "\n".join(parts).rstrip() + "\n"


def _machine(results: dict[str, Any]) -> str:
    machine = results["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items() if version)
    revision = machine["revision"] or "unknown"
    if machine["modified"]:
        revision += " with local changes"
    kind = "virtual machine" if machine["virtual"] else "machine"
    return (
        f"{machine['cpu']}, {machine['cpus']} CPUs ({kind}), {machine['system']}, kernel {machine['kernel']},"
        f" Python {machine['python']}; {packages}; revision {revision}."
        f"{' Device: ' + results['device'] + '.' if results.get('device') else ''}"
        f" {results['rounds']} rounds of {results['slice_seconds']:g} s a number,"
        f" load before: {machine['load_before']:.1f}.\n"
    )


def _targets(summary: Summary) -> str:
    words = {True: "yes", False: "**no**", None: "-"}
    rows = [[v.work, v.against, v.demanded, v.measured, words[v.reached]] for v in verdicts(summary)]
    return table(["work", "against", "at least", "measured", "reached"], rows)


def _roundtrips(summary: Summary) -> str:
    sizes = ("64", "4096", "65536")
    rows = []
    for peer in summary.peers("roundtrip"):
        row = [summary.title(peer)]
        for size in sizes:
            p50 = summary.value(peer, "roundtrip", size, "p50_us")
            p99 = summary.value(peer, "roundtrip", size, "p99_us")
            base = summary.value(BASE, "roundtrip", size, "p50_us")
            ratio = f" ({base / p50:.1f}x)" if base and p50 else ""
            row.append(f"{number(p50)} / {number(p99)}{ratio}")
        rows.append(row)
    return table(["", "64 B", "4 KiB", "64 KiB"], rows)


def _load(summary: Summary) -> str:
    rows = []
    for peer in summary.peers("load"):
        row = [summary.title(peer)]
        for rate in RATES:
            keys = ("p50_us", "p99_us", "p999_us", "server_cpu_us")
            *times, cpu = (summary.value(peer, "load", str(rate), key) for key in keys)
            row.append("-" if cpu is None else f"{' / '.join(map(number, times))}; {number(cpu)}")
        rows.append(row)
    return table(["", *(f"{rate:,}/s" for rate in RATES)], rows)


def _throughput(summary: Summary) -> str:
    rows = []
    for peer in summary.peers("throughput"):
        row = [summary.title(peer)]
        for workload in ("throughput", "throughput_kept"):
            rates = summary.rounds(peer, workload, "gigabytes_per_second")
            if not rates:
                row += ["-", "-"]
                continue
            rate, base = statistics.median(rates), summary.value(BASE, workload, "gigabytes_per_second")
            beside = [f"{rate / base:.1f}x"] if base else []
            if copies := summary.copies("warm"):
                beside.append(f"{rate / copies:.0%}")
            shown = f" ({', '.join(beside)})" if beside else ""
            row.append(f"{rate:.2f} [{min(rates):.2f}-{max(rates):.2f}]{shown}")
            cpu = [summary.value(peer, workload, f"{side}_cpu_ns_per_kib") for side in ("client", "server")]
            row.append(" + ".join(number(value, ".0f") for value in cpu))
        rows.append(row)
    for transport, title in PERFTEST_TITLES.items():
        if rates := summary.perftest(transport):
            rate, copies = statistics.median(rates), summary.copies("warm")
            share = f" ({rate / copies:.0%})" if copies else ""
            rows.append(
                [title, f"{rate:.2f} [{min(rates):.2f}-{max(rates):.2f}]{share}", "both spin", "-", "-"]
            )
    cpu_title = "CPU, ns/KiB"
    found = table(["", "GB/s", cpu_title, "GB/s, memory kept", cpu_title], rows)
    if (warm := summary.copies("warm")) and (cold := summary.copies("cold")):
        found += (
            f"\nOne `memcpy` of 1 MiB by one process: {warm:.1f} GB/s within the caches,"
            f" {cold:.1f} GB/s from memory to memory.\n"
        )
    return found


def _setup(summary: Summary) -> str:
    keys = ("connect_p50_us", "connect_p99_us", "answered_p50_us", "first_us")
    rows = [
        [summary.title(peer), *(number(summary.value(peer, "setup", key), ".0f") for key in keys)]
        for peer in summary.peers("setup")
    ]
    return table(["", "connect p50", "connect p99", "answered p50", "first"], rows)


def _connections(summary: Summary) -> str:
    counts = ("1", "10", "100", "1000")
    rows = []
    for peer in summary.peers("connections"):
        row = [summary.title(peer)]
        for count in counts:
            rate = summary.value(peer, "connections", count, "per_second")
            p99 = summary.value(peer, "connections", count, "p99_us")
            row.append("-" if rate is None else f"{rate:,.0f} / {number(p99, '.0f')}")
        rows.append(row)
    return table(["", *(f"{count} conn." for count in counts)], rows)


def _memory(summary: Summary) -> str:
    keys = (
        "client_anonymous_bytes",
        "client_shared_bytes",
        "server_anonymous_bytes",
        "server_shared_bytes",
    )
    rows = []
    for peer in summary.peers("memory"):
        values = [summary.value(peer, "memory", key) for key in keys]
        rows.append([summary.title(peer), *(number(None if v is None else v / 1024) for v in values)])
    return table(["", "client, anonymous", "client, shared", "server, anonymous", "server, shared"], rows)


def _calls(summary: Summary) -> str:
    sizes = ("64", "4096", "1048576")
    rows = []
    for peer in summary.peers("calls"):
        row = [summary.title(peer)]
        for size in sizes:
            p50 = summary.value(peer, "calls", size, "p50_us")
            p99 = summary.value(peer, "calls", size, "p99_us")
            rate = summary.value(peer, "calls", size, "per_second")
            row += [f"{number(p50)} / {number(p99)}", number(rate, ",.0f")]
        rows.append(row)
    return table(["", "64 B", "in flight", "4 KiB", "in flight", "1 MiB", "in flight"], rows)


def _orders(summary: Summary) -> str:
    rows = []
    for peer in summary.peers("orders"):
        p50, p99, rate, cpu = (
            summary.value(peer, "orders", key) for key in ("p50_us", "p99_us", "per_second", "client_cpu_us")
        )
        rows.append(
            [summary.title(peer), f"{number(p50)} / {number(p99)}", number(cpu), number(rate, ",.0f")]
        )
    return table(["", "one at a time", "client's CPU", "64 in flight"], rows)


def _call_streams(summary: Summary) -> str:
    rows = []
    for peer in summary.peers("call_streams"):
        row = [summary.title(peer)]
        for size in ("64", "65536"):
            items = summary.value(peer, "call_streams", size, "items_per_second")
            rate = summary.value(peer, "call_streams", size, "gigabytes_per_second")
            row.append(f"{number(items, ',.0f')} ({number(rate, '.2f')})")
        rows.append(row)
    return table(["", "64 B", "64 KiB"], rows)


def _beside_bulk(summary: Summary) -> str:
    rows = []
    for peer in summary.peers("calls_beside_bulk"):
        row = [summary.title(peer)]
        for which in ("same", "own"):
            p50 = summary.value(peer, "calls_beside_bulk", which, "p50_us")
            p99 = summary.value(peer, "calls_beside_bulk", which, "p99_us")
            rate = summary.value(peer, "calls_beside_bulk", which, "bulk_gigabytes_per_second")
            row += [f"{number(p50, '.0f')} / {number(p99, '.0f')}", number(rate, ".2f")]
        rows.append(row)
    return table(["", "same connection", "bulk", "connection of its own", "bulk"], rows)


def _datagrams(summary: Summary) -> str:
    rows = []
    for peer in summary.peers("datagrams"):
        row = [summary.title(peer)]
        for size in ("64", "1024"):
            rate = summary.value(peer, "datagrams", size, "per_second")
            lost = summary.value(peer, "datagrams", size, "lost_percent")
            p50 = summary.value(peer, "datagrams", size, "p50_us")
            p99 = summary.value(peer, "datagrams", size, "p99_us")
            row += [f"{number(rate, ',.0f')} ({number(lost, '.0f')} %)", f"{number(p50)} / {number(p99)}"]
        rows.append(row)
    return table(["", "64 B", "round trip", "1 KiB", "round trip"], rows)


def _wire(summary: Summary) -> str:
    measured = summary.results.get("wire", {"found": {}, "missing": {}})
    rows = []
    for kinds, factor, unit, form in ((WIRE_RATES, 1e-9, "GB/s", ".2f"), (TIMES, 1e6, "us", ".1f")):
        for name, (title, _) in kinds.items():
            values = [value * factor for value in measured["found"].get(name, [])]
            if values:
                low, middle, high = (
                    format(value, form) for value in (min(values), statistics.median(values), max(values))
                )
                rows.append([title, f"{middle} {unit} [{low}-{high}]"])
            else:
                rows.append([title, f"- {measured['missing'].get(name, '')}".rstrip()])
    return table(["", "measured"], rows)


_SECTIONS: tuple[tuple[str, str, str, Callable[[Summary], str]], ...] = (
    (
        "roundtrip",
        "Round trips",
        "Median over the rounds of each round's p50 / p99, in microseconds; in brackets how many times faster"
        " than uvloop TCP streams (p50).\n",
        _roundtrips,
    ),
    ("roundtrip", "Asleep and awake", waiting.NOTE, waiting.tables),
    ("load", "Round trips at fixed rates", LOAD_NOTE, _load),
    ("throughput", "1 MiB sends", THROUGHPUT_NOTE, _throughput),
    (
        "setup",
        "Opening connections",
        "`connect`: until the stream is open. `answered`: until a first 64 B round trip on it has completed."
        " `first`: the very first connection of the process. Microseconds.\n",
        _setup,
    ),
    (
        "connections",
        "Many connections",
        "64 B round trips per second over all connections between two processes, and p99 in microseconds.\n",
        _connections,
    ),
    (
        "memory",
        "Memory of an idle stream",
        "KiB for each process. Shared: the rings on the software device. Anonymous: everything else.\n",
        _memory,
    ),
    ("calls", "Calls", CALLS_NOTE, _calls),
    ("orders", "Calls with a message", ORDERS_NOTE, _orders),
    (
        "call_streams",
        "Streaming calls",
        "Items per second that a server streams to one caller; in brackets GB/s.\n",
        _call_streams,
    ),
    (
        "calls_beside_bulk",
        "Small calls beside bulk",
        "64 B calls, one at a time, while four 1 MiB calls keep a connection busy: p50 / p99 in microseconds,"
        " on that connection and on a separate one, and the GB/s of the bulk calls meanwhile.\n",
        _beside_bulk,
    ),
    (
        "datagrams",
        "Datagrams",
        "To one peer, sent at full rate: how many arrive per second and, in brackets, how many are lost;"
        " then p50 / p99 of a round trip in microseconds.\n",
        _datagrams,
    ),
    ("wire", "The RoCEv2 wire", WIRE_NOTE, _wire),
)
