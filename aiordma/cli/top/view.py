"""A :class:`.rates.Top` as tables of rich, cut to the height of the terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..tables import NONE, bytes_text, clean, seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .rates import Top

Column = tuple[str, "Callable[[Any], object]"]
#: Lines that a table has besides its rows: its title, the titles of its columns, and an empty one.
_FRAME = 3


def _program(row: Any) -> str:
    return f"{row.program}[{row.pid}]"


def _count(value: float) -> str:
    return f"{value:.0f}" if value else ""


def _us(row: Any, value: float) -> str:
    return f"{value:.0f}us" if row.traced else ""


_PROCESSES: list[Column] = [
    ("PROGRAM", _program),
    ("LOOP", lambda row: row.loop),
    ("RDMA", lambda row: row.on_rdma),
    ("TCP", lambda row: row.on_tcp or ""),
    ("OUT/S", lambda row: bytes_text(row.sent_per_s)),
    ("IN/S", lambda row: bytes_text(row.received_per_s)),
    ("CALLS/S", lambda row: _count(row.calls_per_s)),
    ("COMPLETIONS/S", lambda row: _count(row.completions_per_s)),
    ("SLOW-POLLS", lambda row: _count(row.slow_polls)),
    ("SLOWEST", lambda row: f"{row.slowest_poll_us / 1e3:.1f}ms" if row.slow_polls else ""),
    ("SLOW-CALLS", lambda row: _count(max(row.slow_requests, row.slow_handlers))),
    ("LEAKS", lambda row: _count(row.leaks)),
    ("STATE", lambda row: row.state if row.state == "answered" else f"{row.state.upper()}: {row.text}"),
]
_CONNECTIONS: list[Column] = [
    ("PROGRAM", _program),
    ("NO", lambda row: row.number),
    ("KIND", lambda row: row.kind),
    ("LOCAL", lambda row: row.local),
    ("REMOTE", lambda row: row.remote),
    ("MODE", lambda row: row.mode),
    ("OUT/S", lambda row: bytes_text(row.sent_per_s)),
    ("IN/S", lambda row: bytes_text(row.received_per_s)),
    ("WAITING", lambda row: bytes_text(row.waiting_bytes) if row.waiting_bytes else ""),
    ("BLOCKED", lambda row: _count(row.blocked)),
    ("FOR", lambda row: seconds_text(row.blocked_s) if row.blocked_s else ""),
]
_LINKS: list[Column] = [
    ("PROGRAM", _program),
    ("DEVICE", lambda row: row.device),
    ("PEER", lambda row: row.peer),
    ("STATE", lambda row: row.state),
    ("CONNS", lambda row: row.connections),
    ("WRITTEN/S", lambda row: bytes_text(row.written_per_s)),
    ("MSGS/S", lambda row: _count(row.messages_per_s)),
    ("WAITS", lambda row: _count(row.waits)),
]
_METHODS: list[Column] = [
    ("PROGRAM", _program),
    ("SIDE", lambda row: row.side),
    ("METHOD", lambda row: row.method),
    ("CALLS/S", lambda row: _count(row.calls_per_s)),
    ("IN-FLIGHT", lambda row: _count(row.in_flight)),
    ("ERRORS", lambda row: f"{row.errors} (+{row.new_errors})" if row.new_errors else row.errors or ""),
    ("P50", lambda row: _us(row, row.p50_us)),
    ("P99", lambda row: _us(row, row.p99_us)),
    ("MAX", lambda row: _us(row, row.max_us)),
]
_FALLBACKS: list[Column] = [
    ("PROGRAM", _program),
    ("CONNS", lambda row: row.connections),
    ("NEW", lambda row: f"+{row.new}" if row.new else ""),
    ("WHEN", lambda row: row.when),
    ("MODE", lambda row: row.mode),
    ("REASON", lambda row: row.text),
]
_LEFT = {"PROGRAM", "LOOP", "STATE", "KIND", "LOCAL", "REMOTE", "MODE", "DEVICE", "PEER"}
_LEFT |= {"SIDE", "METHOD", "WHEN", "REASON"}
_SENTENCES = {"STATE", "REASON"}


def _table(title: str, columns: list[Column], rows: Sequence[Any], most: int) -> Table:
    more = f" ({len(rows) - most} more)" if len(rows) > most else ""
    table = Table(title=title + more, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    cells = [[clean(str(text(row))) for _, text in columns] for row in rows[:most]]
    for name, _ in columns:
        side: Literal["left", "right"] = "left" if name in _LEFT else "right"
        # Where the terminal is too narrow, sentences give way, and numbers do not.
        ratio = 1 if name in _SENTENCES else None
        table.expand = table.expand or ratio is not None
        table.add_column(name, justify=side, no_wrap=True, overflow="ellipsis", ratio=ratio)
    for row in cells:
        table.add_row(*map(Text, row))  # as text: names of other processes are no markup
    return table


def _shares(sizes: list[int], height: int) -> list[int]:
    """How many rows each table may have, so that all fit: what one does not need is the others'."""
    shares = [0] * len(sizes)
    left = max(len(sizes), height)
    while left and any(share < size for share, size in zip(shares, sizes, strict=True)):
        for index, size in enumerate(sizes):
            if left and shares[index] < size:
                shares[index] += 1
                left -= 1
    return shares


def render(top: Top, height: int) -> Group:
    """All tables that have rows."""
    on_rdma = sum(each.on_rdma for each in top.processes)
    on_tcp = sum(each.on_tcp for each in top.processes)
    out = sum(each.sent_per_s for each in top.processes)
    into = sum(each.received_per_s for each in top.processes)
    head = Text(
        f"{time.strftime('%H:%M:%S', time.localtime(top.taken_at))}  {len(top.processes)} event loops, "
        f"{on_rdma} connections on RDMA, {on_tcp} on TCP, {bytes_text(out)}/s out, {bytes_text(into)}/s in",
        style="bold",
    )
    sections: list[tuple[str, list[Column], Sequence[Any]]] = [
        ("PROCESSES", _PROCESSES, top.processes),
        ("BUSIEST CONNECTIONS", _CONNECTIONS, top.connections),
        ("BUSIEST LINKS", _LINKS, top.links),
        ("SLOWEST CALLS", _METHODS, top.methods),
        ("FALLBACKS", _FALLBACKS, top.fallbacks),
    ]
    shown = [section for section in sections if section[2]]
    shares = _shares([len(rows) for _, _, rows in shown], height - 2 - _FRAME * len(shown))
    parts: list[Any] = [head]
    for (title, columns, rows), most in zip(shown, shares, strict=True):
        parts += [Text(""), _table(title, columns, rows, most)]
    if not top.processes:
        parts.append(Text(NONE))
    return Group(*parts)
