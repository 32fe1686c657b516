"""A process that has an admin endpoint and answers as it likes: ``python -m tests.admin.impostor WAY``."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from aiordma.admin import directory, messages, page

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What fits into a field of the type, and into no program.
_ODD: dict[str, list[Any]] = {
    "int": [0, -1, 2**63 - 1, -(2**63)],
    "float": [float("nan"), float("inf"), -float("inf"), 1e308, -1.0],
    "str": ["", "\x1b[2J\n\r\t\0", "\u202e" + "x" * 3000, "1.2.3.4:", "[::"],
    "bool": [False, True],
    "bytes": [b"", b"\xff" * 100],
}


def _odd(kind: Any, number: int) -> Any:
    """The value of a type with this number; others of it with others."""
    if isinstance(kind, msgspec.inspect.UnionType):
        return _odd(kind.types[number % len(kind.types)], number)
    if isinstance(kind, msgspec.inspect.NoneType):
        return None
    if isinstance(kind, msgspec.inspect.ListType):
        return [_odd(kind.item_type, number + each) for each in range(number % 3)]
    if isinstance(kind, msgspec.inspect.DictType):
        return {_odd(kind.key_type, number): _odd(kind.value_type, number)}
    if isinstance(kind, msgspec.inspect.StructType):
        fields = {each.encode_name: _odd(each.type, number + at) for at, each in enumerate(kind.fields)}
        return fields if kind.tag is None else {"type": kind.tag, **fields}
    name = type(kind).__name__.removesuffix("Type").lower()
    return _ODD[name][number % len(_ODD[name])]


def odd_parts(count: int = 60) -> Iterator[bytes]:
    """Of every kind."""
    for kind in messages.Part.__subclasses__():
        if kind not in (messages.Done, messages.Refused):
            for number in range(count):
                body = msgspec.msgpack.encode(_odd(msgspec.inspect.type_info(kind), number))
                with contextlib.suppress(messages.GarbageError):
                    messages.parse_answer(body)
                    yield messages.HEADER.pack(b"aio", 1, len(body)) + body


def _answer(way: str, sock: socket.socket) -> None:
    row = messages.packed(messages.Tasks([messages.Task("t", ["x" * 1000] * 60)]))
    if way == "odd":
        for part in odd_parts():
            sock.sendall(part)
    elif way == "endless":
        while True:
            sock.sendall(row)
    sock.sendall(messages.packed(messages.Done()))


def main(way: str) -> None:
    """Until it is ended; prints its first line when it listens."""
    stem = f"{os.getpid()}-impostor"
    (home, *others) = directory.makeable()
    for each in others:
        each.close()
    with contextlib.closing(home), socket.socket(socket.AF_UNIX) as listening:
        page.PageWriter(home, stem, "asyncio")
        listening.bind(home.address(stem + directory.SOCKET))
        listening.listen(64)
        print("ready", flush=True)
        while True:
            sock, _ = listening.accept()
            with sock, contextlib.suppress(OSError):
                sock.recv(1 << 16)
                _answer(way, sock)


if __name__ == "__main__":
    main(sys.argv[1])
