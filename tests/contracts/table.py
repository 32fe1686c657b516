"""The table of behaviours: each is a function that plays on a stage, with the sentence that it stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .stage import Stage

    Behaviour = Callable[[Stage], Awaitable[None]]

BEHAVIOURS: dict[str, Behaviour] = {}


def behaviour(function: Behaviour) -> Behaviour:
    """Enter a behaviour in the table."""
    name = function.__name__
    assert name not in BEHAVIOURS, f"two behaviours are called {name}"
    assert function.__doc__, f"{name} must say in its docstring what it finds out"
    BEHAVIOURS[name] = function
    return function
