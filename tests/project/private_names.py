"""The private names of others that the package's sources use.

Python is read with `ast`, Cython and C by pattern. What is private in classes of others, which ours inherit
from, the sources here do not show: those classes are imported and looked at.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import textwrap
from typing import TYPE_CHECKING, NamedTuple

from .layers import module_name, package_of, sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

#: Functions and methods whose argument is the name of an attribute.
_BY_NAME = {"delattr", "getattr", "hasattr", "replace", "setattr", "setdefault"}
#: An underscore that is no sign of privacy: Python documents the name for everybody.
DOCUMENTED = {"_asdict", "_exit", "_fields", "_fields_", "_getframe", "_is_gil_enabled", "_make", "_replace"}
_PRIVATE = re.compile(r"_[A-Za-z]\w*(?<!__)")
_COMMENT = re.compile(r"/\*(?s:.*?)\*/|#[ \t].*|\"\"\"(?s:.*?)\"\"\"")
_OF_C = re.compile(r"\b(_Py[A-Z]\w+|ob_\w+|Py_SET_\w+)\b")
_IN_CYTHON = re.compile(r"\.(_[a-z]\w*)\b|\b(?:getattr|setattr|hasattr)\(\w+, \"(_[a-z]\w*)\"")


class Use(NamedTuple):
    """A private name in a module (without the package's own name) of ours."""

    module: str
    name: str


def is_private(name: str) -> bool:
    return _PRIVATE.fullmatch(name) is not None and name not in DOCUMENTED


# ---- names that the sources show


def uses(root: Path, package: str = "aiordma") -> set[Use]:
    """Private names that no source of the package defines."""
    paths = [path for path in sources(root, package) if package_of(module_name(path, root)) != "borrowed"]
    paths += sorted((root / package).rglob("*.h"))
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    own = {path.stem for path in paths}.union(*(_defined(path, text) for path, text in texts.items()))
    found = set()
    for path, text in texts.items():
        module = module_name(path, root).removeprefix(f"{package}.")
        names = set(_used(ast.parse(text)) if path.suffix in (".py", ".pyi") else _used_in_c(text))
        found |= {Use(module, name) for name in names - own}
    return found


def _defined(path: Path, text: str) -> set[str]:
    if path.suffix not in (".py", ".pyi"):
        return set() if path.suffix == ".h" else set(re.findall(r"\b(_[A-Za-z]\w*)\b(?=\s*[(,=:\n\[])", text))
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self" | "cls")):
                found.add(name)
            case ast.ImportFrom(level=1 | 2 | 3, module=module, names=names):
                # Modules of ours, too, may begin with an underscore.
                found |= {alias.name for alias in names} | set((module or "").split("."))
    return found


def _used(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if is_private(name):
                yield name
            case ast.Import(names=names):
                yield from (part for alias in names for part in alias.name.split(".") if is_private(part))
            case ast.ImportFrom(level=0, module=str(module), names=names):
                yield from filter(is_private, [*module.split("."), *(alias.name for alias in names)])
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if called in _BY_NAME:
                texts = (each.value for each in node.args if isinstance(each, ast.Constant))
                yield from (text for text in texts if isinstance(text, str) and is_private(text))


def _used_in_c(text: str) -> Iterator[str]:
    text = _COMMENT.sub("", text)
    yield from _OF_C.findall(text)
    for one, other in _IN_CYTHON.findall(text):
        if is_private(one or other):
            yield one or other


# ---- names that come with a class of others


def inherited(root: Path, package: str = "aiordma") -> set[Use]:
    """What our classes use or replace of what classes of others, which they inherit from, have private."""
    found = set()
    for path in sources(root, package):
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.suffix == ".py" else None
        if tree is None or not any(isinstance(node, ast.ClassDef) and node.bases for node in ast.walk(tree)):
            continue
        name = module_name(path, root)
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue  # a library that it adapts to is not installed
        for node in tree.body:
            cls = getattr(module, node.name, None) if isinstance(node, ast.ClassDef) else None
            if inspect.isclass(cls):
                theirs = _private_of(_bases_of_others(cls, package))
                for base in (each for each in cls.__mro__ if each.__module__.split(".")[0] == package):
                    short = base.__module__.removeprefix(f"{package}.")
                    found |= {Use(short, used) for used in _names_of(base) & theirs}
    return found


def _bases_of_others(cls: type, package: str) -> tuple[type, ...]:
    ours = (package, "builtins", "typing", "abc", "enum", "collections")
    return tuple(base for base in cls.__mro__ if base.__module__.split(".")[0] not in ours)


def _private_of(classes: Iterable[type]) -> set[str]:
    return set[str]().union(*map(_private_of_one, classes))


@functools.cache
def _private_of_one(cls: type) -> set[str]:
    found = {name for name in vars(cls) if is_private(name)}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return found  # written in C
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self")) if is_private(name):
                found.add(name)
    return found


@functools.cache
def _names_of(cls: type) -> frozenset[str]:
    """What the body of a class says of itself, and what it defines."""
    found = set()
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return frozenset()  # a compiled one, which has no base of others
    for each in ast.walk(tree):
        match each:
            case ast.Attribute(attr=name, value=ast.Name(id="self" | "cls") | ast.Call()):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
    return frozenset(name for name in found if is_private(name))
