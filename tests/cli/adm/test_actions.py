"""`aiordma adm drain`, `capture`, `faults` and `trace`, on running processes."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma.admin.messages import Devices, Packets, Warnings
from aiordma.admin.requests import Capture, Drain, Faults, Inspect
from aiordma.cli.adm.target import Target
from tests.admin.looking import ask_one, loops_of, rows
from tests.health import until
from tests.loops import LOOPS
from tests.processes import process
from tests.proto.test_packets import read
from tests.world import DEVICE

from ..debug_bundle.test_command import files
from ..debug_bundle.test_command import run as bundle
from ..terminal import terminal
from .test_command import ME, ROLE, answer, log, numbers, run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Process

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")


@pytest.fixture(scope="module")
def shared() -> Any:
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        yield other


def device(other: Process) -> Any:
    (row,) = rows(ask_one(other.pid), Devices)
    return row


# ---- draining


@pytest.mark.parametrize("loop", LOOPS)
def test_a_drained_process_goes_on_over_tcp(loop: str) -> None:
    with process(ROLE, loop, device=DEVICE, streams=3) as other:
        other.hear()
        done = run(other, "drain", "--wait", "30", "--reason", "new firmware")
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout == f"program.py[{other.pid}]: 6 connections leave, 0 stay until they are closed\n"
        row = device(other)
        assert (row.state, row.why, row.links) == ("drained", "new firmware", 0)
        assert len(numbers(other, path="tcp")) == 6
        other.say("echo")
        assert other.hear() == "echoed"
        other.say("another")
        path, reason = other.hear()
        assert (path, "drained on request" in reason) == ("tcp", True)
        refused = run(other, "switch", "rdma")
        assert refused.exit_code == 4
        assert "new firmware" in refused.stderr
        assert run(other, "drain", "--revoke").exit_code == 0
        assert run(other, "switch", "rdma").exit_code == 0
        anyio.run(until, lambda: len(numbers(other, path="rdma")) == 6)
        assert device(other).state == "open"
        other.say("another")
        assert other.hear() == ["rdma", None]
        assert any(f"all RDMA devices: drained, {ME}" in line for line in log(other))


def test_what_cannot_be_drained(shared: Process) -> None:
    done = run(shared, "drain", "mlx5_9")
    assert (done.exit_code, "there is no RDMA device 'mlx5_9' here: there is " in done.stderr) == (4, True)
    assert device(shared).state == "open"
    with process(ROLE, device="none-such", streams=1, plain=1) as other:
        other.hear()
        assert "this event loop has no RDMA engine" in run(other, "drain").stderr
    assert ask_one(shared.pid, Drain(("mlx5_9",), revoke=True)).state == "refused"


# ---- captures


def test_messages_for_wireshark(tmp_path: Path) -> None:
    path = tmp_path / "it.pcapng"
    with process(ROLE, device=DEVICE, streams=2) as other:
        other.hear()
        assert run(other, "capture", "stop", "-o", str(path)).exit_code == 4
        begun = run(other, "capture", "start", "--keep", "64")
        assert begun.stdout.endswith(": the last 65536 bytes of messages are kept, without payload\n")
        other.say("echo")
        assert other.hear() == "echoed"
        other.say("another")
        assert other.hear() == ["rdma", None]
        taken = run(other, "capture", "take", "-o", str(path))
        assert (taken.exit_code, taken.stderr.startswith(f"{path}: ")) == (0, True)
        assert path.stat().st_mode & 0o777 == 0o600
        assert run(other, "capture", "stop", "-o", str(path)).exit_code == 0
        assert f"a capture of messages has begun, without payload, {ME}" in log(other)
        assert f"the capture of messages has ended, {ME}" in log(other)
        assert ask_one(other.pid, Capture("take")).text.startswith("no capture runs")
        other.say("echo")
        assert other.hear() == "echoed"
    found = read(path, "frame.protocols", "smc.clc_msg", "infiniband.bth.opcode", "smc.llc_msg")
    assert not any("malformed" in row[0] for row in found)
    protocols = "\n".join(row[0] for row in found)
    assert "infiniband" in protocols
    assert "tcp" in protocols
    # WRITEs of payload, and CDC messages by SEND.
    assert {"10", "5"} <= {row[2] for row in found}
    data = path.read_bytes()
    assert b"again" not in data
    assert b"\xe2\xd4\xc3\xd9" in data


def test_a_capture_with_payload_that_ends_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "it.pcapng"
    with process(ROLE, device=DEVICE, streams=1) as other:
        other.hear()
        assert ask_one(other.pid, Capture("start", 1 << 20, payload=True)).state == "answered"
        other.say("echo")
        assert other.hear() == "echoed"
        assert b"again" in b"".join(row.data for row in rows(ask_one(other.pid, Capture("stop")), Packets))
        done = run(other, "capture", "-o", str(path), "--seconds", "0")
        assert (done.exit_code, path.exists()) == (0, True)
        assert ask_one(other.pid, Capture("take")).state == "refused"
        for wrong in (1, 1 << 40):
            assert "a capture keeps from 4096" in ask_one(other.pid, Capture("start", wrong)).text
    assert "-o FILE says where" in run(other, "capture").stderr


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_capture_and_its_messages_are_written(tmp_path: Path, sent: signal.Signals) -> None:
    path = tmp_path / "it.pcapng"
    with process(ROLE, device=DEVICE, streams=1) as other:
        other.hear()
        words = ("--pid", str(other.pid), "capture", "-o", str(path), "--seconds", "86400")
        with terminal("adm", *words) as screen:
            anyio.run(until, lambda: ask_one(other.pid, Capture("take")).state == "answered")
            screen.process.send_signal(sent)
            assert screen.end() == 0
        assert path.exists()
        assert ask_one(other.pid, Capture("take")).text.startswith("no capture runs")


def test_where_messages_cannot_be_written_no_capture_begins_or_ends(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none" / "it.pcapng")
    with process(ROLE, device=DEVICE, streams=1) as other:
        other.hear()
        done = run(other, "capture", "-o", nowhere, "--seconds", "0")
        assert (done.exit_code, f"cannot write {nowhere}: " in done.stderr) == (1, True)
        assert log(other) == []
        assert run(other, "capture", "start").exit_code == 0
        assert run(other, "capture", "stop", "-o", nowhere).exit_code == 1
        assert ask_one(other.pid, Capture("take")).state == "answered"


def test_a_capture_that_not_all_begin_runs_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "it.pcapng"
    with (
        process(ROLE, device=DEVICE, streams=1) as other,
        process(ROLE, device=DEVICE, streams=1) as blocked,
    ):
        other.hear()
        blocked.hear()
        both = [*loops_of(other.pid), *loops_of(blocked.pid)]
        monkeypatch.setattr(Target, "loops", lambda self, changes: both)
        blocked.say("sleep")
        assert blocked.hear() == "asleep"
        done = run(None, "capture", "-o", str(path), "--seconds", "0")
        assert (done.exit_code, path.exists()) == (3, False)
        assert f"program.py[{other.pid}]: the last " in done.stdout
        assert f"program.py[{blocked.pid}]: " in done.stderr
        blocked.say("wake up")
        assert blocked.hear() == "awake"
        for each in (other, blocked):
            assert ask_one(each.pid, Capture("take")).text.startswith("no capture runs")


def test_a_bundle_has_warnings_and_packets_and_no_payload(tmp_path: Path) -> None:
    path = tmp_path / "it.tgz"
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        run(other, "capture", "start")
        other.say("echo")
        assert other.hear() == "echoed"
        assert bundle("-o", str(path), "--pid", str(other.pid), "--no-doctor").exit_code == 0
    found = files(path)
    (packets,) = [data for name, data in found.items() if name.endswith("/packets.pcapng")]
    (inspected,) = [json.loads(data) for name, data in found.items() if name.endswith("/inspect.json")]
    assert [row["text"] for row in inspected["warnings"]] == [
        f"a capture of messages has begun, without payload, {ME}"
    ]
    assert packets.startswith(b"\x0a\x0d\x0d\x0a")
    # The streams' payload; the sources' lines that tasks wait in may have the word.
    assert b"again" not in packets + found["aiordma/stat.json"]
    shown = bundle("--read", str(path)).stdout
    assert f"warning {inspected['warnings'][0]['text'][:0]}" in shown
    assert "aiordma.admin: a capture of messages has begun" in shown
    assert f"{len(packets)} bytes for Wireshark" in shown


# ---- fault rules, tracing


def test_fault_rules() -> None:
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        name = f"program.py[{other.pid}]"
        assert run(other, "faults", "list").stdout == f"{name}: no fault rules\n"
        done = run(other, "faults", "add", "delay op=cdc ms=1", "delay op=llc p=0.5 ms=2")
        assert [line.partition(": ")[2][:2] for line in done.stdout.splitlines()] == ["1:", "2:"]
        other.say("echo")
        assert other.hear() == "echoed"
        (only,) = json.loads(run(other, "--json", "faults", "list").stdout)["processes"]
        assert only["rules"][0]["fired"] >= 4
        wrong = run(other, "faults", "add", "delay op=cdc ms=1", "explode op=cdc")
        assert (wrong.exit_code, "this is no fault rule" in wrong.stderr) == (4, True)
        missing = run(other, "faults", "remove", "1", "9")
        assert "there is no fault rule 9: there are 1, 2" in missing.stderr
        assert len(run(other, "faults", "remove", "1").stdout.splitlines()) == 1
        assert run(other, "faults", "remove").stdout == f"{name}: no fault rules\n"
        assert f"2 fault rules removed, 0 added, {ME}" not in log(other)
        assert f"1 fault rules removed, 0 added, {ME}" in log(other)
        assert run(other, "faults", "add").exit_code == 2
        assert run(other, "faults", "remove", "all").exit_code == 2
        assert ask_one(other.pid, Faults(add=("",))).state == "refused"


def test_tracing_and_the_watch_for_slow_things() -> None:
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        assert run(other, "trace", "start", "--slow-ms", "2").exit_code == 0
        settings = answer(other, "get")["settings"]
        names = ("trace_sample", "slow_request_us", "slow_handler_us", "slow_poll_us")
        assert [settings[name]["value"] for name in names] == [1, 2000, 2000, 2000]
        assert run(other, "trace", "stop").exit_code == 0
        settings = answer(other, "get")["settings"]
        assert all(settings[name]["value"] == settings[name]["default"] for name in names)
        # Each change is known afterwards, also to those who have no log.
        # (What the watch has seen in between, on a slow machine, is a warning, too.)
        texts = [row.text for row in rows(ask_one(other.pid, Inspect()), Warnings)]
        changes = [text for text in texts if text.startswith("settings changed")]
        assert [text.startswith(f"settings changed, {ME}: trace_sample") for text in changes] == [True, True]


@pytest.mark.skipif(DEVICE != "soft", reason="a second device is needed")
def test_streams_of_a_drained_device_move_to_another_one() -> None:
    with process(ROLE, device="soft", soft_devices=2, streams=3) as other:
        other.hear()
        found = {row.device: row for row in rows(ask_one(other.pid), Devices)}
        (used,) = [name for name, row in found.items() if row.links]
        (spare,) = set(found) - {used}
        done = run(other, "drain", used, "--wait", "30")
        assert (done.exit_code, done.stderr) == (0, "")
        anyio.run(until, lambda: len(numbers(other, path="rdma")) == 6)
        states = {row.device: (row.state, row.links) for row in rows(ask_one(other.pid), Devices)}
        assert states == {used: ("drained", 0), spare: ("open", 2)}
        other.say("echo")
        assert other.hear() == "echoed"
        other.say("another")
        assert other.hear() == ["rdma", None]
        # When the last one is drained, too, TCP is what is left; a device that is used again is found.
        assert run(other, "drain", spare, "--wait", "30").exit_code == 0
        other.say("another")
        assert other.hear()[0] == "tcp"
        assert run(other, "drain", "--revoke", used).exit_code == 0
        other.say("another")
        assert other.hear() == ["rdma", None]
