"""Where tests read real time, or wait for so many seconds: found in their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

#: Marks of ``tests/virtual.py``: a test that has one of them takes no real time.
VIRTUAL = {"in_virtual_time", "while_time_stands_still", "on_virtual_asyncio"}
_CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "current_time", "time_ns"}
#: Limits: one of a second or more ends only what hangs.
_LIMITS = {"fail_after", "timeout", "wait_for"}


def _is_short(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and 0 < node.value < 1


def _is_nothing(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _takes_time(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in _CLOCKS or (name == "time" and isinstance(function, ast.Attribute) and not call.args):
        return True
    if name in ("sleep", "move_on_after") and call.args:
        return not _is_nothing(call.args[0])
    if name in _LIMITS and any(map(_is_short, call.args)):
        return True
    return any(word.arg and word.arg.endswith("timeout") and _is_short(word.value) for word in call.keywords)


def _is_virtual(node: ast.AST) -> bool:
    marks = getattr(node, "decorator_list", [])
    return any(isinstance(mark, ast.Name) and mark.id in VIRTUAL for mark in marks)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not _is_virtual(child):
            yield child
            yield from _walk(child)


def lines(path: Path) -> list[int]:
    """Those on which the file reads a clock, or waits for a time."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.lineno for node in _walk(tree) if isinstance(node, ast.Call) and _takes_time(node)]


#: Times that the library gives its peer. Below this, a peer on a busy machine may be late.
LEAST_MS = 30_000
_OF_PEERS = {
    f"{name}_ms"
    for name in (
        "negotiate_timeout",
        "head_start",
        "server_first_wait",
        "link_timeout",
        "keepalive_timeout",
        "failover_timeout",
    )
}


def _number(node: ast.expr, names: dict[str, ast.expr]) -> float | None:
    """Its value, if it is written there or at the top of the module; ``SLOWER`` is 1, as on most machines."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id="SLOWER"):
            return 1
        case ast.Name(id=name) if name in names:
            return _number(names[name], {})
        case ast.Call(func=ast.Name(id="round" | "int"), args=[argument]):
            return _number(argument, names)
        case ast.BinOp(op=ast.Mult()):
            left, right = _number(node.left, names), _number(node.right, names)
            return None if left is None or right is None else left * right
    return None


def short_times(path: Path) -> list[int]:
    """Lines that give a peer a short time. None at all is another thing: nobody can be in time."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    given: list[tuple[str | None, ast.expr]] = []
    for node in _walk(tree):
        if isinstance(node, ast.Call):
            given += [(word.arg, word.value) for word in node.keywords]
        elif isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            given += [
                (key if isinstance(key, str) else None, value)
                for key, value in zip(keys, node.values, strict=True)
            ]
    found = [(value.lineno, _number(value, names)) for name, value in given if name in _OF_PEERS]
    return [line for line, number in found if number is not None and 0 < number < LEAST_MS]
