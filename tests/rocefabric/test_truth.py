"""The simulator does what the software device did over a kernel's marking queue (`make fabric-truth`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import truth
from benchmarks.truth_compare import measured, simulated, table

if TYPE_CHECKING:
    from tests.vm.wire.router import Flood


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(truth.RECORD.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("flows", truth.FLOWS)
def test_queue_rate_and_marks(recording: dict[str, Any], flows: int) -> None:
    """Means over 18 s. The limits are what benchmarks/notes/fabric.md states."""
    found = table(recording, flows)
    device, simulator, _ = zip(*found.values(), strict=True)
    real, same = (dict(zip(found, each, strict=True)) for each in (device, simulator))
    for name, within in (("queue, mean kB", 0.15), ("line used, %", 0.06), ("swings per s", 0.15)):
        assert same[name] == pytest.approx(real[name], rel=within), name
    assert abs(same["least flow / greatest"] - real["least flow / greatest"]) < 0.05
    if flows > 1:  # one flow gets few, and one swing too far adds dozens of them
        assert same["notifications per s"] == pytest.approx(real["notifications per s"], rel=0.15)


def test_the_way_marks_are_drawn_is_seen(recording: dict[str, Any]) -> None:
    """Independent marks, as chips draw them, come half as often as those of Linux' RED: a longer queue."""
    for flows in truth.FLOWS:
        real = measured(recording, flows).figures(30000)["notifications per s"]
        spaced, alone = (
            simulated(recording["settings"], flows, spaced=each).figures(30000) for each in (True, False)
        )
        assert alone["queue, 95 % below kB"] > spaced["queue, 95 % below kB"]
        if flows == 1:
            assert abs(spaced["notifications per s"] - real) < abs(alone["notifications per s"] - real)


def test_a_recording_is_made_of_samples() -> None:
    from tests.vm.wire.router import Flood, Sample

    seen = [Sample(at / 100, 1000 * at, 10 * at) for at in range(14)]
    found: Flood = Flood(seen, [(0.01, 0), (0.06, 1), (0.2, 0)], {}, {})
    assert truth.points(found, 2) == [
        [0.05, 50, 30, 0.8, truth.LENGTH, 0],
        [0.1, 100, 80, 0.8, truth.LENGTH, truth.LENGTH],
    ]
