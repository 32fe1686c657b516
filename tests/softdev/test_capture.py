"""What the device writes down of its packets, as tshark reads it: conversations of long messages."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from .test_tools import pair

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

#: Operations of IBTA volume 1, table 38, with the transport's three bits.
SEND_MIDDLE, WRITE_ONLY, READ_REQUEST = 1, 10, 12
READ_FIRST, READ_MIDDLE, READ_LAST, ACK, ATOMIC_ACK, FETCH_ADD = 13, 14, 15, 17, 18, 20
UC_SEND_MIDDLE, UC_WRITE_FIRST, UC_WRITE_MIDDLE, UC_WRITE_LAST, UD_SEND_ONLY = 33, 38, 39, 40, 100

CONVERSATIONS = {
    "send": (["ibv_rc_pingpong", "-g", "0", "-n", "5", "-s", "10000", "-m", "1024"], {SEND_MIDDLE, ACK}),
    "write": (
        ["ib_write_bw", "-F", "-x", "0", "-n", "5", "-s", "10000", "-m", "1024"],
        {WRITE_ONLY, ACK},
    ),
    "write unreliably": (
        ["ib_write_bw", "-F", "-c", "UC", "-x", "0", "-n", "5", "-s", "10000", "-m", "1024"],
        {UC_WRITE_FIRST, UC_WRITE_MIDDLE, UC_WRITE_LAST},
    ),
    "read": (
        ["ib_read_bw", "-F", "-x", "0", "-n", "5", "-s", "10000", "-m", "1024"],
        {READ_REQUEST, READ_FIRST, READ_MIDDLE, READ_LAST},
    ),
    "atomic": (["ib_atomic_lat", "-F", "-x", "0", "-n", "5"], {FETCH_ADD, ATOMIC_ACK}),
    "unreliable": (["ibv_uc_pingpong", "-g", "0", "-n", "1", "-s", "10000", "-m", "1024"], {UC_SEND_MIDDLE}),
    "datagram": (["ibv_ud_pingpong", "-g", "0", "-n", "5", "-s", "500"], {UD_SEND_ONLY}),
}


def tshark(path: Path, *options: str) -> list[str]:
    """Its output. Payloads are not its to guess: what looks like another protocol would be read as that."""
    ports = "udp.port==24791-25814,infiniband"  # of processes that know each other's own
    command = [
        "tshark",
        "-d",
        ports,
        "--disable-protocol",
        "rpcordma",
        "-o",
        "ip.check_checksum:TRUE",
        "-r",
        str(path),
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "cut short" not in done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_tshark_reads_it(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tool, *options), wanted = CONVERSATIONS[name]
    monkeypatch.setenv("SOFTDEV_WIRE", "only")
    monkeypatch.setenv("SOFTDEV_CAPTURE", str(tmp_path / "%.pcapng"))
    pair(library, tool, *options)
    captures = list(tmp_path.glob("*.pcapng"))
    assert len(captures) == 2  # one of each end
    for capture in captures:
        opcodes = tshark(capture, "-T", "fields", "-e", "infiniband.bth.opcode")
        assert wanted <= {int(opcode) for opcode in opcodes}, capture
        bad = "!infiniband || _ws.malformed || _ws.expert.severity >= error || ip.checksum.status == 0"
        assert tshark(capture, "-Y", bad) == []
