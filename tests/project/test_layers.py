"""Imports point one way (DESIGN 3): each layer knows only those below it.

Read from the source with `ast`, so that an import inside a function counts too, and a module that cannot be
imported here (no device, no pyverbs) is judged all the same. Imports under `if TYPE_CHECKING` bind nothing at
run time and are left out.
"""

from __future__ import annotations

import ast
import sys

import pytest

from .tree import ROOT

PACKAGE = ROOT / "aiordma"

# Lowest first. A name is a module or a folder of aiordma; what is not listed here is not judged by the order,
# but `test_every_module_has_a_layer` demands that it is listed.
LAYERS: list[set[str]] = [
    {"proto", "errors", "config"},
    {
        "_softdev",
        "_accessors",
        "_filter",
        "_fill",
        "_spare",
        "_starved",
        "_ring",
        "_ringbase",
        "_ringleave",
        "_channel",
        "_inbox",
        "_large",
        "_qp",
        "_cq",
        "_datagram",
        "_ud",
        "verbs",
    },
    {"wake"},
    {"observe", "credit", "attributes", "faults"},
    {
        "engine",
        "udparts",
        "link",
        "linkgroup",
        "messagememory",
        "message_tcp",
        "offer",
        "cmconnect",
        "tickets",
        "tcp",
        "tls",
        "peers",
        "dial",
        "wire",
        "negotiate",
        "outcome",
        "carry",
        "comeback",
        "devices",
        "framed",
        "lingering",
        "road",
    },
    {
        "stream",
        "records",
        "waiting",
        "datagram",
        "endpoint",
        "resolver",
        "peertable",
        "channel",
        "listener",
        "connect",
        "rpc",
    },
    {"compat", "testing", "fabric"},
    {"cli", "__init__", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def _parts() -> set[str]:
    return {
        path.name.split(".")[0]
        for path in PACKAGE.iterdir()
        if path.suffix in {".py", ".pyx"} or (path / "__init__.py").exists()
    }


def _runtime_nodes(tree: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes: list[ast.AST] = [part for other in node.orelse for part in (other, *_runtime_nodes(other))]
        else:
            nodes = [node, *_runtime_nodes(node)]
        found.extend(nodes)
    return found


def imported_modules(source: str, package: str) -> set[str]:
    """Absolute names of all modules that `source`, a module of `package`, imports at run time."""
    names: set[str] = set()
    for node in _runtime_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")
                parent = parent[: len(parent) - node.level + 1]
                base = ".".join([*parent, *([node.module] if node.module else [])])
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


def _upward(source: str, package: str, own: str) -> set[str]:
    """Parts of aiordma above `own` that `source` imports."""
    found = set()
    for name in imported_modules(source, package):
        pieces = name.split(".")
        if pieces[0] != "aiordma" or len(pieces) < 2:
            continue
        part = pieces[1]
        if part in RANK and RANK[part] > RANK[own]:
            found.add(part)
    return found


def test_imports_are_read_as_python_reads_them() -> None:
    source = (
        "from ..wake import base\nfrom . import x\nimport aiordma.engine\nif TYPE_CHECKING:\n import trio\n"
    )
    expected = {"aiordma.wake.base", "aiordma.proto.x", "aiordma.engine"}
    assert imported_modules(source, "aiordma.proto") == expected
    assert _upward(source, "aiordma.proto", "proto") == {"wake", "engine"}


def test_every_module_has_a_layer() -> None:
    assert _parts() - RANK.keys() == set()


@pytest.mark.parametrize("part", sorted(_parts() & RANK.keys()))
def test_imports_point_down(part: str) -> None:
    folder = PACKAGE / part
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else sorted(PACKAGE.glob(f"{part}.py"))
    found = {}
    for path in files:
        package = ".".join(("aiordma", *path.relative_to(PACKAGE).parts[:-1]))
        if up := _upward(path.read_text(encoding="utf-8"), package, part):
            found[str(path.relative_to(ROOT))] = up
    assert found == {}


def test_proto_needs_nothing_but_the_standard_library_and_itself() -> None:
    allowed = {"aiordma.proto", "aiordma.errors"}
    found = {}
    for path in sorted((PACKAGE / "proto").rglob("*.py")):
        names = imported_modules(path.read_text(encoding="utf-8"), "aiordma.proto")
        foreign = {
            name
            for name in names
            if name.split(".")[0] not in sys.stdlib_module_names | {"cython"}
            and ".".join(name.split(".")[:2]) not in allowed
        }
        if foreign:
            found[path.name] = foreign
    assert found == {}
