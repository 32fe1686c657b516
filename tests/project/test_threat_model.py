"""Each row of the threat model names a test, and each name is one of a test that exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/threat-model.md"
C_TESTS = ROOT / "softdev/tests"
#: What a row says that has none.
NONE = "none"


class Row(NamedTuple):
    line: int
    what: str
    test: str


def rows() -> list[Row]:
    """Of all tables that have a column for tests, which is the last one."""
    found, column = [], False
    for number, line in enumerate(PAGE.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("|"):
            column = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[-1] == "test":
            column = True
        elif column and set(line) - set("|- :"):
            found.append(Row(number, " ".join(cells[:2])[:60], cells[-1]))
    return found


@cache
def known() -> str:
    """Paths of tests, and their functions, one a line."""
    lines = []
    for path in (ROOT / "tests").rglob("*.py"):
        name = str(path.relative_to(ROOT / "tests"))
        lines += [f"/{name}", f"/tests/{name}"]
        lines += re.findall(r"(?m)^ *(?:async )?def (\w+)", path.read_text(encoding="utf-8"))
    for path in C_TESTS.rglob("*.c"):
        folder, stem = path.parent.name, path.stem
        lines += [f"{folder}_{stem}", f"/{folder}/{stem}", f"/{folder}/{stem.removeprefix('test_')}", stem]
        lines += re.findall(r"(?m)^static \w+ (\w+)\(void\)", path.read_text(encoding="utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines += [f"make {target}" for target in re.findall(r"(?m)^([\w-]+):", makefile)]
    return "\n" + "\n".join(lines) + "\n"


def exists(name: str) -> bool:
    """A file, by its path from ``tests`` on; a function, by its name or a part of it; a target of make."""
    if "/" in name:
        return f"/{name}\n" in known()
    if name.startswith("make "):
        return f"\n{name}\n" in known()
    return re.search(rf"\n\w*{re.escape(name)}\w*\n", known()) is not None


ROWS = rows()


def test_there_are_rows() -> None:
    assert len(ROWS) > 50
    assert exists("project/test_threat_model.py")
    assert not exists("project/test_no_model.py")
    assert not exists("make nothing")
    assert not exists("who_does_not_exist")


@pytest.mark.parametrize("row", ROWS, ids=[f"line {row.line}" for row in ROWS])
def test_each_names_its_tests(row: Row) -> None:
    if row.test.startswith(NONE):
        return
    names = re.findall(r"`([^`]+)`", row.test)
    assert names, f"{row.what}: which test shows it? ('{NONE}', if none does)"
    assert [name for name in names if not exists(name)] == []
