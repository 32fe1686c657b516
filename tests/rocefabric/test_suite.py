"""Many simulations: stored, resumed, judged, drawn, and searched for better settings."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import xml.etree.ElementTree as ElementTree
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rocefabric import charts, judge, model, results, simulate, suite, traffic, tune
from rocefabric.errors import NetworkError
from rocefabric.store import ParquetStore, SqliteStore, open_store
from rocefabric.topology import build

from .networks import EXAMPLE, star

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocefabric.simulate import Outcome


class Inline(Executor):
    """Does the work at once, and counts it."""

    def __init__(self) -> None:
        self.done = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        self.done += 1
        return future


NAMES = ("incast-4-64k", "endless-2", "slow-20-1")


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return suite.run(star(8), NAMES, executor=Inline())


def test_every_model_makes_traffic() -> None:
    topology = build(model.load(EXAMPLE))
    assert len(traffic.MODELS) >= 50
    for name in traffic.MODELS:
        made = traffic.make(name, topology)
        assert made.transfers, name
        assert made.duration_us > 0
        assert all(each.source != each.target for each in made.transfers), name
        assert all(each.after < at for at, each in enumerate(made.transfers)), name
        assert made == traffic.make(name, topology)
    websearch = [traffic.make("websearch-40", topology, seed).transfers for seed in (1, 2)]
    assert websearch[0] != websearch[1]


@pytest.mark.parametrize("kind", ["sqlite", "parquet"])
def test_what_is_stored_is_not_computed_again(tmp_path: Path, outcomes: list[Outcome], kind: str) -> None:
    path = tmp_path / f"results.{kind}"
    with contextlib.closing(open_store(path)) as store:
        store.put(suite.key_of(star(8), "sigcomm15"), outcomes[1], {})
    seen: list[tuple[str, bool]] = []
    with contextlib.closing(open_store(path)) as store:
        for expected in (2, 0):
            workers = Inline()
            found = suite.run(
                star(8), NAMES, store=store, executor=workers,
                progress=lambda job, outcome, stored: seen.append((outcome.traffic, stored)),
            )  # fmt: skip
            assert workers.done == expected
            assert found == outcomes
        assert seen[0] == ("endless-2", True)
        assert sorted(seen[1:3]) == [("incast-4-64k", False), ("slow-20-1", False)]
        other = Inline()
        suite.run(star(8, "[pfc]\nalpha = 1"), NAMES[:1], store=store, executor=other)
        assert other.done == 1


def test_a_full_disk_loses_only_what_is_new(tmp_path: Path, outcomes: list[Outcome]) -> None:
    """It was a traceback of SQLite's."""
    path = tmp_path / "results.db"
    with contextlib.closing(SqliteStore(path)) as store:
        store.put("k", outcomes[0], {})
        (pages,) = store._file.execute("PRAGMA page_count").fetchone()
        store._file.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(NetworkError, match=r"the outcome cannot be kept .*disk is full"):
            store.put("k", outcomes[1], {"name": "x" * 100_000})
    with contextlib.closing(SqliteStore(path)) as store:
        assert store.get("k", outcomes[0].traffic, outcomes[0].seed) == outcomes[0]
        assert store.get("k", outcomes[1].traffic, outcomes[1].seed) is None


