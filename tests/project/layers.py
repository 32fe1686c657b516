"""The order of aiordma's packages, and every import between its modules as read from the source.

Reads `.py` and `.pyi` with `ast` (imports inside functions and under `if TYPE_CHECKING` count), `.pyx` and
`.pxd` by pattern (`import` and `cimport` alike). Nothing is imported, so a module that cannot run here is
judged, too.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Lowest first. A package may import its own modules and those of the rows before its own. Packages of one
#: row do not import each other.
ORDER: tuple[tuple[str, ...], ...] = (
    ("proto",),
    ("errors", "addresses", "plain", "borrowed", "constants", "cgroup"),
    ("attributes", "config"),
    ("wake",),
    ("credit",),
    ("verbs",),
    ("datapath",),
    ("observe", "faults"),
    ("pipes",),
    ("links",),
    ("negotiation",),
    ("streams", "datagrams", "channels"),
    # What is built on message channels: calls, and the memory of peers. Requests for memory are messages of a
    # channel, and READs and WRITEs of it run on the link under that channel. Valkey's streams.
    ("rpc", "memory", "control", "valkey"),
    # It reads and steers all that a program holds. Nothing below imports it: an engine begins it by name.
    ("admin",),
    # Measuring is what commands and benchmarks have in common.
    ("compat", "testing", "measure"),
    # Puts what compat offers into the event loops of programs, and into other libraries.
    ("launch",),
    ("integrations",),
    ("cli",),
    ("__main__",),
)

#: Modules whose path does not show their package.
BELONGS_TO = {"aiordma._cq": "datapath"}

#: The facade: names of all packages, resolved on first use.
FACADE = "aiordma"

#: Other top-level packages of the wheel, and the only package of aiordma that may import them. They import
#: nothing of aiordma: networks are planned and simulated on machines without RDMA.
BESIDE = {"rocefabric": "aiordma.cli.fabric"}

#: Imports that the order forbids and that stay, with the reason.
EXCEPTIONS: dict[tuple[str, str], str] = {}

RANK = {package: rank for rank, row in enumerate(ORDER) for package in row}


class Import(NamedTuple):
    """One import statement's edge."""

    importer: str
    imported: str
    line: int


def module_name(path: Path, root: Path) -> str:
    """Dotted name of a source file; ``root`` holds the package."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(root: Path, package: str = "aiordma") -> list[Path]:
    """Every module of the top-level package below ``root``."""
    found = (root / package).rglob("*")
    return sorted(path for path in found if path.suffix in {".py", ".pyx", ".pxd", ".pyi"})


def package_of(module: str) -> str:
    """The package (a row's entry in :data:`ORDER`) of a module; :data:`FACADE` for ``aiordma`` itself."""
    if module in BELONGS_TO:
        return BELONGS_TO[module]
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else FACADE


def _python(source: str) -> Iterator[tuple[int, str, list[str], int]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, [], node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [alias.name for alias in node.names], node.lineno


_FROM = re.compile(r"^\s*from\s+(\.*)([\w.]*)\s+c?import\s+(\([^)]*\)|[^#\n]*)", re.MULTILINE)
_PLAIN = re.compile(r"^\s*c?import\s+([\w.]+)", re.MULTILINE)


def _cython(source: str) -> Iterator[tuple[int, str, list[str], int]]:
    for match in _FROM.finditer(source):
        names = [part.split(" as ")[0].strip() for part in match[3].strip("()").split(",")]
        line = source.count("\n", 0, match.start()) + 1
        yield len(match[1]), match[2], [name for name in names if name], line
    for match in _PLAIN.finditer(source):
        yield 0, match[1], [], source.count("\n", 0, match.start()) + 1


def absolute_imports(path: Path) -> set[str]:
    """Modules that a Python file imports by their full name."""
    found = _python(path.read_text(encoding="utf-8"))
    return {base for level, base, _, _ in found if not level}


def imports(path: Path, root: Path, modules: frozenset[str], package: str = "aiordma") -> Iterator[Import]:
    """The modules of a top-level package that a source file imports.

    :param modules: names of all its modules, to tell a submodule from a name inside a package.
    """
    importer = module_name(path, root)
    parent = importer.split(".") if path.name.startswith("__init__.") else importer.split(".")[:-1]
    read = _python if path.suffix in (".py", ".pyi") else _cython
    for level, base, names, line in read(path.read_text(encoding="utf-8")):
        if level:
            base = ".".join([*parent[: len(parent) - level + 1], *([base] if base else [])])
        if base.split(".")[0] != package:
            continue
        for name in names or [""]:
            full = f"{base}.{name}"
            yield Import(importer, full if full in modules else base, line)


def all_imports(root: Path, package: str = "aiordma", by: str | None = None) -> list[Import]:
    """Every import of modules of a top-level package below ``root``.

    :param by: the top-level package whose modules import; the package itself without it.
    """
    modules = frozenset(module_name(path, root) for path in sources(root, package))
    files = sources(root, by or package)
    return [edge for path in files for edge in imports(path, root, modules, package)]


def is_upward(edge: Import) -> bool:
    """Whether the order forbids this import. The facade is above everything and imports what it likes."""
    importer, imported = package_of(edge.importer), package_of(edge.imported)
    if importer == imported or importer == FACADE or (edge.importer, edge.imported) in EXCEPTIONS:
        return False
    if imported == FACADE:
        return True
    return RANK[imported] >= RANK[importer]


def module_cycles(edges: list[Import]) -> list[list[str]]:
    """Modules that import each other, directly or around (strongly connected components of more than one)."""
    graph: dict[str, set[str]] = {}
    for edge in edges:
        graph.setdefault(edge.importer, set()).add(edge.imported)
        graph.setdefault(edge.imported, set())
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component: list[str] = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found
