"""`aiordma fabric sweep`: results in Parquet, and Dask's workers instead of own processes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest
from click.testing import CliRunner

from aiordma.cli.main import main
from rocefabric import suite
from tests.processes import FULL_PATIENCE
from tests.rocefabric.networks import STAR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_a_folder_of_parquet_is_one_table(tmp_path: Path) -> None:
    network, folder = tmp_path / "net.toml", tmp_path / "sweep.parquet"
    network.write_text(STAR.format(hosts=5, more=""), encoding="utf-8")
    arguments = ["fabric", "sweep", str(network), "--model", "incast-2-64k", "--set", "pfc.alpha=0.5,1"]
    arguments += ["--set", "ecn.kmin_cells=10,30", "--results", str(folder), "--jobs", "1"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    rows = pyarrow.dataset.dataset(folder).to_table().to_pylist()
    assert sorted((row["pfc.alpha"], row["ecn.kmin_cells"]) for row in rows) == [
        (0.5, 10), (0.5, 30), (1, 10), (1, 30),
    ]  # fmt: skip
    assert {row["traffic"] for row in rows} == {"incast-2-64k"}
    again = CliRunner().invoke(main, arguments)
    assert again.output.count("(stored)") == 4
    assert "4 of 4" in again.output


SCHEDULER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0") as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.readline()
"""


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    """A Dask cluster in processes of its own."""
    source = tmp_path / "scheduler.py"
    source.write_text(SCHEDULER, encoding="utf-8")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, str(source)], text=True, **pipes) as cluster:  # type: ignore[call-overload]
        assert cluster.stdout is not None
        yield cluster.stdout.readline().strip()
        cluster.communicate("\n", timeout=FULL_PATIENCE)


@pytest.mark.slow
def test_dask_finds_the_same(scheduler: str, tmp_path: Path) -> None:
    network, folder = tmp_path / "net.toml", tmp_path / "dask.parquet"
    network.write_text(STAR.format(hosts=5, more=""), encoding="utf-8")
    arguments = ["fabric", "simulate", str(network), "--model", "incast-2-64k", "--model", "endless-2"]
    theirs = CliRunner().invoke(main, [*arguments, "--dask", scheduler, "--results", str(folder)])
    assert theirs.exit_code == 0, theirs.output
    assert len(list(folder.iterdir())) == 2
    ours = CliRunner().invoke(main, [*arguments, "--jobs", "1"])
    assert sorted(theirs.output.splitlines()) == sorted(ours.output.splitlines())


def test_no_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str) -> None:
        raise OSError(f"nothing listens on {address}")

    monkeypatch.setattr(suite, "dask", refuse)
    network = tmp_path / "net.toml"
    network.write_text(STAR.format(hosts=5, more=""), encoding="utf-8")
    done = CliRunner().invoke(main, ["fabric", "simulate", str(network), "--dask", "tcp://127.0.0.1:1"])
    assert done.exit_code == 1
    assert "no Dask scheduler at tcp://127.0.0.1:1: nothing listens" in done.output
    assert json.dumps(done.output).count("Traceback") == 0
