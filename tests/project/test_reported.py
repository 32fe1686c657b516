"""The table of what users report says something of every surface, and names tests that exist."""

from __future__ import annotations

import ast
import functools
import tomllib
from typing import Any

import pytest

from tests.contracts.playing import play  # noqa: F401  # it fills the table of behaviours
from tests.contracts.table import BEHAVIOURS

from .tree import ROOT

SURFACES = {
    "stream", "transport", "writer", "trio", "datagrams", "channels", "calls", "memory", "tls",
    "tcp", "client", "server",
}  # fmt: skip


@functools.cache
def rows() -> dict[str, Any]:
    return tomllib.loads((ROOT / "tests/contracts/reported.toml").read_text(encoding="utf-8"))


@functools.cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}


def cells(row: dict[str, Any]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The tests by surface, and surfaces by the reason why there is no meaning."""
    tests = {name: value for name, value in row.items() if name != "no_meaning"}
    return tests, row.get("no_meaning", {})


@pytest.mark.parametrize("behaviour", rows())
def test_every_surface_is_named_once(behaviour: str) -> None:
    tests, meaningless = cells(rows()[behaviour])
    assert tests, "a row has a test"
    named = [*tests, *(surface for surfaces in meaningless.values() for surface in surfaces)]
    assert sorted(named) == sorted(SURFACES)
    assert all(len(reason.split()) > 2 for reason in meaningless), "a reason is a sentence"


@pytest.mark.parametrize("behaviour", rows())
def test_every_test_exists(behaviour: str) -> None:
    for surface, test in cells(rows()[behaviour])[0].items():
        kind, _, name = test.partition(":")
        if kind == "contract":
            assert name in BEHAVIOURS, f"{surface}: {test}"
        else:
            file, _, function = test.partition("::")
            assert function in functions_of(file), f"{surface}: {test}"
