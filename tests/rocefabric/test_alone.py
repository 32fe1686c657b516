"""The package stands by itself: nothing of aiordma is loaded with it, its compiled modules included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import rocefabric

_LOADS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"rocefabric.{name}")
print(*(name for name in sys.modules if name.partition(".")[0] == "aiordma"))
"""


def test_no_module_loads_aiordma() -> None:
    names = {path.name.partition(".")[0] for path in Path(rocefabric.__file__).parent.glob("*.py*")}
    names -= {"__init__", "_state"}  # _state is declarations alone
    assert {"_core", "simulate", "planner"} <= names
    done = subprocess.run(
        [sys.executable, "-c", _LOADS, *sorted(names)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr
