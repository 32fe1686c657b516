"""`python -m tests.system.upgrade.other_device LIBRARY ...`: `tests.program` with another library."""

from __future__ import annotations

import sys
from pathlib import Path

from aiordma.verbs import softlib
from tests import program


def main(library: str, *arguments: str) -> None:
    # Both bindings of verbs load what is found here, and not before the first engine.
    softlib.locate = lambda: Path(library)
    program.main(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