def test_a_full_disk_leaves_no_part(
    tmp_path: Path, outcomes: list[Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(_table: object, path: Path) -> None:
        path.write_bytes(b"PAR1")
        raise OSError(errno.ENOSPC, "No space left on device")

    store = ParquetStore(tmp_path / "results.parquet")
    monkeypatch.setattr(store, "_parquet", SimpleNamespace(write_table=write))
    with pytest.raises(NetworkError, match="No space left"):
        store.put("k", outcomes[0], {})
    assert list((tmp_path / "results.parquet").iterdir()) == []


def test_processes_find_the_same(outcomes: list[Outcome]) -> None:
    assert suite.run(star(8), NAMES[:2], workers=2) == outcomes[:2]


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(KeyError):
        suite.run(star(), ["tornado"])


@pytest.mark.parametrize("window", [2, 7, 16, 31])
def test_a_small_window_is_answered_before_it_is_full(window: int) -> None:
    """With few packets under way a sender waits for answers, but never for its timer."""
    network = star(3)
    network = dataclasses.replace(network, senders=model.Senders(window=window))
    (outcome,) = suite.work([suite.Job(network, "endless-1")], executor=Inline())
    assert outcome.resent == 0
    assert outcome.throughput > 0.2


def test_goals(outcomes: list[Outcome]) -> None:
    goals = model.Goals()
    incast, endless, slow = (judge.judge(outcome, goals) for outcome in outcomes)
    assert incast.throughput is None
    assert endless.throughput is (outcomes[1].throughput >= 0.95)
    assert (incast.pauses, slow.pauses) == (True, False)
    assert not slow.latency
    assert all(each.lossless for each in (incast, endless, slow))
    broken = dataclasses.replace(outcomes[0], lossless_drops=1, latency_most_us=39.0)
    assert [met for _, met, _ in judge.summary([broken], goals)] == [False, True, True, True, True]


@pytest.mark.parametrize(
    ("pauses", "windows", "allowed", "met"),
    [
        # 200 windows of 100 us: 2 of them are 1 % of the time. 5 a second are 0.0005 in a window.
        (1, 2, 5, True),
        (1, 3, 5, False),
        # 10,000 a second are one in a window.
        (1, 200, 10_000, True),
        (2, 200, 10_000, False),
        (2, 200, 20_000, True),
        (3, 3, 20_000, False),
        (0, 200, 0, True),
    ],
)
def test_the_goal_for_pauses(
    outcomes: list[Outcome], pauses: int, windows: int, allowed: float, met: bool
) -> None:
    """The number counts, not only whether there was a pause."""
    counts = (pauses,) * windows + (0,) * (200 - windows)
    outcome = dataclasses.replace(outcomes[0], pauses_by_window=counts, sample_us=100.0)
    goals = model.Goals(pauses_per_second=allowed)
    assert judge.judge(outcome, goals).pauses is met
    assert judge.summary([outcome], goals)[2][:2] == (
        f"at most {allowed:g} pauses/s in 99 % of the time",
        met,
    )


def test_no_percentile_is_above_the_slowest(outcomes: list[Outcome]) -> None:
    """The histogram has steps of 100 ns: the end of the last one is later than the slowest packet."""
    assert simulate._percentile([0, 0, 5], 0.99, 0.25) == 0.25
    for outcome in outcomes:
        assert outcome.latency_50_us <= outcome.latency_99_us <= outcome.latency_most_us


def test_windows_hold_all_pauses(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        assert sum(outcome.pauses_by_window) == outcome.pauses
        assert outcome.pauses_by_window.count(0) == outcome.quiet * len(outcome.pauses_by_window)


def test_the_page_and_its_drawings(outcomes: list[Outcome]) -> None:
    network = star(8)
    page = results.to_html(network, outcomes)
    for outcome in outcomes:
        assert f"<td>{outcome.traffic}</td>" in page
    # All models beside the goals, queue and rates of each, and a map for the one with pauses.
    assert page.count("<svg") == 1 + 2 * len(outcomes) + 1
    met = sum(results.row(outcome, network)[-1] == "ok" for outcome in outcomes)
    assert f"{met} of {len(outcomes)} models meet every goal" in page
    assert page.count("<td class=BROKEN>missed: ") == len(outcomes) - met
    for drawing in page.split("<svg")[1:]:
        root = ElementTree.fromstring("<svg" + drawing.split("</svg>")[0] + "</svg>")
        assert root.attrib["role"] == "img"
    assert "missed: pauses, latency" in results.row(outcomes[2], network)


def test_lines_stay_in_the_drawing() -> None:
    series = [[0, 5, 2], [1, 1, 9]]
    root = ElementTree.fromstring(charts.lines("t & u", "cells", 10, series, {"Kmax": 7}, ("a", "b")))
    space = {"s": "http://www.w3.org/2000/svg"}
    curves = root.findall("s:polyline", space)
    assert len(curves) == 2
    for curve in curves:
        for point in curve.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 < x < float(root.attrib["width"])
            assert 0 < y < float(root.attrib["height"])


def test_the_front_is_joined_in_order() -> None:
    drawn = charts.scatter("t", "x", "y", [(4, 1, True), (5, 5, False), (1, 4, True), (2, 2, True)])
    root = ElementTree.fromstring(drawn)
    (line,) = root.findall("s:polyline", {"s": "http://www.w3.org/2000/svg"})
    places = [float(point.split(",")[0]) for point in line.attrib["points"].split()]
    assert len(places) == 3
    assert places == sorted(places)


def test_the_search_tries_settings_and_marks_the_best() -> None:
    network = star(5, "[pfc]\nalpha = 0.125")
    found = tune.tune(network, trials=4, models=["endless-2"], executor=Inline())
    assert found == tune.tune(network, trials=4, models=["endless-2"], executor=Inline())
    assert len({(trial.kmin_cells, trial.kmax_cells) for trial in found}) > 1
    best = [trial for trial in found if trial.best]
    assert best
    for trial in found:
        if not trial.best:
            assert any(
                other.unused <= trial.unused and other.latency_us <= trial.latency_us
                and other.pauses <= trial.pauses for other in best
            )  # fmt: skip


def test_the_search_knows_many_senders_and_two_seeds() -> None:
    """It tried at most 16 senders in short bursts, with one seed."""
    assert tune.usual_models(model.load(EXAMPLE))[-1] == "endless-39"
    assert tune.usual_models(star(20))[-1] == "endless-16"
    assert tune.usual_models(star(5)) == tune.MODELS
    workers = Inline()
    tune.tune(star(5), trials=1, models=["incast-2-64k"], executor=workers)
    assert workers.done == 2


def test_a_miss_says_why(outcomes: list[Outcome]) -> None:
    rising = tuple((at / 200, at / 200) for at in range(200))
    outcome = dataclasses.replace(outcomes[1], throughput=0.41, rates=rising, latency_most_us=79.0)
    (text,) = judge.reasons(outcome, model.Goals())
    # Means of the 20 samples from 100 on and of the last 20, of two senders.
    assert (
        "busy ports used 41.0 % of 95 %, with senders that still sped up at the end (1.1 to 1.9 Gb/s" in text
    )
    settled = dataclasses.replace(outcome, rates=((1.0, 1.0),) * 200)
    assert judge.reasons(settled, model.Goals()) == ["busy ports used 41.0 % of 95 %"]
    assert judge.reasons(dataclasses.replace(settled, throughput=0.96), model.Goals()) == []
    bad = dataclasses.replace(settled, lossless_drops=2, latency_most_us=99.0, throughput=-1.0)
    assert judge.reasons(bad, model.Goals()) == [
        "a packet took 99.0 of 80 us",
        "2 lossless packets were dropped",
    ]
    assert judge.reasons(outcomes[2], model.Goals())[0].startswith("at most 5 pauses/s in ")


def test_a_loss_costs_more_than_anything(outcomes: list[Outcome]) -> None:
    clean = tune.costs(outcomes[1:2])
    lost = tune.costs([dataclasses.replace(outcomes[1], lossless_drops=1)])
    assert lost[0] >= 1 > clean[0]
    assert lost[1] == pytest.approx(2 * clean[1])


def test_other_settings_reach_the_switches() -> None:
    other = tune.apply(star(), 10, 5, 3, 0.5)
    assert (other.ecn.kmin_cells, other.ecn.kmax_cells, other.ecn.pmax_percent) == (10, 10, 3)
    assert other.pfc.alpha == 0.5
