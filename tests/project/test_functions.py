"""No function is longer than what fits on a screen, or a comment gives the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .functions import functions
from .tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

LINES = 60


def sources() -> list[Path]:
    packages = ("aiordma", "rocefabric", "pytest_softdev")
    files = [path for package in packages for path in (ROOT / package).rglob("*")]
    return sorted(path for path in files if path.suffix in {".py", ".pyx"})


def test_long_functions_give_a_reason() -> None:
    long = {
        f"{path.relative_to(ROOT)}: {function.name}"
        for path in sources()
        for function in functions(path)
        if function.lines > LINES and not function.has_reason
    }
    assert long == set()


def test_functions_were_looked_at() -> None:
    names = {function.name for path in sources() for function in functions(path)}
    assert {"connect_and_negotiate", "try_send", "connect"} <= names


# ---- the check itself

PYTHON = """\
import functools

# long: the table of all answers
@functools.cache
def explained():
    \"\"\"Text.\"\"\"
    return 1


class Class:
    async def method(
        self,
    ):
        def inner():
            return 2

        return inner
"""

CYTHON = """\
cdef class Class:
    cdef int number
    cdef object name = str(1)

    cdef inline int method(
        self, int argument
    ) except -1 nogil:
        if argument:  # a comment
            return 1

        return 2

    # long: one pass over the ring
    cpdef other(self):
        pass

def last():
    return 3
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "module.py",
            PYTHON,
            [("explained", 4, 4, True), ("inner", 14, 2, False), ("method", 11, 7, False)],
        ),
        (
            "module.pyx",
            CYTHON,
            [("last", 17, 2, False), ("method", 5, 7, False), ("other", 14, 2, True)],
        ),
    ],
)
def test_lengths_are_counted(
    tmp_path: Path, name: str, text: str, expected: list[tuple[str, int, int, bool]]
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert sorted(functions(path)) == expected
