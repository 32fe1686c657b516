"""Private interfaces of others are used as `aiordma.borrowed.table` says, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiordma.borrowed.table import TABLE, TRIED

from . import private_names
from .layers import module_name, sources
from .private_names import Use
from .tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

#: Attributes of our own that lie in objects of others, or are set from outside.
OWN = {"_aiordma_waker", "_own_waker"}


def of_the_table() -> set[Use]:
    return {Use(module, name) for row in TABLE for module in row.where for name in row.names}


@pytest.fixture(scope="module")
def found() -> set[Use]:
    return private_names.uses(ROOT) | private_names.inherited(ROOT)


def test_nothing_private_is_used_that_has_no_row(found: set[Use]) -> None:
    assert sorted(use for use in found - of_the_table() if use.name not in OWN) == []


def test_every_row_is_needed() -> None:
    """A module in it has the name somewhere; that of uvloop has none."""
    texts = {
        module_name(path, ROOT).removeprefix("aiordma."): path.read_text(encoding="utf-8")
        for path in [*sources(ROOT), *(ROOT / "aiordma").rglob("*.h")]
    }
    for row in (row for row in TABLE if row.owner != "uvloop"):
        for module in row.where:
            assert any(name in texts[module] for name in row.names), f"{module} has none of {row.names}"
        for name in row.names:
            assert any(name in texts[module] for module in row.where), f"{name} is not in {row.where}"


def test_every_owner_has_versions_that_were_tried() -> None:
    assert {row.owner for row in TABLE} == TRIED.keys()


PLANTED = """
import asyncio
from asyncio import streams
from asyncio.sslproto import _SSLPipe


class Own(asyncio.SelectorEventLoop):
    def later(self):
        return self._scheduled


def look(loop, frame):
    frame._asdict()
    return loop._selector_of_theirs, getattr(loop, "_hidden", None), _SSLPipe
"""


def test_what_is_planted_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "module.py").write_text(PLANTED)
    (tmp_path / "planted" / "part.h").write_text("/* _PyLong_Sign */ _PyBytes_Resize(&bytes, 1);\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = private_names.uses(tmp_path, "planted") | private_names.inherited(tmp_path, "planted")
    assert {use.name for use in found if use.module == "module"} == {
        "_SSLPipe", "_hidden", "_scheduled", "_selector_of_theirs"
    }  # fmt: skip
    assert {use.name for use in found if use.module == "part"} == {"_PyBytes_Resize"}
