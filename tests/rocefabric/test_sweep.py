"""Sweeps: variants of a network, and results in SQLite and Parquet."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

import pytest

from rocefabric import store, suite, sweep
from rocefabric.errors import NetworkError

from .networks import star

if TYPE_CHECKING:
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
