"""Differentiated services of the device's packets: the program's, the environment's, and of notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .test_capture import tshark
from .test_tools import pair

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

NOTIFICATION = 129
WRITES = ["ib_write_bw", "-F", "-x", "0", "-n", "50", "-s", "65536", "-m", "1024"]


def classes(capture: Path) -> dict[bool, set[tuple[int, int]]]:
    """DSCP and ECN bits of packets, by whether they are notifications. What comes in has been marked
    on purpose, so only what goes out counts, which is what this end asked for."""
    found: dict[bool, set[tuple[int, int]]] = {False: set(), True: set()}
    fields = ("infiniband.bth.opcode", "ip.dsfield.dscp", "ip.dsfield.ecn")
    options = [part for field in fields for part in ("-e", field)]
    for line in tshark(capture, "-Y", "frame.packet_flags_direction == 2", "-T", "fields", *options):
        opcode, dscp, ecn = map(int, line.split())
        found[opcode == NOTIFICATION].add((dscp, ecn))
    return found


@pytest.mark.parametrize(
    ("environ", "options", "dscp", "notified"),
    [
        ({}, [], 46, 48),
        ({"SOFTDEV_DSCP": "26", "SOFTDEV_CNP_DSCP": "7"}, [], 26, 7),
        ({"SOFTDEV_DSCP": "26"}, ["--tclass=40"], 10, 48),
    ],
    ids=["usual", "environment", "program"],
)
def test_of_packets_and_notifications(
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    options: list[str],
    dscp: int,
    notified: int,
) -> None:
    monkeypatch.setenv("SOFTDEV_WIRE", "only")
    monkeypatch.setenv("SOFTDEV_CAPTURE", str(tmp_path / "%.pcapng"))
    monkeypatch.setenv("SOFTDEV_FAULTS", "wire_mark=0.2")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    tool, *arguments = WRITES
    pair(library, tool, *arguments, *options)
    found = [classes(capture) for capture in tmp_path.glob("*.pcapng")]
    assert len(found) == 2
    for end in found:
        assert end[False] == {(dscp, 2)}
    assert set.union(*[end[True] for end in found]) == {(notified, 2)}


@pytest.mark.parametrize("said", ["64", "-1", "46x", "9999999999999999999999"])
def test_nonsense_is_told_and_ignored(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("SOFTDEV_WIRE", "only")
    monkeypatch.setenv("SOFTDEV_DSCP", said)
    server, client = pair(library, "ib_write_lat", "-F", "-x", "0", "-n", "5")
    for printed in (server, client):
        assert (
            f'SOFTDEV_DSCP="{said}" is not understood, so it is 46; wanted: a number from 0 to 63' in printed
        )
