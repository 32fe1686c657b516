"""`python -m tests.system.upgrade.other_device LIBRARY ...`: `tests.program` with another library."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from tests import program

NAME = "libsoftdev.so"


def main(library: str, *arguments: str) -> None:
    class Library(ctypes.CDLL):
        def __init__(self, name: str | None, *given: Any, **more: Any) -> None:
            super().__init__(library if name and name.endswith(NAME) else name, *given, **more)

    ctypes.CDLL = Library  # type: ignore[misc]  # for who loads it, when aiordma is imported
    program.main(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
