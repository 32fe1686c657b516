"""What aiordma's packages need of each other, and every import between its modules as read from the source.

Reads `.py` and `.pyi` with `ast` (imports inside functions and under `if TYPE_CHECKING` count), `.pyx` and
`.pxd` by pattern (`import` and `cimport` alike). A string that is the full name of a module counts as its
import, unless it names a logger: it is imported by that name, sooner or later. Nothing is imported here, so a
module that cannot run on this machine is judged, too.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Lowest first: each package, and the packages of which it imports modules. These stand before it, and it
#: needs all of them.
NEEDS: dict[str, str] = {
    "proto": "",
    "errors": "proto",
    "addresses": "",
    "plain": "",
    "heap": "",
    "borrowed": "",
    "constants": "proto",
    "running": "borrowed",
    "importing": "running",
    "attributes": "errors addresses",
    "cgroup": "",
    "config": "proto borrowed constants cgroup",
    "wake": "proto errors addresses plain borrowed attributes",
    "credit": "wake",
    "verbs": "errors plain importing",
    "datapath": "proto errors plain borrowed wake verbs",
    "observe": "proto errors addresses config wake",
    "faults": "proto wake datapath",
    "pipes": "proto errors plain wake verbs datapath",
    "links": "proto errors addresses plain heap config wake verbs datapath observe faults pipes",
    "negotiation": "proto errors addresses running attributes config wake verbs observe pipes links",
    "streams": "errors addresses plain wake datapath pipes negotiation",
    "datagrams": "proto errors addresses plain attributes config wake verbs datapath pipes links negotiation",
    "channels": "proto errors addresses config wake observe pipes negotiation",
    "rpc": "proto errors addresses plain config wake credit verbs observe pipes negotiation channels",
    "memory": (
        "proto errors addresses plain config wake credit verbs observe pipes links negotiation channels"
    ),
    "control": "config wake verbs links streams datagrams",
    "valkey": (
        "proto errors addresses plain config wake verbs datapath observe pipes links negotiation streams"
    ),
    "admin": "proto errors addresses config wake verbs observe faults links rpc memory valkey",
    "compat": (
        "proto errors addresses plain heap borrowed config wake datapath observe pipes links negotiation "
        "streams datagrams"
    ),
    "testing": "proto errors plain wake pipes rpc",
    "measure": "errors addresses config wake observe negotiation streams datagrams rpc memory",
    "launch": "errors addresses plain borrowed importing config wake links negotiation streams compat",
    "integrations": "attributes config streams valkey compat launch",
    "cli": (
        "proto errors addresses borrowed config verbs faults links negotiation streams rpc admin measure "
        "launch"
    ),
    "loading": "running config wake verbs links negotiation streams admin",
    "__main__": "cli",
}

#: Modules whose path does not show their package.
BELONGS_TO = {"aiordma._cq": "datapath"}

#: The facade: names of all packages, resolved on first use.
FACADE = "aiordma"

#: Other top-level packages of the wheel, and what of aiordma may import them: their command, and what draws
#: in the same style. They import nothing of aiordma: networks are planned on machines without RDMA, and every
#: run of pytest loads a plug-in.
BESIDE = {
    "rocefabric": ("aiordma.cli.main", "aiordma.cli.perf", "aiordma.cli.ping.heat_map"),
    "pytest_softdev": (),
}

#: Imports beyond these, with the reason.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("aiordma.observe.companion", "aiordma.admin.endpoint"): (
        "the endpoint begins with a loop's first connection, as a plug-in would: connections do not need it"
    ),
    ("aiordma.verbs.softlib", "aiordma._cq"): (
        "the software device lies beside the compiled modules; it is not imported for its path"
    ),
}


class Import(NamedTuple):
    """One import, by a statement or by a string."""

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
    """The package (a key of :data:`NEEDS`) of a module; :data:`FACADE` for ``aiordma`` itself."""
    if module in BELONGS_TO:
        return BELONGS_TO[module]
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else FACADE


def _python(tree: ast.Module) -> Iterator[tuple[int, str, list[str], int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, [], node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [alias.name for alias in node.names], node.lineno


_LOGGER = "getLogger"


def _names_in_python(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Strings that may name a module; of those with parts that are worked out, what is before these."""
    loggers = {
        id(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith(_LOGGER)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and node.values:
            first = node.values[0]
            if isinstance(first, ast.Constant) and str(first.value).endswith("."):
                yield str(first.value).rstrip("."), node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loggers:
            yield node.value, node.lineno


_STRING = re.compile(r"(getLogger\(\s*)?\"([\w.]+)\"")


def _names_in_cython(source: str) -> Iterator[tuple[str, int]]:
    for match in _STRING.finditer(source):
        if match[1] is None:
            yield match[2], source.count("\n", 0, match.start()) + 1


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
    found = _python(ast.parse(path.read_text(encoding="utf-8")))
    return {base for level, base, _, _ in found if not level}


def imports(path: Path, root: Path, modules: frozenset[str], package: str = "aiordma") -> Iterator[Import]:
    """The modules of a top-level package that a source file imports.

    :param modules: names of all its modules, to tell a submodule from a name inside a package.
    """
    importer = module_name(path, root)
    parent = importer.split(".") if path.name.startswith("__init__.") else importer.split(".")[:-1]
    is_python = path.suffix in (".py", ".pyi")
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source) if is_python else None
    for name, line in _names_in_cython(source) if tree is None else _names_in_python(tree):
        if name in modules and name != package:
            yield Import(importer, name, line)
    for level, base, names, line in _cython(source) if tree is None else _python(tree):
        if level:
            base = ".".join([*parent[: len(parent) - level + 1], *([base] if base else [])])
        if base.split(".")[0] != package:
            continue
        for name in names or [""]:
            full = f"{base}.{name}"
            yield Import(importer, full if full in modules else base, line)


@functools.cache
def all_imports(root: Path, package: str = "aiordma", by: str | None = None) -> list[Import]:
    """Every import of modules of a top-level package below ``root``.

    :param by: the top-level package whose modules import; the package itself without it.
    """
    modules = frozenset(module_name(path, root) for path in sources(root, package))
    files = sources(root, by or package)
    return [edge for path in files for edge in imports(path, root, modules, package)]


def needed(edges: list[Import]) -> dict[str, set[str]]:
    """The packages that each package imports, but for :data:`EXCEPTIONS` and what the facade imports."""
    found: dict[str, set[str]] = {package: set() for package in NEEDS}
    for edge in edges:
        importer, imported = package_of(edge.importer), package_of(edge.imported)
        if importer not in (imported, FACADE) and (edge.importer, edge.imported) not in EXCEPTIONS:
            found[importer].add(imported)
    return found


def is_forbidden(edge: Import) -> bool:
    """Whether :data:`NEEDS` does not have this import. The facade imports what it likes."""
    importer, imported = package_of(edge.importer), package_of(edge.imported)
    if importer in (imported, FACADE) or (edge.importer, edge.imported) in EXCEPTIONS:
        return False
    return imported not in NEEDS[importer].split()


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
