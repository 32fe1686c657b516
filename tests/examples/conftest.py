"""The examples are programs beside the package: these tests import their parts and run them unmodified."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiordma.config import Mode

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

#: Transports of an example's streams.
MODES: tuple[Mode, ...] = ("rdma", "tcp")


def compiled_scanner() -> Path:
    """Compile the proxy's scanner as `make demo` does, if it changed since."""
    source, declarations = (EXAMPLES / "proxy" / name for name in ("scan.py", "scan.pxd"))
    newest = max(path.stat().st_mtime for path in (source, declarations))

    def built() -> Path | None:
        return next((made for made in source.parent.glob("scan.*.so") if made.stat().st_mtime > newest), None)

    if built() is None:
        compile_it = [sys.executable, "-m", "Cython.Build.Cythonize", "-i", "-q", str(source)]
        subprocess.run(compile_it, check=True)
    found = built()
    assert found is not None
    return found
