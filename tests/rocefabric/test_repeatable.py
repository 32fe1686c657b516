"""Plans of one network are the same, byte for byte, in each process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

from rocefabric import model, planner, render

from .networks import EXAMPLE, RING, star


def _loops() -> model.Network:
    """Six switches in a mesh: many circles and micro-loops to choose from."""
    return model.parse(RING.replace("count = 3", "count = 6"))


def digests() -> str:
    """Of the plans of three networks, files included."""
    found = []
    for network in (_loops(), star(4), model.load(EXAMPLE)):
        report = planner.plan(network)
        text = render.to_json(report) + render.to_html(report) + repr(report.files())
        found.append(hashlib.sha256(text.encode()).hexdigest())
    return " ".join(found)


def test_a_plan_is_the_same_in_each_process() -> None:
    """Circles were taken from sets, whose order is that of the texts' hashes."""
    program = "from tests.rocefabric.test_repeatable import digests; print(digests())"
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        for seed in ("0", "1", "2", "3")
    }
    assert len(found) == 1
