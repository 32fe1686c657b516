"""Words for the mistakes of users who know other libraries: what they try, and what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")

_DEADLINE = "put the call into `with anyio.fail_after(seconds)` or `async with asyncio.timeout(seconds)`"
_ASYNCIO = "aiordma.open_connection() gives asyncio's reader and writer"
#: Methods of sockets and of asyncio's streams, with those of aiordma's.
_METHODS = {
    "read": f"receive(); {_ASYNCIO}",
    "readexactly": f"receive(), until there is enough; {_ASYNCIO}",
    "readline": f"receive(); {_ASYNCIO}",
    "readuntil": f"receive(); {_ASYNCIO}",
    "recv": "receive()",
    "recv_into": "receive_into()",
    "write": f"`await stream.send(data)`, which sends all of it; {_ASYNCIO}",
    "sendall": "`await stream.send(data)`, which sends all of it",
    "drain": "`await stream.send(data)`, which waits for the peer by itself",
    "close": "`await stream.aclose()`, or `async with`",
    "wait_closed": "`await stream.aclose()`, which waits by itself",
    "shutdown": "`await stream.send_eof()`",
    "write_eof": "`await stream.send_eof()`",
    "get_extra_info": "extra(), with aiordma.RdmaAttribute or anyio's attributes",
}


def refuse_keywords(unknown: Mapping[str, Any], known: Iterable[str]) -> NoReturn:
    """:raises TypeError: always, for the first of these parameters; the text says what to write instead."""
    from ..config import settings  # a loop that imports this module itself does not stand still for it

    name = next(iter(unknown))
    if name in ("timeout", "connect_timeout", "deadline"):
        hint = _DEADLINE
    elif name in {setting.name for setting in settings()}:
        hint = f"it is a setting: pass config=aiordma.Config({name}={unknown[name]!r})"
    else:
        import difflib  # for the few programs that need it

        near = difflib.get_close_matches(name, sorted(known), 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
    raise TypeError(f"there is no parameter {name!r}; {hint}")


class _Missing:
    """In the place of a method that there is not: as without it, but for the text."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, stream: object, owner: type) -> NoReturn:
        who = f"type object {owner.__name__!r}" if stream is None else f"{owner.__name__!r} object"
        text = f"{who} has no attribute {self._name!r}: use {_METHODS[self._name]}"
        raise AttributeError(text, name=self._name, obj=stream)


def hint_at_methods(kind: type[T]) -> type[T]:
    """A class of streams, with words for the methods that it has not.

    (A ``__getattr__()`` would have them, too, and make each look at any attribute three times as long.)
    """
    for name in _METHODS:
        if not hasattr(kind, name):
            setattr(kind, name, _Missing(name))
    return kind


class NotOpenYet:
    """What an opened connection or listener has, on an object that must be awaited first."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, opening: object, owner: type | None = None) -> Any:
        raise AttributeError(f"it is not open yet, so there is no {self._name!r}: {opening!r}")
