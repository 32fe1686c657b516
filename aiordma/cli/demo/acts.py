"""The four acts of the demo: two plain programs, latencies, a link that is cut, and what an operator sees."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from typing import IO, TYPE_CHECKING

from ...measure.socket_folder import socket_folder
from .bars import bars, table
from .processes import output_of, start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HERE = Path(__file__).parent
_PLAIN: tuple[str, ...] = ()
_RUN = ("-m", "aiordma", "run")
_ROUNDS = 2

#: Carriers of carriers.py, by what they carry, with their names in the table.
_CARRIERS = {
    "64 B": {
        "tcp": "TCP, asyncio streams",
        "unix": "Unix socket, asyncio streams",
        "stream": "aiordma stream",
    },
    "typed call": {
        "msgpack-tcp": "TCP, MessagePack on asyncio streams",
        "msgpack-unix": "Unix socket, MessagePack on asyncio streams",
        "calls": "aiordma call",
    },
}


def plain_programs(say: Callable[[str], None], seconds: float) -> None:
    """Two plain asyncio programs, by turns as they are and under `aiordma run`.

    :param seconds: of each measurement.
    :raises click.ClickException: a program failed.
    """
    found: dict[tuple[str, ...], list[tuple[float, float]]] = {_PLAIN: [], _RUN: []}
    report = ""
    for _ in range(_ROUNDS):
        for how, results in found.items():
            with start([*how, str(_HERE / "service.py")]) as service:
                port = service.readline().strip()
                told = [*how, "--report"] if how else []
                printed, errors = output_of([*told, str(_HERE / "customer.py"), port, str(seconds)])
            requests, rate = map(float, printed.split())
            results.append((requests, rate))
            report = errors if how else report
    medians = [tuple(median(column) for column in zip(*results, strict=True)) for results in found.values()]
    names = ("python service.py", "aiordma run service.py")
    for index, title, text in (
        (0, "requests a second, one at a time", "{:,.0f} /s"),
        (1, "upload", "{:.2f} GB/s"),
    ):
        scale = 1e9 if index else 1
        say(f"  {title}")
        numbers = [row[index] / scale for row in medians]
        say("\n".join(bars([(name, n, text.format(n)) for name, n in zip(names, numbers, strict=True)])))
    say(_path_of(report))


def _path_of(report: str) -> str:
    """What `aiordma run --report` of the client said about its connection."""
    lines = [line.strip() for line in report.splitlines() if re.match(r"\s+(rdma|tcp) ", line)]
    if lines and all(line.startswith("rdma ") for line in lines):
        return "  `aiordma run --report` of the client: its connection used RDMA."
    return "  RDMA was NOT used: " + ("; ".join(lines) or report.strip() or "no report")


def round_trips(say: Callable[[str], None], seconds: float) -> None:
    """One message there and back between two processes, on each carrier: asleep, awake, and what it costs.

    :param seconds: of each measurement.
    :raises click.ClickException: a program failed.
    """
    head = ("", "both sleep", "both awake", "CPU, asleep", "CPU, awake")
    with socket_folder("aiordma-demo-", "msgpack-unix.asleep") as folder:
        for what, carriers in _CARRIERS.items():
            rows: list[Sequence[str]] = []
            for carrier, name in carriers.items():
                asleep, awake = (_round_trip(carrier, how, folder, seconds) for how in ("asleep", "awake"))
                rows.append(
                    (name, *(f"{number:,.1f} us" for number in (asleep[0], awake[0], asleep[1], awake[1])))
                )
            say("\n".join(table((what, *head[1:]), rows)))
            say("")


def _round_trip(carrier: str, how: str, folder: str, seconds: float) -> tuple[float, float]:
    """Microseconds: the median of a round trip, and the processor time of both ends for one."""
    program = ("-m", f"{__package__}.carriers")
    path = str(Path(folder, f"{carrier}.{how}"))
    with start([*program, "serve", carrier, how, path]) as server:
        port = server.readline().strip()
        printed, _ = output_of([*program, "ask", carrier, how, path, port, str(seconds)])
    took, used = map(float, printed.split())
    return took, used


def link_cut(say: Callable[[str], None]) -> None:
    """A transfer whose link is cut in the middle, seen by `aiordma stat`, and moved back by `aiordma adm`.

    :raises click.ClickException: a program failed.
    """
    program = ("-m", f"{__package__}.cut")
    with start([*program, "receive"]) as receiver:
        port = receiver.readline().strip()
        with start([*program, "send", port]) as sender:
            pid = sender.readline().strip()
            sent = _follow(sender, pid, say)
        came = receiver.readline().strip()
    if came != sent:
        raise RuntimeError(f"sent {sent}, and came {came}")  # never seen; it would be the end of the demo
    size, digest = sent.split()
    say(
        f"  {int(size):,} bytes were sent and received, and both ends have the same SHA-256: {digest[:16]}..."
    )


def _follow(sender: IO[str], pid: str, say: Callable[[str], None]) -> str:
    """Say what happens to the sender, and do an operator's part. Returns its last line."""
    for line in sender:
        if line[0] == "=":
            return line[1:].strip()
        seconds, size, what = line.split()
        say(f"  {float(seconds):6.2f} s  {int(size) >> 20:4} MiB sent  {_EVENTS[what]}")
        if what == "tcp":
            say(f"\n  $ aiordma stat --pid {pid}")
            shown, _ = output_of(("-m", "aiordma", "stat", "--pid", pid))
            say("\n".join(f"  {line}" for line in shown.splitlines()))
            say(f"\n  $ aiordma adm --pid {pid} switch rdma\n")
            output_of(("-m", "aiordma", "adm", "--pid", pid, "switch", "rdma"))
    return ""


_EVENTS = {
    "rdma": "the stream uses RDMA",
    "cut": "now the link is cut",
    "tcp": "the stream goes on by TCP",
    "back": "the stream uses RDMA again",
    "end": "the end",
}
