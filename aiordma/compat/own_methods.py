"""The methods that an event loop has without aiordma, whether or not they were replaced.

`aiordma.install()` replaces methods of the classes of event loops. Everything below it uses the loop's own
methods, and so may a program, for a connection that must be plain TCP.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

__all__ = ["LoopMethods", "is_overridden", "replace", "unpatched"]

#: What was there, by class and name; `inherited`: the class had the method of a base class, or none.
_replaced: dict[tuple[type, str], tuple[Any, bool]] = {}


class LoopMethods:
    """See :func:`unpatched`."""

    __slots__ = ("_cls", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, cls: type | None) -> None:
        self._loop, self._cls = loop, cls

    def __getattr__(self, name: str) -> Any:
        for cls in (self._cls or type(self._loop)).__mro__:
            if (before := _replaced.get((cls, name))) is not None:
                return types.MethodType(before[0], self._loop)
        if self._cls is not None:
            return types.MethodType(getattr(self._cls, name), self._loop)
        return getattr(self._loop, name)


def unpatched(loop: asyncio.AbstractEventLoop, cls: type | None = None) -> LoopMethods:
    """The loop's own methods, as they were before :func:`aiordma.install`.

    ``await aiordma.unpatched(loop).create_connection(...)`` makes a connection that stays plain TCP. Without
    `install()` these are the loop's methods as they are.

    :param cls: the methods of this class instead of those of the loop's.
    """
    return LoopMethods(loop, cls)


def replace(cls: type, name: str, method: Callable[..., Any]) -> None:
    """Replace a method of a class of event loops; once, further calls change nothing."""
    if (cls, name) not in _replaced:
        # A base class whose method was replaced before has its own one here.
        above = (_replaced[each, name] for each in cls.__mro__[1:] if (each, name) in _replaced)
        before = getattr(cls, name, None)
        if name not in vars(cls):
            before = next(above, (before,))[0]
        _replaced[cls, name] = (before, name not in vars(cls))
        setattr(cls, name, method)


def is_overridden(loop: object, name: str) -> bool:
    """Whether this loop has a method of the program's own where others have a replaced one."""
    if name in getattr(loop, "__dict__", ()):
        return True
    for cls in type(loop).__mro__:
        if name in vars(cls):
            return (cls, name) not in _replaced
    return True


def restore(classes: Collection[type]) -> None:
    """Undo every :func:`replace` for these classes."""
    for cls, name in [each for each in _replaced if each[0] in classes]:
        method, inherited = _replaced.pop((cls, name))
        if inherited:
            delattr(cls, name)
        else:
            setattr(cls, name, method)
