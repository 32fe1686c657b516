"""The leaks of ``aiordma stat --leaks``: what programs have forgotten, and where it was created."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..tables import Column, bytes_text, clean, seconds_text, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...admin.messages import Leak
    from ...admin.report import Process, Report

Row = tuple["Process", "Leak"]


def _state(leak: Leak) -> str:
    return "open" if leak.open else "reclaimed" if leak.reclaimed else "over"


def leak_lines(report: Report) -> Iterator[str]:
    """A table, then the places where they were created, then what to do if these are not known."""
    rows: list[Row] = [(process, leak) for process in report.processes for leak in process.leaks or ()]
    columns = [
        Column("PROGRAM", lambda row: f"{row[0].program}[{row[0].pid}]"),
        Column("KIND", lambda row: row[1].kind),
        Column("STATE", lambda row: _state(row[1])),
        Column("FOUND", lambda row: f"{seconds_text(max(0.0, report.taken_at - row[1].found_at))} ago", True),
        Column("LASTED", lambda row: seconds_text(row[1].lasted_s) if row[1].lasted_s else "", True),
        Column("HOLDS", lambda row: bytes_text(row[1].held_bytes) if row[1].held_bytes else "", True),
        Column("WHAT", lambda row: row[1].what),
    ]
    yield from table(columns, rows)
    places: dict[tuple[str, ...], int] = {}
    for _, leak in rows:
        if leak.where:
            places[tuple(leak.where)] = places.get(tuple(leak.where), 0) + 1
    for frames, count in sorted(places.items(), key=lambda item: -item[1]):
        yield f"{count} created at"
        yield from (f"  {clean(frame)}" for frame in frames)
    if any(not leak.where for _, leak in rows):
        yield "AIORDMA_LEAK_FRAMES=8 (or `aiordma adm set leak_frames=8`) records where the next are created"
    there = sum(leak.open for _, leak in rows)
    yield f"{there} leaks are open, {len(rows) - there} are over"
