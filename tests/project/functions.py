"""The functions of a source file and how long they are, from the text alone."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: A comment right above a longer function (and its decorators) gives the reason: ``# long: ...``.
REASON = re.compile(r"\s*# long: \S.*\S")


class Function(NamedTuple):
    """One function, its docstring included."""

    name: str
    #: the first one: of a decorator, if it has any
    line: int
    lines: int
    has_reason: bool


def functions(path: Path) -> Iterator[Function]:
    """All functions of a Python or Cython file, nested ones too."""
    text = path.read_text(encoding="utf-8")
    source = text.splitlines()
    found = _of_python(text) if path.suffix == ".py" else _of_cython(source)
    for name, first, last in found:
        above = source[first - 2] if first > 1 else ""
        yield Function(name, first, last - first + 1, REASON.fullmatch(above) is not None)


def _of_python(text: str) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield node.name, first, node.end_lineno or first


_CYTHON = re.compile(
    r"( *)(?:async +)?(?:def|cdef|cpdef) +(?!class\b|struct\b|enum\b|extern\b)[^=(]*?(\w+)\("
)


def _of_cython(source: list[str]) -> Iterator[tuple[str, int, int]]:
    """A function ends before the first line of code that is indented no more than its header."""
    for number, line in enumerate(source, 1):
        header = _CYTHON.match(line)
        if header is None:
            continue
        last = number
        while last < len(source) and not source[last - 1].split("#")[0].rstrip().endswith(":"):
            last += 1  # a header of several lines
        for after in range(last, len(source)):
            text = source[after]
            if not text.strip() or text.lstrip().startswith("#"):
                continue
            if len(text) - len(text.lstrip()) <= len(header[1]):
                break
            last = after + 1
        yield header[2], number, last
