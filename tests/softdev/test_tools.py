"""Unmodified verbs programs on the software device: ibverbs-utils and perftest, two processes each."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.processes import FULL_PATIENCE
from tests.roles import free_port
from tests.tools import listening, perftest, run_pair

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

LIMIT = FULL_PATIENCE  # to end a hang


def environment(library: Path) -> dict[str, str]:
    return {**os.environ, "LD_PRELOAD": str(library)}


def run(library: Path, *arguments: str) -> str:
    done = subprocess.run(
        arguments, env=environment(library), capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pair(library: Path, tool: str, *options: str) -> tuple[str, str]:
    """Run server and client of a tool; both must end well. Returns what they printed."""
    port = free_port()
    command = [tool, "-p", str(port), "-d", "soft0", *options]
    return run_pair(
        command,
        [*command, "127.0.0.1"],
        environ=environment(library),
        ready=lambda pid: listening(pid, port),
        limit=LIMIT,
    )


def test_devices(library: Path) -> None:
    assert "soft0" in run(library, "ibv_devices")


def test_devinfo(library: Path) -> None:
    out = run(library, "ibv_devinfo", "-v")
    assert re.search(r"hca_id:\s*soft0", out)
    assert re.search(r"state:\s*PORT_ACTIVE", out)
    assert re.search(r"GID\[ *0\]:\s*\S+, RoCE v2", out)
    assert "nvalid" not in out


@pytest.mark.parametrize(
    ("second", "wrong"),
    [
        ('at = "1s"\nport = "dwn"', "fault 2: port=dwn: wanted: down or up"),
        ('at = "1s"', "fault 2: at= of what?"),
        ('port = "down"\nport = "up"', "fault 2: port: twice"),
        ("]\nmtu = 512", "fault 2: ]: here should be a word"),
    ],
    ids=["value", "nothing", "twice", "no word"],
)
def test_a_plan_with_a_mistake(library: Path, tmp_path: Path, second: str, wrong: str) -> None:
    """What is wrong is said, and in which fault of the plan. None of the plan is made."""
    plan = tmp_path / "plan.toml"
    plan.write_text(f"[[fault]]\nmtu = 256\n[[fault]]\n{second}\n")
    environ = {**environment(library), "SOFTDEV_FAULTS": f"@{plan}"}
    done = subprocess.run(
        ["ibv_devinfo"], env=environ, capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert wrong in done.stderr
    assert not re.search(r"active_mtu:\s*256", done.stdout)


def test_hidden_device(library: Path) -> None:
    environ = {**environment(library), "SOFTDEV_DEVICE": "none"}
    done = subprocess.run(
        ["ibv_devices"], env=environ, capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert "soft0" not in done.stdout


@pytest.mark.parametrize("events", [(), ("-e",)], ids=["polling", "events"])
@pytest.mark.parametrize("tool", ["rc", "uc", "ud", "srq"])
def test_pingpong(library: Path, tool: str, events: tuple[str, ...]) -> None:
    """-c: the server checks every received byte.

    With more than one queue pair the end that has its 500 first leaves while the other still sends on some;
    that one may hear of it before it has counted its own.
    """
    lone = ("-q", "1") if tool == "srq" else ()
    server, client = pair(library, f"ibv_{tool}_pingpong", "-g", "0", "-n", "500", "-c", *events, *lone)
    for out in (server, client):
        assert "500 iters in" in out, out
        assert "nvalid data" not in out, out


def test_pingpong_sizes(library: Path) -> None:
    for size in ("1", "65536", "1048576"):
        server, _ = pair(library, "ibv_rc_pingpong", "-g", "0", "-n", "20", "-c", "-s", size)
        assert "20 iters in" in server


def test_pingpong_new_post_send(library: Path) -> None:
    server, _ = pair(library, "ibv_rc_pingpong", "-g", "0", "-n", "200", "-c", "-N")
    assert "200 iters in" in server


def test_pingpong_every_gid(library: Path) -> None:
    """Every address of this host leads to it."""
    indices = re.findall(r"GID\[ *(\d+)\]:", run(library, "ibv_devinfo", "-v"))
    assert indices
    for index in indices:
        for tool in ("rc", "ud"):
            server, _ = pair(library, f"ibv_{tool}_pingpong", "-g", index, "-n", "50", "-c")
            assert "50 iters in" in server


PERFTEST = [
    *[(f"ib_{verb}_{what}", "RC") for verb in ("send", "write", "read") for what in ("lat", "bw")],
    *[("ib_atomic_lat", "RC"), ("ib_atomic_bw", "RC")],
    *[("ib_send_lat", "UD"), ("ib_send_bw", "UD")],
    *[("ib_send_lat", "UC"), ("ib_send_bw", "UC"), ("ib_write_lat", "UC"), ("ib_write_bw", "UC")],
]


#: Posted with ibv_wr_...(), and with ibv_post_send(), where those that post many at once are enough.
#: Both ends of a latency test poll, which takes seconds where there are few CPUs; unreliable connections are
#: no others here.
POSTED = [
    pytest.param(*row, (), marks=pytest.mark.long if row[0].endswith("_lat") and row[1] == "UC" else ())
    for row in PERFTEST
] + [(*row, ("--use_old_post_send",)) for row in PERFTEST if row[0].endswith("_bw")]


def posted_id(value: str | tuple[str, ...]) -> str:
    return value.removeprefix("ib_") if isinstance(value, str) else "post_send" if value else "wr"


@pytest.mark.parametrize(("tool", "kind", "old"), POSTED, ids=posted_id)
def test_perftest(library: Path, tool: str, kind: str, old: tuple[str, ...]) -> None:
    options = ["-n", "200", "-F", "-c", kind, *old]
    server, client = perftest(lambda: pair(library, tool, *options))
    # A line of results: size and iterations first, a positive number behind each.
    rows = re.findall(r"^ *(\d+) +200 +(\d+\.\d+)", client, re.MULTILINE)
    assert rows, client + server
    assert all(float(value) > 0 for _, value in rows)


@pytest.mark.parametrize("tool", ["ib_send_bw", "ib_read_lat", "ib_atomic_lat"])
def test_perftest_events(library: Path, tool: str) -> None:
    _, client = pair(library, tool, "-n", "200", "-F", "-e")
    assert re.search(r"^ *\d+ +200 ", client, re.MULTILINE), client


@pytest.mark.parametrize("wire", ["auto", "only"])
def test_what_is_asked_completes_before_its_answer(
    library: Path, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by packets, where the acknowledgement travels with the answer of a program that was woken.

    The tool takes the next event for one of its send queue, and reads the entry whether it is there or not.
    """
    monkeypatch.setenv("SOFTDEV_WIRE", wire)
    _, client = pair(library, "ib_send_lat", "-n", "3000", "-F", "-e")
    assert re.search(r"^ *\d+ +3000 ", client, re.MULTILINE), client


@pytest.mark.parametrize("size", ["1", "8388608"])
@pytest.mark.parametrize("tool", ["ib_send_bw", "ib_write_bw", "ib_read_bw"])
def test_perftest_both_ways(library: Path, tool: str, size: str) -> None:
    """The smallest and the largest message, in both directions at once."""
    _, client = pair(library, tool, "-s", size, "-b", "-n", "8", "-F")
    assert re.search(rf"^ *{size} +8 ", client, re.MULTILINE), client


def test_perftest_shared_receive_queue_and_many_qps(library: Path) -> None:
    _, client = pair(library, "ib_send_bw", "-n", "200", "-F", "-q", "8", "--use-srq")
    assert re.search(r"^ *\d+ +1600 ", client, re.MULTILINE), client
