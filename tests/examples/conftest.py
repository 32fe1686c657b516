"""The examples are programs beside the package: these tests import their parts and run them as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

#: what carries the streams of an example
MODES = ("rdma", "tcp")


def pytest_sessionstart() -> None:
    """Compiles the proxy's scanner, as `make demo` does (nothing to do when it is up to date)."""
    subprocess.run(
        [sys.executable, "-m", "Cython.Build.Cythonize", "-i", "-q", str(EXAMPLES / "proxy" / "scan.py")],
        check=True,
    )
