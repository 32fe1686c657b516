"""`aiordma doctor` names the first thing that is missing, and what to do about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import jsonschema
import pytest

import aiordma
from aiordma import rpc
from tests.world import DEVICE, pyverbs_is_here

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

HIDDEN = 'import sys; sys.path = [each for each in sys.path if not each.endswith("dist-packages")]'
ALONE = "from aiordma.cli.main import main; main(prog_name='aiordma')"
STEPS = [
    "Python",
    "compiled modules",
    "pyverbs",
    "libibverbs",
    "kernel devices",
    "GIDs",
    "MTU",
    "locked memory",
    "software device",
    "settings",
    "private APIs",
    "port 4791",
    "namespaces",
    "DSCP and PFC",
    "kernel SMC-R",
    "device",
    "round trip",
]


def run(*arguments: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"{before}\n{ALONE}", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "AIORDMA_DEVICE": DEVICE, **environment},
    )


def states(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Steps by name."""
    return {step["step"]: step for step in json.loads(done.stdout)["steps"]}


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.strip().splitlines()[-1]


def test_where_rdma_works() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert last_line(done).startswith("RDMA works: ")
    assert " us to itself by RDMA and back" in last_line(done)
    assert [line[7:24].strip() for line in done.stdout.splitlines()[: len(STEPS)]] == STEPS


def test_kernel_smc_r() -> None:
    """Without the set-up there is nothing wrong."""
    found = states(run("--json"))["kernel SMC-R"]
    assert found["state"] == "ok"
    assert "aiordma smcr enable" in found["text"]
    found = states(run("--json", AIORDMA_SMCR="/no/such/map"))["kernel SMC-R"]
    assert found["state"] == "note"
    assert "/no/such/map" in found["text"]


def test_json() -> None:
    done = run("--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"], list(states(done))) == (0, True, STEPS)
    assert {step["state"] for step in found["steps"]} <= {"ok", "note"}


def test_json_keeps_its_schema() -> None:
    schema = json.loads(run("--schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    for done in (run("--json"), run("--json", AIORDMA_DEVICE="nodev0")):
        report = json.loads(done.stdout)
        jsonschema.validate(report, schema)
        assert report["schema"] == "aiordma-doctor/1"
        assert report["verdict"].startswith("RDMA works" if report["ok"] else "RDMA does not work")


@pyverbs_is_here
def test_a_pyverbs_that_this_environment_does_not_see() -> None:
    done = run(before=HIDDEN, AIORDMA_VERBS="pyverbs")
    assert (done.returncode, done.stderr) == (1, "")
    assert last_line(done).startswith("RDMA does not work: pyverbs: ")
    assert "--system-site-packages" in last_line(done)
    assert "ln -s /usr/lib/python3/dist-packages/pyverbs" in last_line(done)
    assert states(run("--json", before=HIDDEN, AIORDMA_VERBS="pyverbs"))["round trip"]["state"] == "skipped"


def test_a_pyverbs_of_another_python(tmp_path: Path) -> None:
    package = tmp_path / "pyverbs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "device.cpython-399-x86_64-linux-gnu.so").touch()
    done = run("--json", PYTHONPATH=str(tmp_path), AIORDMA_VERBS="pyverbs")
    step = states(done)["pyverbs"]
    assert (done.returncode, step["state"]) == (1, "failed")
    assert "built for cpython-399-x86_64-linux-gnu" in step["text"]
    assert "pip install pyverbs==56.0rc1" in step["remedy"]


def test_without_pyverbs() -> None:
    done = run("--json", before=HIDDEN, AIORDMA_VERBS="auto")
    assert (done.returncode, states(done)["round trip"]["state"]) == (0, "ok")
    assert states(done)["pyverbs"]["text"] == "none; so aiordma's own binding is used"
    assert "not asked: AIORDMA_VERBS=own" in run(AIORDMA_VERBS="own").stdout


def test_a_device_that_is_not_there() -> None:
    done = run(AIORDMA_DEVICE="nodev0")
    assert done.returncode == 1
    assert "RDMA does not work: device: " in last_line(done)
    assert "none is called 'nodev0'" in last_line(done)


def test_settings() -> None:
    done = run("--json", AIORDMA_RING_BYTE="65536")
    step = states(done)["settings"]
    assert (done.returncode, step["state"]) == (0, "note")
    assert step["remedy"] == "AIORDMA_RING_BYTE is unknown: AIORDMA_RING_BYTES?"
    done = run(AIORDMA_MODE="RDMA")
    assert done.returncode == 1
    assert "settings: AIORDMA_MODE='RDMA' is not valid: it must be auto, rdma or tcp" in last_line(done)


@pytest.mark.anyio
async def test_the_way_to_a_server() -> None:
    config = aiordma.Config(device=DEVICE)
    async with aiordma.listen("127.0.0.1", config=config) as listener:
        done = await anyio.to_thread.run_sync(run, f"127.0.0.1:{listener.port}")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"127.0.0.1:{listener.port} serves stream over RDMA" in last_line(done)


@pytest.mark.anyio
async def test_the_way_to_a_server_of_calls() -> None:
    async with rpc.serve([], "127.0.0.1", 0, config=aiordma.Config(device=DEVICE)) as server:
        done = await anyio.to_thread.run_sync(run, f"127.0.0.1:{server.port}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "serves calls over RDMA" in last_line(done)


@pytest.mark.anyio
async def test_a_server_that_uses_tcp() -> None:
    async with aiordma.listen("127.0.0.1", mode="tcp") as listener:
        done = await anyio.to_thread.run_sync(run, f"127.0.0.1:{listener.port}")
    assert done.returncode == 1
    assert "the peer declined: RDMA is switched off" in last_line(done)
    assert "Run the doctor there, too" in last_line(done)


def test_no_server() -> None:
    done = run("127.0.0.1:1")
    assert done.returncode == 1
    assert "peer: no server answers: cannot connect to 127.0.0.1:1: Connection refused" in last_line(done)
    done = run("nonsense")
    assert done.returncode == 2
    assert "'nonsense' is not HOST:PORT" in done.stderr


def test_help_has_examples() -> None:
    assert "aiordma doctor server7:7000" in run("--help").stdout
