"""The table of what users report names tests that exist."""

from __future__ import annotations

import ast
import tomllib

from tests.contracts.playing import play  # noqa: F401  # it fills the table of behaviours
from tests.contracts.table import BEHAVIOURS

from .tree import ROOT

SURFACES = {
    "stream", "transport", "writer", "trio", "datagrams", "channels", "calls", "memory", "tls",
    "tcp", "client", "server",
}  # fmt: skip


def test_every_test_of_the_table_exists() -> None:
    table = tomllib.loads((ROOT / "tests/contracts/reported.toml").read_text(encoding="utf-8"))
    functions: dict[str, set[str]] = {}
    for behaviour, row in table.items():
        assert row, f"{behaviour} has no test"
        assert row.keys() <= SURFACES, behaviour
        for surface, test in row.items():
            kind, _, name = test.partition(":")
            if kind == "contract":
                assert name in BEHAVIOURS, f"{behaviour}, {surface}: {test}"
                continue
            file, _, function = test.partition("::")
            if file not in functions:
                tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
                functions[file] = {
                    node.name
                    for node in ast.walk(tree)
                    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                }
            assert function in functions[file], f"{behaviour}, {surface}: {test}"
