"""Imports point one way: `layers.NEEDS` says which package imports which, and all of that is true."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from . import layers
from .tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def edges() -> list[layers.Import]:
    return layers.all_imports(ROOT)


def forbidden(edges: list[layers.Import]) -> set[str]:
    return {
        f"{edge.importer}:{edge.line} imports {edge.imported}" for edge in edges if layers.is_forbidden(edge)
    }


def test_every_module_belongs_to_a_package() -> None:
    packages = {layers.package_of(layers.module_name(path, ROOT)) for path in layers.sources(ROOT)}
    assert packages - layers.NEEDS.keys() == {layers.FACADE}


def test_imports_are_those_that_are_listed(edges: list[layers.Import]) -> None:
    assert forbidden(edges) == set()


def test_what_is_listed_is_imported(edges: list[layers.Import]) -> None:
    imported = layers.needed(edges)
    unused = {package: {*needs.split()} - imported[package] for package, needs in layers.NEEDS.items()}
    assert {package: needs for package, needs in unused.items() if needs} == {}


def test_what_a_package_needs_stands_before_it() -> None:
    before: set[str] = set()
    for package, needs in layers.NEEDS.items():
        assert {*needs.split()} <= before, package
        before.add(package)


def test_every_exception_is_still_needed(edges: list[layers.Import]) -> None:
    pairs = {(edge.importer, edge.imported) for edge in edges}
    assert {pair for pair in layers.EXCEPTIONS if pair not in pairs} == set()


def test_no_module_imports_itself_around_others(edges: list[layers.Import]) -> None:
    inside = [edge for edge in edges if layers.FACADE not in (edge.importer, edge.imported)]
    assert layers.module_cycles([edge for edge in inside if edge[:2] not in layers.EXCEPTIONS]) == []


@pytest.mark.parametrize("package", layers.BESIDE)
def test_what_lies_beside_aiordma_stands_by_itself(package: str) -> None:
    assert layers.all_imports(ROOT, by=package) == []
    assert layers.module_cycles(layers.all_imports(ROOT, package)) == []


@pytest.mark.parametrize("package", layers.BESIDE)
def test_only_its_doors_import_what_lies_beside(package: str) -> None:
    doors = layers.BESIDE[package]
    importers = {edge.importer for edge in layers.all_imports(ROOT, package, by="aiordma")}
    assert bool(importers) == bool(doors)
    for door in doors:
        through = {name for name in importers if f"{name}.".startswith(f"{door}.")}
        assert through, f"{door} imports nothing of {package} any more"
        importers -= through
    assert importers == set()


def test_proto_needs_nothing_but_the_standard_library_and_itself() -> None:
    found = {}
    for path in sorted((ROOT / "aiordma" / "proto").rglob("*.py")):
        names = {name.split(".")[0] for name in layers.absolute_imports(path)}
        if foreign := names - sys.stdlib_module_names - {"cython", "aiordma"}:
            found[path.name] = foreign
    assert found == {}


# ---- the check itself: an import is found wherever it hides


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("wake/base.py", "from ..links import engine"),
        ("proto/cursor.py", "def late() -> None:\n    import aiordma.errors"),
        ("pipes/tcp.py", "if TYPE_CHECKING:\n    from ..streams.stream import RdmaStream"),
        ("datapath/_qp.pyx", "from ..pipes._ring cimport RingPipe"),
        ("datapath/_qp.pyx", "from aiordma.links import engine as _engine"),
        ("datapath/_qp.pxd", "from aiordma.pipes._ring cimport (\n    RingPipe,\n)"),
        ("datapath/_qp.pyi", "from ..links.link import Link"),
        ("_cq.pyx", "from .pipes._ring cimport RingPipe"),
        ("credit.py", "import aiordma"),
        ("pipes/tcp.py", '_MODULE = "aiordma.streams.stream"'),
        ("pipes/tcp.py", 'def late(name: str) -> str:\n    return f"aiordma.streams.{name}"'),
        ("datapath/_qp.pyx", '_MODULE = "aiordma.links.engine"'),
        ("measure/loops.py", "from ..links import engine"),
    ],
)
def test_a_planted_import_is_found(tmp_path: Path, module: str, line: str) -> None:
    modules = frozenset(layers.module_name(path, ROOT) for path in layers.sources(ROOT))
    planted = tmp_path / "aiordma" / module
    planted.parent.mkdir(parents=True, exist_ok=True)
    source = (ROOT / "aiordma" / module).read_text(encoding="utf-8")
    planted.write_text(f"{source}\n{line}\n", encoding="utf-8")
    assert layers.sources(tmp_path) == [planted]
    assert len(forbidden(list(layers.imports(planted, tmp_path, modules)))) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("model.py", "def late():\n    from aiordma import config"),
        ("_core.pyx", "from aiordma.verbs cimport _copy"),
    ],
)
def test_a_planted_import_of_aiordma_is_found(tmp_path: Path, module: str, line: str) -> None:
    (tmp_path / "rocefabric").mkdir()
    (tmp_path / "rocefabric" / module).write_text(f"{line}\n", encoding="utf-8")
    assert len(layers.all_imports(tmp_path, by="rocefabric")) == 1


def test_a_planted_cycle_is_found(tmp_path: Path) -> None:
    package = tmp_path / "aiordma" / "wake"
    package.mkdir(parents=True)
    (package / "one.py").write_text("from . import two\n", encoding="utf-8")
    (package / "two.py").write_text("def late():\n    from .one import name\n", encoding="utf-8")
    (package / "three.py").write_text("from . import one\n", encoding="utf-8")
    assert layers.module_cycles(layers.all_imports(tmp_path)) == [["aiordma.wake.one", "aiordma.wake.two"]]
