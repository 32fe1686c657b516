"""The limits inside tests end before pytest's own, which says less and ends the whole worker."""

from __future__ import annotations

import ast
import tomllib

import pytest

from .tree import ROOT

TESTS = ROOT / "tests"
#: pytest's own limit.
MOST = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["timeout"]
#: Rooms with limits of their own.
OTHER_ROOMS = {"card", "programs", "roots", "soak", "vm", "wheels"}
_WAITS = {"run", "communicate", "wait", "check_output", "check_call"}


def too_long(source: str) -> list[int]:
    """Lines with a call that waits for a program or thread as long as pytest does, or longer."""
    if "pytest.mark.timeout(" in source:
        return []
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _WAITS:
            limits = [word.value for word in node.keywords if word.arg == "timeout"]
            numbers = [limit.value for limit in limits if isinstance(limit, ast.Constant)]
            found += [node.lineno for number in numbers if isinstance(number, int) and number >= MOST]
    return found


def test_what_a_test_waits_for_ends_before_the_test_does() -> None:
    """Where a program takes longer, ``pytest.mark.timeout`` gives its tests the time."""
    modules = sorted(TESTS.rglob("test_*.py"))
    read = {path.relative_to(TESTS).as_posix(): too_long(path.read_text()) for path in modules}
    assert {name: at for name, at in read.items() if at and name.split("/")[0] not in OTHER_ROOMS} == {}


@pytest.mark.parametrize(("more", "expected"), [(0, [1]), (-1, [])])
def test_what_is_planted_is_found(more: int, expected: list[int]) -> None:
    assert too_long(f"done = subprocess.run(command, timeout={MOST + more})") == expected
