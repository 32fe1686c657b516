"""Parse one command that the scanner leaves to its caller (commands with state, inline commands).

Source: the RESP specification; numbers and inline quoting as redis-server's own (`string2ll` in util.c,
`sdssplitargs` in sds.c).
"""

from __future__ import annotations

import re

from .scan import MAX_BULK_BYTES, MAX_COMMAND_ITEMS, ProtocolError

MAX_INLINE_BYTES = 64 * 1024  # Redis: PROTO_INLINE_MAX_SIZE

# Redis closes the connection of any other spelling: a plus sign, a leading zero, minus zero.
_NUMBER = re.compile(rb"0|-?[1-9][0-9]*")
_ESCAPES = {ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("b"): 8, ord("a"): 7}


def parse_command(data: bytes, pos: int) -> tuple[list[bytes], int] | None:
    """Return the arguments of the command at `pos` and its end; None if it is incomplete.

    An empty list is a command that Redis ignores (an empty line, `*0`). Raises ProtocolError.
    """
    if data[pos] != 0x2A:
        return _parse_inline(data, pos)
    head = _number(data, pos, "invalid multibulk length")
    if head is None:
        return None
    count, pos = head
    if count > MAX_COMMAND_ITEMS:
        raise ProtocolError("invalid multibulk length")
    args: list[bytes] = []
    for _ in range(count):
        if pos >= len(data):
            return None
        if data[pos] != 0x24:
            raise ProtocolError(f"expected '$', got '{chr(data[pos])}'")
        head = _number(data, pos, "invalid bulk length")
        if head is None:
            return None
        size, pos = head
        if not 0 <= size <= MAX_BULK_BYTES:
            raise ProtocolError("invalid bulk length")
        end = pos + size
        if len(data) < end + 2:
            return None
        if data[end : end + 2] != b"\r\n":
            raise ProtocolError("no line end after an argument of the announced length")
        args.append(data[pos:end])
        pos = end + 2
    return args, pos


def encode_command(args: list[bytes]) -> bytes:
    """Return `args` as the array of bulk strings that a server expects."""
    return b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%b\r\n" % (len(arg), arg) for arg in args)


def _number(data: bytes, pos: int, error: str) -> tuple[int, int] | None:
    end = data.find(b"\r\n", pos, pos + 15)
    if end < 0:
        if len(data) - pos >= 15:
            raise ProtocolError(error)
        return None
    digits = data[pos + 1 : end]
    if _NUMBER.fullmatch(digits) is None:
        raise ProtocolError(error)
    return int(digits), end + 2


def _parse_inline(data: bytes, pos: int) -> tuple[list[bytes], int] | None:
    end = data.find(b"\n", pos, pos + MAX_INLINE_BYTES)
    if end < 0:
        if len(data) - pos >= MAX_INLINE_BYTES:
            raise ProtocolError("too big inline request")
        return None
    return split_inline(data[pos:end].removesuffix(b"\r")), end + 1


def split_inline(line: bytes) -> list[bytes]:
    """Split an inline command: blanks separate, "..." has escapes, '...' only \\'. Raises
    ProtocolError."""
    args: list[bytes] = []
    at = 0
    while True:
        while at < len(line) and line[at : at + 1].isspace():
            at += 1
        if at == len(line):
            return args
        arg = bytearray()
        while at < len(line) and not line[at : at + 1].isspace():
            if line[at] in b"\"'":
                at = _quoted(line, at, arg)
                break
            arg.append(line[at])
            at += 1
        args.append(bytes(arg))


def _quoted(line: bytes, at: int, arg: bytearray) -> int:
    """Append the quoted text that starts at `at` to `arg`; return its end."""
    quote = line[at]
    at += 1
    while at < len(line):
        c = line[at]
        if c == quote:
            if at + 1 < len(line) and not line[at + 1 : at + 2].isspace():
                break
            return at + 1
        if c == 0x5C and at + 1 < len(line):
            following = line[at + 1]
            if quote == 0x27:
                if following == 0x27:
                    c = following
                    at += 1
            elif following == 0x78 and _is_hex(line[at + 2 : at + 4]):
                c = int(line[at + 2 : at + 4], 16)
                at += 3
            else:
                c = _ESCAPES.get(following, following)
                at += 1
        arg.append(c)
        at += 1
    raise ProtocolError("unbalanced quotes in request")


def _is_hex(text: bytes) -> bool:
    return len(text) == 2 and all(c in b"0123456789abcdefABCDEF" for c in text)
