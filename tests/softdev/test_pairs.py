"""The pairs of programs that other tests run: :func:`tests.tools.run_pair`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tests.tools import run_pair

if TYPE_CHECKING:
    from pathlib import Path


def test_a_server_that_prints_much(tmp_path: Path) -> None:
    """More than a pipe holds, before its client may end: perftest prints a page for each queue pair."""
    prints = "import os; os.write(1, b'x' * 1_000_000); open(os.environ['DONE'], 'w').write('done')"
    read_end = "import os, time\nwhile not os.path.exists(os.environ['DONE']): time.sleep(0.01)"
    environ = {**os.environ, "DONE": str(tmp_path / "done")}
    server, client = run_pair(
        [sys.executable, "-c", prints],
        [sys.executable, "-c", read_end],
        ready=lambda _: True,
        limit=20,
        environ=environ,
    )
    assert len(server) == 1_000_000
    assert client == ""
