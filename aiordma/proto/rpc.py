# cython: annotation_typing=False, freethreading_compatible=False
"""The messages of calls, as they lie on a message channel: built, parsed, and nothing else.

What may be sent when is the business of ``calls.py``. Every message begins with eight bytes, big-endian:
``type u8, flags u8, encoding u8, extra u8, call u32``; each type has its own fields behind them, in the order
of this table, the optional ones where their flag is set. What is left is payload, and not looked into.

======== ========== ======= ============================================================================
message  sent by    extra   fields
======== ========== ======= ============================================================================
HELLO    both       0       magic u32, version u16, 0 u16, then four u32: calls, methods, window, metadata
CALL     client     kind    method u32, [NAME: u8 + text], [DEADLINE: u64 microseconds left],
                            [WINDOW: u32], [METADATA: u32 + entries], [TRACE: 40 bytes], payload
REPLY    server     code    [METADATA: u32 + entries], [TRAILING: u32 + entries], [TRACE: 40 bytes], then
                            the payload (code 0) or text u16 + UTF-8, [DETAILS: u32 + bytes]
HEADERS  server     0       initial metadata: entries to the end
ITEM     both       0       payload; END (client): it is the last one
END      client     0       nothing
CREDIT   both       0       u32: bytes of items that may be sent in addition
CANCEL   client     code    nothing
GOAWAY   server     code    u64: serial of the last call that was accepted, then a text to the end
PING     both       0       u64 for the sender's own use
PONG     both       0       that u64, then u64: the answerer's clock in nanoseconds
======== ========== ======= ============================================================================

Metadata entries: see ``metadata.py``. Flags, kinds and reserved fields without a meaning are refused: a newer
peer must learn our version, not guess it.

The trace block (id, and four clock values in nanoseconds whose meaning the tracing decides) is carried and
not read here.

Compiled as well (``rpc.pxd``), on the rules of ``cursor.py``.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from .errors import RemoteProtocolError

VERSION = 1
MAGIC = 0x61525043  # "aRPC"

# Types of messages. 0 is none, so that memory which was never written is refused.
HELLO, CALL, REPLY, HEADERS, ITEM, END, CREDIT, CANCEL, GOAWAY, PING, PONG = range(1, 12)

# Kinds of calls: bit 0: the replies are a stream, bit 1: the client's items are one.
UNARY, SERVER_STREAM, CLIENT_STREAM, BIDI = range(4)

# Flags of CALL (1 to 16) and of REPLY (1, 2, 4, 8); of ITEM only FLAG_END.
FLAG_NAME = 1
FLAG_TRAILING = 1
FLAG_END = 1
FLAG_DEADLINE = 2
FLAG_DETAILS = 2
FLAG_METADATA = 4
FLAG_TRACE = 8
FLAG_WINDOW = 16

#: Length of the trace block.
TRACE_BYTES = 40
#: Longest method name in UTF-8.
MAX_NAME_BYTES = 255
#: Longest text of an error in UTF-8, and longest details. Longer ones of a peer are refused.
MAX_TEXT_BYTES = 4096
MAX_DETAILS_BYTES = 16384
#: What an item costs of its stream's window beside its payload: small items are not free for the receiver.
ITEM_COST = 64

_HELLO = Struct("!BBBBIIHHIIII")
_GOAWAY = Struct("!BBBBIQ")
_PONG = Struct("!BBBBIQQ")
_U16 = Struct("!H")
_U32 = Struct("!I")
_U64 = Struct("!Q")

#: What precedes the payload of the most frequent messages: a traced CALL has most of it.
_FRONT_BYTES = 12 + TRACE_BYTES

# Codes of an end that a message may carry (gRPC's 0 to 16 and room for newer ones).
_NAMES = (
    "?",
    "HELLO",
    "CALL",
    "REPLY",
    "HEADERS",
    "ITEM",
    "END",
    "CREDIT",
    "CANCEL",
    "GOAWAY",
    "PING",
    "PONG",
)
_FLAGS = (0, 0, 31, 15, 0, 1, 0, 0, 0, 0, 0, 0)


class Hello(NamedTuple):
    """What an end grants the other one: the first message in each direction."""

    #: calls that may be in flight (only the server's counts)
    calls: int
    #: method names that may be given a number
    methods: int
    #: bytes of items that may be sent on a stream before any CREDIT
    window: int
    #: bytes of metadata that a message may carry
    metadata: int


# ---- building


#: Compiled, headers are put together in one place: nothing else of Python runs before they are copied out
#: of it, and a new bytearray costs more than all that is put into it.
_ROOM = bytearray(64) if __file__.endswith((".so", ".pyd")) else None


def room(size: int) -> bytearray:
    """``size`` bytes, at most 64, to be filled and copied by :func:`part`. What they hold is not defined."""
    return bytearray(size) if _ROOM is None else _ROOM


def part(data: bytes | bytearray, begin: int, end: int) -> bytes:
    """A part of ``data``, as bytes."""
    piece = data[begin:end]
    return piece if type(piece) is bytes else bytes(piece)


def _u32(data: bytes, at: int) -> int:
    return data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]


def _put(out: bytearray, kind: int, flags: int, encoding: int, extra: int, call_id: int, more: int) -> None:
    """The first eight bytes of a message, and the ``more`` that some types have behind them."""
    out[0] = kind
    out[1] = flags
    out[2] = encoding
    out[3] = extra
    out[4] = call_id >> 24 & 255
    out[5] = call_id >> 16 & 255
    out[6] = call_id >> 8 & 255
    out[7] = call_id & 255
    out[8] = more >> 24 & 255
    out[9] = more >> 16 & 255
    out[10] = more >> 8 & 255
    out[11] = more & 255


def _header(kind: int, flags: int, encoding: int, extra: int, call_id: int) -> bytes:
    out = room(12)
    _put(out, kind, flags, encoding, extra, call_id, 0)
    return part(out, 0, 8)


def _longer_header(kind: int, flags: int, encoding: int, extra: int, call_id: int, more: int) -> bytes:
    out = room(12)
    _put(out, kind, flags, encoding, extra, call_id, more)
    return part(out, 0, 12)


def _traced_header(
    kind: int, encoding: int, extra: int, call_id: int, more: int, size: int, block: bytes
) -> bytes:
    """A header of ``size`` bytes (8 or 12) and the trace block behind it."""
    if len(block) != TRACE_BYTES:
        raise ValueError(f"a trace block of {len(block)} bytes: it has {TRACE_BYTES}")
    out = room(12 + TRACE_BYTES)
    _put(out, kind, FLAG_TRACE, encoding, extra, call_id, more)
    _put_block(out, size, block)
    return part(out, 0, size + 40)


def _put_block(out: bytearray, at: int, block: bytes) -> None:
    for place in range(40):
        out[at + place] = block[place]


def hello_message(hello: Hello) -> bytes:
    return _HELLO.pack(HELLO, 0, 0, 0, 0, MAGIC, VERSION, 0, *hello)


def call_head(  # noqa: PLR0913  # the fields of one message
    call_id: int,
    kind: int,
    encoding: int,
    method: int,
    name: bytes | None = None,
    deadline_us: int = -1,
    window: int = 0,
    metadata: bytes | None = None,
    trace: bytes | None = None,
) -> bytes:
    """A CALL up to its payload.

    :param name: sent along, and bound to ``method`` unless that is 0.
    :param deadline_us: microseconds left, -1: no deadline.
    :param window: bytes of reply items that may be sent; only for the kinds with a stream of replies.
    """
    flags = 0
    if name is None and deadline_us < 0 and metadata is None and not kind & 1:
        if trace is None:
            return _longer_header(CALL, 0, encoding, kind, call_id, method)
        return _traced_header(CALL, encoding, kind, call_id, method, 12, trace)
    tail = b""
    if name is not None:
        flags |= FLAG_NAME
        tail = bytes((len(name),)) + name
    if deadline_us >= 0:
        flags |= FLAG_DEADLINE
        tail += _U64.pack(deadline_us)
    if kind & 1:
        flags |= FLAG_WINDOW
        tail += _U32.pack(window)
    if metadata is not None:
        flags |= FLAG_METADATA
        tail += _U32.pack(len(metadata)) + metadata
    if trace is not None:
        flags |= FLAG_TRACE
        tail += trace
    return _longer_header(CALL, flags, encoding, kind, call_id, method) + tail


def reply_head(
    call_id: int,
    encoding: int,
    metadata: bytes | None = None,
    trailing: bytes | None = None,
    trace: bytes | None = None,
) -> bytes:
    """A REPLY that all went well, up to its payload."""
    if metadata is None and trailing is None:
        if trace is None:
            return _header(REPLY, 0, encoding, 0, call_id)
        return _traced_header(REPLY, encoding, 0, call_id, 0, 8, trace)
    return _reply(call_id, 0, encoding, metadata, trailing, trace, 0)


def error_message(
    call_id: int,
    code: int,
    text: str,
    details: bytes | None = None,
    metadata: bytes | None = None,
    trailing: bytes | None = None,
    trace: bytes | None = None,
) -> bytes:
    """A REPLY that the call failed: all of it. A long text is cut."""
    raw = _cut_text(text)
    flags = 0 if details is None else FLAG_DETAILS
    head = _reply(call_id, code, 0, metadata, trailing, trace, flags) + _U16.pack(len(raw)) + raw
    return head if details is None else head + _U32.pack(len(details)) + details


def _reply(
    call_id: int,
    code: int,
    encoding: int,
    metadata: bytes | None,
    trailing: bytes | None,
    trace: bytes | None,
    flags: int,
) -> bytes:
    tail = b""
    if metadata is not None:
        flags |= FLAG_METADATA
        tail = _U32.pack(len(metadata)) + metadata
    if trailing is not None:
        flags |= FLAG_TRAILING
        tail += _U32.pack(len(trailing)) + trailing
    if trace is not None:
        flags |= FLAG_TRACE
        tail += trace
    return _header(REPLY, flags, encoding, code, call_id) + tail


def _cut_text(text: str) -> bytes:
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) > MAX_TEXT_BYTES:
        raw = raw[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode()
    return raw


def headers_message(call_id: int, metadata: bytes) -> bytes:
    return _header(HEADERS, 0, 0, 0, call_id) + metadata


def item_head(call_id: int, encoding: int, last: bool = False) -> bytes:
    return _header(ITEM, FLAG_END if last else 0, encoding, 0, call_id)


def end_message(call_id: int) -> bytes:
    return _header(END, 0, 0, 0, call_id)


def credit_message(call_id: int, more: int) -> bytes:
    return _longer_header(CREDIT, 0, 0, 0, call_id, more)


def cancel_message(call_id: int, code: int) -> bytes:
    return _header(CANCEL, 0, 0, code, call_id)


def goaway_message(accepted: int, code: int, text: str) -> bytes:
    return _GOAWAY.pack(GOAWAY, 0, 0, code, 0, accepted) + _cut_text(text)


def ping_message(number: int) -> bytes:
    return _GOAWAY.pack(PING, 0, 0, 0, 0, number)


def pong_message(number: int, clock_ns: int) -> bytes:
    return _PONG.pack(PONG, 0, 0, 0, 0, number, clock_ns)


# ---- parsing


class RpcMessage:
    """One parsed message; used again for the next one, so nothing is made for a call but its payload."""

    def __init__(self) -> None:
        #: type, flags, encoding, kind of call or code, call
        self.type = self.flags = self.encoding = self.extra = self.call_id = 0
        #: CALL: number and, when it was sent along, name of the method
        self.method = 0
        self.name: str | None = None
        #: CALL: microseconds left, -1: no deadline
        self.deadline_us = -1
        #: CALL, CREDIT: bytes of items
        self.window = 0
        #: metadata, not decoded yet
        self.metadata: bytes | None = None
        self.trailing: bytes | None = None
        self.trace: bytes | None = None
        #: REPLY: the error
        self.text = ""
        self.details: bytes | None = None
        #: GOAWAY: serial; PING, PONG: the number; and PONG: the peer's clock
        self.number = 0
        self.clock_ns = 0
        self.hello: Hello | None = None
        #: what is left
        self.payload: bytes | memoryview = b""

    def parse(self, message: bytes | memoryview) -> int:
        """Take ``message`` apart; returns its type.

        :raises RemoteProtocolError: it is not one of those in the table above.
        """
        size = len(message)
        if size < 8:
            raise RemoteProtocolError(f"an RPC message of {size} bytes: at least 8 are needed")
        front = message if type(message) is bytes else bytes(message[:_FRONT_BYTES])
        kind = self.type = front[0]
        self.flags = front[1]
        self.encoding = front[2]
        self.extra = front[3]
        self.call_id = _u32(front, 4)
        if (kind == REPLY or kind == ITEM) and self.flags == 0 and self.extra == 0 and self.call_id:
            self.metadata = self.trailing = self.trace = None
            self._rest(message, 8, size)
            return kind
        if kind == REPLY and self.flags == FLAG_TRACE and self.extra == 0 and self.call_id and size >= 48:
            self.metadata = self.trailing = None
            self.trace = part(front, 8, 48)
            self._rest(message, 48, size)
            return kind
        if kind == CALL and size >= 12:
            return self._parse_call(message, front, size)
        if kind == 0 or kind > PONG:
            raise RemoteProtocolError(f"an RPC message of unknown type {kind}")
        if self.flags & ~_FLAGS[kind]:
            raise RemoteProtocolError(f"{_NAMES[kind]}: unknown flags 0x{self.flags:02x}")
        if (self.call_id == 0) != (kind == HELLO or kind >= GOAWAY):
            raise RemoteProtocolError(f"{_NAMES[kind]}: call id {self.call_id}")
        if self.encoding and kind != REPLY and kind != ITEM:
            raise RemoteProtocolError(f"{_NAMES[kind]}: a reserved field is {self.encoding}, not 0")
        if self.extra and kind != REPLY and kind != CANCEL and kind != GOAWAY:
            raise RemoteProtocolError(f"{_NAMES[kind]}: a reserved field is {self.extra}, not 0")
        self._parse_other(message, kind, size)
        return kind

    def _rest(self, message: bytes | memoryview, at: int, size: int) -> None:
        self.payload = part(message, at, size) if type(message) is bytes else message[at:]

    def _parse_call(self, message: bytes | memoryview, front: bytes, size: int) -> int:
        flags = self.flags
        self.method = _u32(front, 8)
        self.name = self.metadata = self.trace = None
        self.deadline_us = -1
        if self.extra > BIDI or self.call_id == 0 or flags & ~31:
            raise RemoteProtocolError(f"CALL: kind {self.extra}, flags 0x{flags:02x}, call id {self.call_id}")
        at = 12
        if flags == FLAG_TRACE and size >= 52:
            self.trace = part(front, 12, 52)
            at = 52
        elif flags:
            if flags & FLAG_NAME:
                at = self._need(message, at, 1, size)
                length = message[at - 1]
                at = self._need(message, at, length, size)
                if length == 0:
                    raise RemoteProtocolError("CALL: an empty method name")
                self.name = _text(message[at - length : at])
            if flags & FLAG_DEADLINE:
                at = self._need(message, at, 8, size)
                self.deadline_us = _U64.unpack_from(message, at - 8)[0]
            if flags & FLAG_WINDOW:
                at = self._need(message, at, 4, size)
                self.window = _U32.unpack_from(message, at - 4)[0]
            if flags & FLAG_METADATA:
                at = self._need(message, at, 4, size)
                length = _U32.unpack_from(message, at - 4)[0]
                at = self._need(message, at, length, size)
                self.metadata = bytes(message[at - length : at])
            if flags & FLAG_TRACE:
                at = self._need(message, at, TRACE_BYTES, size)
                self.trace = bytes(message[at - TRACE_BYTES : at])
        if (flags & FLAG_WINDOW != 0) != (self.extra & 1):
            raise RemoteProtocolError(
                f"CALL: kind {self.extra} and flags 0x{flags:02x} contradict each other"
            )
        self._rest(message, at, size)
        return CALL

    def _parse_other(self, message: bytes | memoryview, kind: int, size: int) -> None:
        if kind == REPLY:
            self._parse_reply(message, size)
        elif kind == ITEM:
            self.payload = message[8:]
        elif kind == HEADERS:
            self.metadata = bytes(message[8:])
        elif kind == END or kind == CANCEL:
            self._end(8, size)
        elif kind == CREDIT:
            self._end(self._need(message, 8, 4, size), size)
            self.window = _U32.unpack_from(message, 8)[0]
        elif kind == HELLO:
            self._parse_hello(message, size)
        else:
            at = self._need(message, 8, 8, size)
            self.number = _U64.unpack_from(message, 8)[0]
            if kind == PONG:
                at = self._need(message, at, 8, size)
                self.clock_ns = _U64.unpack_from(message, 16)[0]
            elif kind == GOAWAY:
                self.text = _bounded_text(message[at:])
                at = size
            self._end(at, size)

    def _parse_reply(self, message: bytes | memoryview, size: int) -> None:
        flags = self.flags
        self.metadata = self.trailing = self.trace = self.details = None
        at = 8
        if flags & FLAG_METADATA:
            at = self._need(message, at, 4, size)
            length = _U32.unpack_from(message, at - 4)[0]
            at = self._need(message, at, length, size)
            self.metadata = bytes(message[at - length : at])
        if flags & FLAG_TRAILING:
            at = self._need(message, at, 4, size)
            length = _U32.unpack_from(message, at - 4)[0]
            at = self._need(message, at, length, size)
            self.trailing = bytes(message[at - length : at])
        if flags & FLAG_TRACE:
            at = self._need(message, at, TRACE_BYTES, size)
            self.trace = bytes(message[at - TRACE_BYTES : at])
        if self.extra == 0:
            if flags & FLAG_DETAILS:
                raise RemoteProtocolError("REPLY: details without an error")
            self.payload = message[at:]
            return
        if self.encoding:
            raise RemoteProtocolError(f"REPLY: an error with encoding {self.encoding}")
        at = self._need(message, at, 2, size)
        length = _U16.unpack_from(message, at - 2)[0]
        at = self._need(message, at, length, size)
        self.text = _bounded_text(message[at - length : at])
        if flags & FLAG_DETAILS:
            at = self._need(message, at, 4, size)
            length = _U32.unpack_from(message, at - 4)[0]
            if length > MAX_DETAILS_BYTES:
                raise RemoteProtocolError(
                    f"REPLY: details of {length} bytes; {MAX_DETAILS_BYTES} are allowed"
                )
            at = self._need(message, at, length, size)
            self.details = bytes(message[at - length : at])
        self.payload = b""
        self._end(at, size)

    def _parse_hello(self, message: bytes | memoryview, size: int) -> None:
        self._end(self._need(message, 8, _HELLO.size - 8, size), size)
        fields = _HELLO.unpack(message)
        if fields[5] != MAGIC:
            raise RemoteProtocolError("HELLO: the peer does not speak this protocol")
        if fields[6] != VERSION:
            raise RemoteProtocolError(
                f"HELLO: the peer speaks version {fields[6]} of calls, this end {VERSION}: "
                "use the same version of aiordma on both"
            )
        if fields[7]:
            raise RemoteProtocolError(f"HELLO: a reserved field is {fields[7]}, not 0")
        self.hello = Hello(*fields[8:])

    def _need(self, message: bytes | memoryview, at: int, count: int, size: int) -> int:
        if at + count > size:
            raise RemoteProtocolError(f"{_NAMES[self.type]}: cut off after {size} bytes")
        return at + count

    def _end(self, at: int, size: int) -> None:
        if at != size:
            raise RemoteProtocolError(f"{_NAMES[self.type]}: {size} bytes long instead of {at}")


def _text(data: bytes | memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise RemoteProtocolError(f"not UTF-8: {bytes(data)!r}") from None


def _bounded_text(data: bytes | memoryview) -> str:
    if len(data) > MAX_TEXT_BYTES:
        raise RemoteProtocolError(f"a text of {len(data)} bytes; {MAX_TEXT_BYTES} are allowed")
    return _text(data)
