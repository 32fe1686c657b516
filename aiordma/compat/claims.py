"""Descriptors that transports of aiordma use, for loops that do not know them.

asyncio refuses `add_reader()` for the descriptor of a transport, as uvloop does for its own. asyncio also
takes foreign transports into its table; for uvloop the table is here.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from .own_methods import replace

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["claim", "protect"]

#: The methods of event loops that a transport's descriptor is kept from.
_WATCHING = ("add_reader", "remove_reader", "add_writer", "remove_writer")

_Transports = weakref.WeakValueDictionary[int, Any]
_claimed: weakref.WeakKeyDictionary[Any, _Transports] = weakref.WeakKeyDictionary()


def claim(loop: asyncio.AbstractEventLoop, descriptor: int, transport: asyncio.Transport) -> None:
    """This transport uses the descriptor until it is closing."""
    table = getattr(loop, "_transports", None)
    if not isinstance(table, weakref.WeakValueDictionary):
        table = _claimed.setdefault(loop, weakref.WeakValueDictionary())
    table[descriptor] = transport


def protect(cls: type) -> None:
    """Have a class of uvloop's loops refuse the descriptors of our transports.

    Under the names that asyncio has for that, the methods without this check remain, for aiordma itself.
    """
    if not hasattr(cls, "_add_reader"):
        for name in _WATCHING:
            method = getattr(cls, name)
            replace(cls, f"_{name}", method)
            replace(cls, name, _refusing(method))


def _refusing(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def watch(loop: Any, fd: Any, *arguments: Any) -> Any:
        number = fd if isinstance(fd, int) else fd.fileno()
        table = _claimed.get(loop)
        transport = None if table is None else table.get(number)
        if transport is not None and not transport.is_closing():
            raise RuntimeError(f"File descriptor {fd!r} is used by transport {transport!r}")
        return method(loop, fd, *arguments)

    return watch
