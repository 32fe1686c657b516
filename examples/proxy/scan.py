# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False
"""Find where RESP commands and replies end. Builds no objects: the proxy forwards slices.

This file runs as it is, and several times faster when compiled by Cython (`scan.pxd` gives the C types;
`python -m proxy.build`). Both scanners accept input split anywhere.

Source: the RESP2 and RESP3 specifications (redis.io "Redis serialization protocol specification").
"""

from __future__ import annotations

MAX_BULK_BYTES = 512 * 1024 * 1024  # Redis: proto-max-bulk-len
MAX_ITEMS = 1 << 31  # of an aggregate; nothing is allocated for it
MAX_COMMAND_ITEMS = 1024 * 1024  # arguments of one command
# Of nested replies. A shared lane cannot go on behind a reply whose end is not found, and its other clients
# would pay for that. So the limit is far beyond what a server builds (Lua's stack ends at some thousands).
MAX_DEPTH = 1 << 20
# The same as C integers, for the compiled scanner.
_BULK, _ITEMS = MAX_BULK_BYTES, MAX_ITEMS
_COMMAND_ITEMS, _DEPTH = MAX_COMMAND_ITEMS, MAX_DEPTH

# What a CommandScanner found at `end`, after the commands that it counted.
MORE = 0  # the command is incomplete (or there are no more bytes)
OTHER = 1  # a whole command that is not in `known`, or an inline one, perhaps incomplete: left to the caller
BIG = 2  # a command longer than `big_bytes` of which a part is still missing
BAD = 3  # not RESP; `error` has the reason

_START, _SIZE, _LINE, _LINE_END, _BODY, _BODY_CR, _BODY_LF = range(7)
_COUNTED, _ATTRIBUTE, _PUSH, _CHUNKS = range(4)


class ProtocolError(ValueError):
    """The bytes are not RESP, or exceed a limit; the text has the details."""


