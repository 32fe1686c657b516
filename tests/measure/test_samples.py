"""Times of many operations."""

from __future__ import annotations

from array import array

import pytest

from aiordma.measure import samples
from aiordma.measure.samples import Samples, percentile


def of(*values: float) -> Samples:
    found = Samples()
    found.add(array("d", values))
    return found


def test_nothing() -> None:
    found = Samples()
    found.add(array("d"))
    assert (found.count, found.mean, found.at(0.5), found.curve()) == (0, 0.0, 0.0, [])


def test_percentiles_are_the_nearest_rank() -> None:
    found = of(*(number / 1e6 for number in range(100, 0, -1)))
    assert [round(found.at(share)) for share in (0, 0.5, 0.99, 1)] == [1, 51, 100, 100]
    assert found.mean == pytest.approx(50.5)
    curve = found.curve()
    assert curve[0] == (1.0, 0.0)
    assert curve[-1] == (100.0, 1.0)
    assert percentile([1.0], 0.999) == 1.0


def test_of_many_some_are_kept_and_the_extremes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_MOST", 1000)
    found = Samples()
    for begin in range(0, 100_000, 700):
        found.add(array("d", (number / 1e6 for number in range(begin, min(begin + 700, 100_000)))))
    found.add(array("d", [1.0]))
    assert found.count == 100_001
    assert len(found._kept) <= 1000
    assert found.at(0) == 0.0
    assert found.at(1) == 1e6
    assert found.at(0.5) == pytest.approx(50_000, rel=0.02)
    assert found.at(0.99) == pytest.approx(99_000, rel=0.02)


def test_those_of_several_connections_count_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_MOST", 1000)
    many, few = of(*[3e-6] * 3000), of(*[1e-6] * 1000)
    few.merge(many)
    few.merge(Samples())
    assert (few.count, few.at(0), few.at(1)) == (4000, 1.0, 3.0)
    assert (few.at(0.2), few.at(0.3)) == (1.0, 3.0)
    assert few.mean == pytest.approx(2.5)


def test_the_sum_of_many_connections_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_MOST", 1000)
    whole = Samples()
    for number in range(1, 21):
        whole.merge(of(*[number * 1e-6] * 1000))
        assert len(whole._kept) <= 1000
    assert (whole.count, whole.at(0), whole.at(1)) == (20_000, 1.0, 20.0)
    assert whole.at(0.5) == pytest.approx(10, abs=1)
    whole.add(array("d", [21e-6] * 20_000))
    assert whole.count == 40_000
    assert whole.at(0.75) == pytest.approx(21)
    assert whole.at(0.25) == pytest.approx(10, abs=1)
