"""Sweeps: variants of a network, results in Parquet, and Dask's workers instead of own processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest
from click.testing import CliRunner

from aiordma.cli.main import main
from aiordma.fabric import store, suite, sweep
from aiordma.fabric.errors import NetworkError
from tests.processes import FULL_PATIENCE

from .networks import STAR, star

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_every_combination() -> None:
    given = sweep.parse_settings(["ecn.kmin_cells=10,20", "pfc.alpha=0.5", "senders.window=8,16,32"])
    found = list(sweep.variants(star(), given))
    assert len(found) == 6
    assert {(each.ecn.kmin_cells, each.pfc.alpha, each.senders.window) for _, each in found} == {
        (kmin, 0.5, window) for kmin in (10, 20) for window in (8, 16, 32)
    }
    assert found[0][0] == {"ecn.kmin_cells": 10, "pfc.alpha": 0.5, "senders.window": 8}
    assert len({suite.Job(each, "endless-2").key() for _, each in found}) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ecn.kmin_cells", "write TABLE.KEY=VALUE,VALUE"),
        ("ecn.kmin_cells=ten", "write TABLE.KEY=VALUE,VALUE"),
        ("switches.count=2", "'switches.count' cannot be swept"),
        ("ecn=2", "'ecn' cannot be swept"),
        ("ecn.kmin=2", "unknown key 'kmin' in [ecn]; there are: kmin_cells"),
        ("ecn.kmin_cells=1.5", "kmin_cells = 1.5 is not a whole number"),
        ("pfc.alpha=1000", "alpha = 1000 is more than 128"),
        ("marking.roce_queue=6", "need a queue each"),
    ],
)
def test_what_cannot_be_swept(text: str, message: str) -> None:
    with pytest.raises(NetworkError) as caught:
        list(sweep.variants(star(), sweep.parse_settings([text])))
    assert message in str(caught.value)


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


def test_a_file_that_holds_something_else(tmp_path: Path) -> None:
    for name in ("x.sqlite", "x.parquet"):
        (tmp_path / name).write_text("no table, but long enough to be read as a header", encoding="utf-8")
        with pytest.raises(NetworkError, match=name):
            store.open_store(tmp_path / name)
    kept = store.ParquetStore(tmp_path / "kept.parquet")
    (tmp_path / "kept.parquet" / "00-endless-2-1.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(NetworkError, match=r"00-endless-2-1\.parquet: no outcome of a simulation"):
        kept.get("00", "endless-2", 1)
    with pytest.raises(NetworkError, match="cannot be a part"):
        kept.get("00", "../outside", 1)


def test_both_stores_give_back_what_they_got(tmp_path: Path) -> None:
    (outcome,) = suite.work([suite.Job(star(8), "slow-20-1")], workers=1)
    assert outcome.pauses_by_port
    assert outcome.rates
    for name in ("one.sqlite", "one.parquet"):
        with contextlib.closing(store.open_store(tmp_path / name)) as kept:
            kept.put("00", outcome, {"ecn.kmin_cells": 10, "kind": "text"})
            assert kept.get("00", "slow-20-1", 1) == outcome
            other = dataclasses.replace(outcome, pauses_by_port={}, rates=())
            kept.put("00", other, {})
            assert kept.get("00", "slow-20-1", 1) == other
            assert kept.get("01", "slow-20-1", 1) is None


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