class ReplyScanner:
    """Count complete replies in a byte stream, split anywhere.

    The scanner buffers nothing: every byte that `feed()` has scanned may be forwarded at once, even in the
    middle of a reply (then `partial` is true). An attribute belongs to the reply after it; pushes are
    scanned but not counted.
    """

    def __init__(self) -> None:
        self.done = 0
        self.state = _START
        self.kind = 0
        self.size = 0
        self.digits = 0  # -1 after a minus sign, -2 after "?"
        self.body = 0
        self.left = 0  # items missing in the innermost aggregate; -1: until "."
        self.role = _COUNTED
        self.depth = 0
        self.stack: list[int] = []  # of the aggregates around it: 4 * left + role
        self.attributed = False  # an attribute was seen, its reply not yet

    @property
    def partial(self) -> bool:
        """True in the middle of a reply."""
        return self.state != _START or self.depth > 0 or self.attributed

    def feed(self, data: bytes, pos: int, want: int) -> int:
        """Scan `data[pos:]` until `want` replies are complete or the bytes end; return the position where
        the scan stopped.

        `done` is then how many replies were completed. Raises ProtocolError.
        """
        self.done = 0
        p = data
        size = len(data)
        while pos < size:
            state = self.state
            if state == _START:
                c = p[pos]
                pos += 1
                if self.role == _CHUNKS and c != 59:
                    raise ProtocolError(f"byte {c:#04x} where a chunk of a streamed string must start")
                if c == 43 or c == 45 or c == 58 or c == 95 or c == 44 or c == 35 or c == 40:  # + - : _ , # (
                    self.state = _LINE
                elif c == 36 or c == 61 or c == 33:  # $ = !
                    self._start_size(c)
                elif c == 42 or c == 126 or c == 37 or c == 124 or c == 62:  # * ~ % | >
                    self._start_size(c)
                elif c == 59 and self.role == _CHUNKS:  # ;
                    self._start_size(c)
                elif c == 46 and self.depth and self.left == -1:  # .
                    self.kind = c
                    self.state = _LINE
                else:
                    raise ProtocolError(f"byte {c:#04x} where a reply must start")
            elif state == _SIZE:
                c = p[pos]
                pos += 1
                if 48 <= c <= 57 and self.digits != -2:
                    if self.digits == -1:
                        if c != 49 or self.size:
                            raise ProtocolError("a negative size other than -1")
                        self.size = 1
                    else:
                        self.size = self.size * 10 + (c - 48)
                        self.digits += 1
                        if self.digits > 10:
                            raise ProtocolError("a size of more than ten digits")
                elif c == 13 and (self.digits > 0 or self.digits == -2 or self.size == 1):
                    self.state = _LINE_END
                elif c == 45 and self.digits == 0 and (self.kind == 36 or self.kind == 42):
                    self.digits = -1
                elif c == 63 and self.digits == 0 and (self.kind in (36, 42, 126, 37)):
                    self.digits = -2
                else:
                    raise ProtocolError(f"byte {c:#04x} in a size")
            elif state == _LINE:
                end = data.find(b"\r", pos)
                if end < 0:
                    return size
                pos = end + 1
                self.state = _LINE_END
            elif state == _LINE_END:
                if p[pos] != 10:
                    raise ProtocolError("a carriage return without a line feed")
                pos += 1
                if self._line_ended() and self.done == want:
                    return pos
            elif state == _BODY:
                if size - pos < self.body:
                    self.body -= size - pos
                    return size
                pos += self.body
                self.state = _BODY_CR
            else:
                if p[pos] != (13 if state == _BODY_CR else 10):
                    raise ProtocolError("no line end after a string of the announced length")
                pos += 1
                if state == _BODY_CR:
                    self.state = _BODY_LF
                else:
                    self.state = _START
                    if self.role != _CHUNKS and self._item_ended() and self.done == want:
                        return pos
        return pos

    def _start_size(self, kind: int) -> None:
        self.kind = kind
        self.size = 0
        self.digits = 0
        self.state = _SIZE

    def _line_ended(self) -> bool:
        """After any line: start what it announces, or end an item. True when a whole reply ended."""
        kind = self.kind
        self.kind = 0
        self.state = _START
        if kind == 0:
            return self._item_ended()
        if kind == 46:
            return self._close()
        if kind == 36 or kind == 61 or kind == 33 or kind == 59:
            if self.digits == -1:
                return self._item_ended()
            if self.digits == -2:
                self._open(-1, _CHUNKS)
                return False
            if self.size > _BULK:
                raise ProtocolError(f"a string of {self.size} bytes (limit {MAX_BULK_BYTES})")
            if kind == 59 and self.size == 0:
                return self._close()
            self.body = self.size
            self.state = _BODY
            return False
        if self.digits == -1:
            return self._item_ended()
        role = _COUNTED
        if kind == 124:
            role = _ATTRIBUTE
        elif kind == 62:
            if self.depth:
                raise ProtocolError("a push inside a reply")
            role = _PUSH
        items = self.size
        if self.digits == -2:
            items = -1
        elif items > _ITEMS:
            raise ProtocolError(f"an aggregate of {items} items (limit {MAX_ITEMS})")
        elif kind == 37 or kind == 124:
            items *= 2
        self._open(items, role)
        if items == 0:
            return self._close()
        return False

    def _open(self, items: int, role: int) -> None:
        if self.depth >= _DEPTH:
            raise ProtocolError(f"replies nested deeper than {MAX_DEPTH}")
        self.stack.append(4 * self.left + self.role)
        self.depth += 1
        self.left = items
        self.role = role

    def _leave(self) -> None:
        """Go on in the aggregate around the innermost one."""
        outer = self.stack.pop()
        self.left = outer >> 2
        self.role = outer & 3
        self.depth -= 1

    def _close(self) -> bool:
        """End the innermost aggregate (or streamed string)."""
        role = self.role
        self._leave()
        if role == _ATTRIBUTE:
            if self.depth == 0:
                self.attributed = True
            return False
        if role == _PUSH:
            return False
        return self._item_ended()

    def _item_ended(self) -> bool:
        """Count one item of the innermost aggregate. True when it completed a reply."""
        while self.depth:
            if self.left < 0:
                return False
            self.left -= 1
            if self.left:
                return False
            role = self.role
            self._leave()
            if role == _ATTRIBUTE:
                if self.depth == 0:
                    self.attributed = True
                return False
            if role == _PUSH:
                return False
        self.attributed = False
        self.done += 1
        return True


