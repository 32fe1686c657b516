"""Descriptors that transports of aiordma use, for loops that do not know them.

asyncio refuses `add_reader()` for the descriptor of a transport, as uvloop does for its own. asyncio also
takes foreign transports into its table; for uvloop the table is here.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from ..borrowed import ENABLED
from .own_methods import replace

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

#: The methods of event loops that a transport's descriptor is kept from.
_WATCHING = ("add_reader", "remove_reader", "add_writer", "remove_writer")


class Claim:
    """What stands in a loop's table for a transport of aiordma, for as long as the transport keeps it."""

    __slots__ = ("__weakref__", "_descriptor", "_socket", "_transport")

    def __init__(self, transport: asyncio.Transport, shown: Any) -> None:
        """`shown`: the socket whose descriptor it is."""
        self._transport = weakref.ref(transport)
        self._socket, self._descriptor = shown, shown.fileno()

    def __repr__(self) -> str:
        return repr(self._transport())

    def is_closing(self) -> bool:
        """Whether the descriptor is free for others. It is, too, when the connection was lost and its socket
        closed, and the transport has yet to learn that: the number may be another socket's by now.
        """
        transport = self._transport()
        return transport is None or transport.is_closing() or self._socket.fileno() != self._descriptor


_Transports = weakref.WeakValueDictionary[int, Claim]
_claimed: weakref.WeakKeyDictionary[Any, _Transports] = weakref.WeakKeyDictionary()


def claim(loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, shown: Any) -> Claim:
    """This transport uses the descriptor of the socket `shown` until it is closing, or drops the claim."""
    table = getattr(loop, "_transports", None) if ENABLED else None
    if not isinstance(table, weakref.WeakValueDictionary):
        table = _claimed.setdefault(loop, weakref.WeakValueDictionary())
    made = Claim(transport, shown)
    table[shown.fileno()] = made
    return made


def protect(cls: type, around: Callable[[Any], Any] = lambda method: method) -> None:
    """Have a class of uvloop's loops refuse the descriptors of our transports.

    Under the names that asyncio has for that, the methods without this check remain, for aiordma itself.

    :param around: makes of each refusing method the one that programs get.
    """
    if ENABLED and not hasattr(cls, "_add_reader"):
        for name in _WATCHING:
            method = getattr(cls, name)
            replace(cls, f"_{name}", method)
            replace(cls, name, around(_refusing(method)))


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
