"""Each behaviour of the table on each carrier: its trace is that of plain asyncio, or of plain uvloop there.

How to add one: CONTRIBUTING.md, "a contract".
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.processes import FULL_PATIENCE
from tests.project.tree import ROOT

from . import ends
from .carriers import CARRIERS, INSTALLED_ENVIRONMENT, PLAIN, UNDER_RUN
from .differences import DIFFERENCES
from .playing import LOOPS, play
from .table import BEHAVIOURS

if TYPE_CHECKING:
    from pathlib import Path


#: Loops end there with connections that are open on purpose. Those by RDMA are let go by a thread of the
#: device, on a busy machine after the behaviour has been played.
LEAVES_OPEN = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=LEAVES_OPEN if behaviour.__module__ == ends.__name__ else ())
        for name, behaviour in BEHAVIOURS.items()
    ],
)
def test_contract(name: str, loop: str) -> None:
    behaviour = BEHAVIOURS[name]
    right = [play(behaviour, PLAIN, each) for each in dict.fromkeys((loop, "asyncio"))]
    found = {}
    for carrier in CARRIERS:
        trace = play(behaviour, carrier, loop)
        if trace not in right:
            found[carrier.name] = trace
    gc.collect()  # what was left open must warn here
    listed = DIFFERENCES.get(name)
    allowed = listed.carriers if listed is not None and loop in listed.loops else set()
    assert found.keys() == allowed, f"plain: {right}\n" + "\n".join(
        f"{carrier}: {found.get(carrier, 'as plain, so it need not be listed')}"
        for carrier in sorted(found.keys() ^ allowed)
    )


def seen_by(loop: str, cache: Path, *command: str) -> tuple[str, dict[str, str]]:
    """By behaviour, what `program.py` has seen; and on which carrier."""
    done = subprocess.run(
        [sys.executable, "-m", *command, "tests.contracts.program", loop],
        env={**os.environ, **INSTALLED_ENVIRONMENT, "XDG_CACHE_HOME": str(cache)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=8 * FULL_PATIENCE,
        check=True,
    )
    carrier, seen = json.loads(done.stdout)
    return carrier, seen


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("loop", LOOPS)
def test_under_aiordma_run(loop: str, tmp_path: Path) -> None:
    right = [seen_by(each, tmp_path) for each in dict.fromkeys((loop, "asyncio"))]
    carrier, found = seen_by(loop, tmp_path, "aiordma", "run", "-m")
    assert (carrier, {name for name, _ in right}) == (UNDER_RUN.name, {PLAIN.name})
    differing = {name for name in BEHAVIOURS if all(found[name] != seen[name] for _, seen in right)}
    allowed = {
        name
        for name, difference in DIFFERENCES.items()
        if UNDER_RUN.name in difference.carriers and loop in difference.loops
    }
    assert differing == allowed, "\n".join(
        f"{name}: plain {[seen[name] for _, seen in right]}, under aiordma run {found[name]}"
        for name in sorted(differing ^ allowed)
    )


def test_the_differences_are_explained() -> None:
    page = " ".join((ROOT / "docs/howto/run.md").read_text(encoding="utf-8").split())
    carriers = {carrier.name for carrier in CARRIERS}
    for name, difference in DIFFERENCES.items():
        assert name in BEHAVIOURS, name
        assert difference.carriers <= carriers, name
        assert difference.loops <= LOOPS.keys(), name
        assert difference.reason in page, f"{name}: docs/howto/run.md does not say: {difference.reason}"