class CommandScanner:
    """Count the complete commands at the start of a client's bytes whose names are in `known`.

    The caller keeps the bytes after `end` and passes them again, followed by more; the scanner remembers how
    far it has scanned that command.
    """

    def __init__(self, known: set[bytes], big_bytes: int) -> None:
        self.known = known
        self.big_bytes = big_bytes
        self.end = 0
        self.verdict = MORE
        self.error = ""
        self.items = -1  # missing arguments; -1: between commands
        self.seen = 0  # bytes of the incomplete command already scanned
        self.named = False
        self.other = False  # its name is not in `known`

    def forget(self) -> None:
        """The caller handled the command at `end` itself: reset."""
        self.items = -1
        self.seen = 0

    def feed(self, data: bytes, start: int = 0) -> int:
        """Scan `data[start:]`. Return how many commands were counted; `end` is behind the last of them and
        `verdict` describes what follows."""
        p = data
        size = len(data)
        count = 0
        pos = start + self.seen
        items = self.items
        self.verdict = MORE
        while True:
            if items == 0:
                if self.other:
                    self.verdict = OTHER
                    break
                count += 1
                start = pos
                items = -1
            if pos >= size:
                break
            first = items < 0
            if first and p[pos] != 42:
                self.verdict = OTHER
                break
            if not first and p[pos] != 36:
                self._bad(f"expected '$', got '{chr(p[pos])}'")
                break
            # The number behind "*" or "$", up to CR LF.
            at = pos + 1
            number = 0
            while at < size and 48 <= p[at] <= 57 and at - pos < 12:
                number = number * 10 + (p[at] - 48)
                at += 1
            if at - pos > 2 and p[pos + 1] == 48:
                # Redis closes the connection of a number with a leading zero.
                self._bad("invalid multibulk length" if first else "invalid bulk length")
                break
            if at + 1 >= size:
                if at < size and p[at] != 13 and not (first and p[at] == 45 and at == pos + 1):
                    self._bad("invalid multibulk length" if first else "invalid bulk length")
                break
            if p[at] != 13 or p[at + 1] != 10 or at == pos + 1:
                if first and p[at] == 45:
                    self.verdict = OTHER  # "*-1": Redis ignores it
                else:
                    self._bad("invalid multibulk length" if first else "invalid bulk length")
                break
            at += 2
            if first:
                if number == 0:
                    self.verdict = OTHER
                    break
                if number > _COMMAND_ITEMS:
                    self._bad("invalid multibulk length")
                    break
                items = number
                self.named = self.other = False
                pos = at
                continue
            if number > _BULK:
                self._bad("invalid bulk length")
                break
            if at + number + 2 > size:
                if at + number + 2 - start > self.big_bytes:
                    self.verdict = BIG
                break
            if p[at + number] != 13 or p[at + number + 1] != 10:
                self._bad("no line end after an argument of the announced length")
                break
            if not self.named:
                # Its end is found here, too: parsing it for that would begin again with each piece.
                self.other = data[at : at + number] not in self.known
                self.named = True
            pos = at + number + 2
            items -= 1
        if self.verdict == MORE and size - start > self.big_bytes:
            self.verdict = BIG
        self.end = start
        if self.verdict == MORE:
            self.items = items
            self.seen = pos - start
        else:
            self.items = -1
            self.seen = 0
        return count

    def _bad(self, error: str) -> None:
        self.error = error
        self.verdict = BAD
