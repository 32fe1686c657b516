"""The messages of calls: what is built can be parsed, what is parsed can be built, the rest is refused.

Invariant of the fuzzers: any bytes give ``RemoteProtocolError`` or a message that is built again, byte for
byte, from what was parsed; nothing else.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiordma.errors import RemoteProtocolError
from aiordma.proto import rpc as wire
from aiordma.proto.metadata import decode_metadata, encode_metadata

from .cores import CORES

HELLO = wire.Hello(1024, 4096, 65536, 16384)
TRACE = bytes(range(40))
METADATA = encode_metadata([("trace-id", "7"), ("token", b"\x00\xff")])


def samples(rpc: Any) -> dict[str, bytes]:
    return {
        "hello": rpc.hello_message(rpc.Hello(*HELLO)),
        "call": rpc.call_head(7, rpc.UNARY, 1, 3) + b"payload",
        "call, everything": rpc.call_head(7, rpc.BIDI, 1, 3, b"kv.get", 12, 4096, METADATA, TRACE) + b"x",
        "call, name": rpc.call_head(1, rpc.UNARY, 0, 1, b"a"),
        "reply": rpc.reply_head(7, 1) + b"payload",
        "reply, everything": rpc.reply_head(7, 1, METADATA, b"", TRACE) + b"payload",
        "error": rpc.error_message(7, 5, "no such key"),
        "error, everything": rpc.error_message(7, 255, "é", b"details", b"", METADATA, TRACE),
        "headers": rpc.headers_message(7, METADATA),
        "item": rpc.item_head(7, 2) + b"payload",
        "last item": rpc.item_head(7, 2, True),
        "end": rpc.end_message(7),
        "credit": rpc.credit_message(7, 100),
        "cancel": rpc.cancel_message(7, 4),
        "goaway": rpc.goaway_message(1 << 40, 14, "going"),
        "ping": rpc.ping_message(1 << 63),
        "pong": rpc.pong_message(5, 1 << 60),
    }


NAMES = list(samples(wire))


def rebuilt(rpc: Any, m: Any) -> bytes:
    """The message that ``m`` was parsed from."""
    kind = m.type
    if kind == rpc.HELLO:
        return bytes(rpc.hello_message(m.hello))
    if kind == rpc.CALL:
        name = None if m.name is None else m.name.encode()
        head = rpc.call_head(
            m.call_id, m.extra, m.encoding, m.method, name, m.deadline_us, m.window, m.metadata, m.trace
        )
        return bytes(head + bytes(m.payload))
    if kind == rpc.REPLY and m.extra == 0:
        head = rpc.reply_head(m.call_id, m.encoding, m.metadata, m.trailing, m.trace)
        return bytes(head + bytes(m.payload))
    if kind == rpc.REPLY:
        return bytes(
            rpc.error_message(m.call_id, m.extra, m.text, m.details, m.metadata, m.trailing, m.trace)
        )
    if kind == rpc.ITEM:
        return bytes(rpc.item_head(m.call_id, m.encoding, bool(m.flags & rpc.FLAG_END)) + bytes(m.payload))
    return bytes(
        {
            rpc.HEADERS: lambda: rpc.headers_message(m.call_id, m.metadata),
            rpc.END: lambda: rpc.end_message(m.call_id),
            rpc.CREDIT: lambda: rpc.credit_message(m.call_id, m.window),
            rpc.CANCEL: lambda: rpc.cancel_message(m.call_id, m.extra),
            rpc.GOAWAY: lambda: rpc.goaway_message(m.number, m.extra, m.text),
            rpc.PING: lambda: rpc.ping_message(m.number),
            rpc.PONG: lambda: rpc.pong_message(m.number, m.clock_ns),
        }[kind]()
    )


def check(data: bytes) -> None:
    for core in CORES.values():
        answers = []
        for form in (data, memoryview(data)):
            message = core.rpc.RpcMessage()
            try:
                message.parse(form)
            except Exception as error:
                # The interpreted core has errors of its own: the same class by another name.
                answers.append(f"{type(error).__name__}: {error}")
            else:
                assert rebuilt(core.rpc, message) == data
                answers.append("built again")
        answer = answers.pop()
        assert answers == [answer]
        assert answer.startswith(("RemoteProtocolError: ", "built again"))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_built_is_parsed(core: Any, name: str) -> None:
    data = samples(core.rpc)[name]
    message = core.rpc.RpcMessage()
    message.parse(data)
    assert rebuilt(core.rpc, message) == data


@pytest.mark.parametrize("name", NAMES)
def test_every_prefix_and_every_changed_byte(name: str) -> None:
    data = samples(wire)[name]
    for end in range(len(data)):
        check(data[:end])
    check(data + b"\x00")
    for at in range(min(len(data), 80)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 1, data[at] ^ 0x20):
            check(data[:at] + bytes((value,)) + data[at + 1 :])


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    check(data)


@given(st.integers(0, 12), st.integers(0, 255), st.integers(0, 2), st.integers(0, 5), st.binary(max_size=100))
@example(2, 31, 0, 3, bytes(100))
def test_any_fields(kind: int, flags: int, encoding: int, extra: int, rest: bytes) -> None:
    check(bytes((kind, flags, encoding, extra)) + rest)
    check(bytes((kind, flags, encoding, extra, 0, 0, 0, 7)) + rest)


def test_fields_of_a_call(core: Any) -> None:
    message = core.rpc.RpcMessage()
    assert message.parse(samples(core.rpc)["call, everything"]) == core.rpc.CALL
    assert (message.call_id, message.extra, message.encoding, message.method) == (7, 3, 1, 3)
    assert (message.name, message.deadline_us, message.window) == ("kv.get", 12, 4096)
    assert decode_metadata(message.metadata) == {"trace-id": "7", "token": b"\x00\xff"}
    assert message.trace == TRACE
    assert message.payload == b"x"
    message.parse(samples(core.rpc)["call"])
    assert (message.name, message.deadline_us, message.metadata, message.trace) == (None, -1, None, None)


@pytest.mark.parametrize("size", [0, 39, 41])
def test_a_trace_block_has_its_size(core: Any, size: int) -> None:
    with pytest.raises(ValueError, match=f"a trace block of {size} bytes"):
        core.rpc.call_head(7, 0, 0, 3, trace=bytes(size))
    with pytest.raises(ValueError, match=f"a trace block of {size} bytes"):
        core.rpc.reply_head(7, 0, trace=bytes(size))


def test_another_version_is_told_both_versions(core: Any) -> None:
    data = bytearray(samples(core.rpc)["hello"])
    data[13] = 9
    with pytest.raises(Exception, match="version 9 of calls, this end 1"):
        core.rpc.RpcMessage().parse(bytes(data))


def test_long_texts_are_cut_between_characters() -> None:
    message = wire.RpcMessage()
    message.parse(wire.error_message(1, 2, "é" * 5000))
    assert message.text == "é" * (wire.MAX_TEXT_BYTES // 2)
    message.parse(wire.error_message(1, 2, "lone surrogate \udc80"))
    assert message.text == "lone surrogate \\udc80"


@given(
    st.dictionaries(
        st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=255).map(str.lower),
        st.text(max_size=50) | st.binary(max_size=50),
        max_size=5,
    )
)
def test_metadata_comes_back(metadata: dict[str, str | bytes]) -> None:
    try:
        data = encode_metadata(metadata)
    except UnicodeEncodeError:
        return  # a lone surrogate is no text
    assert decode_metadata(data) == metadata


@given(st.binary(max_size=60))
def test_any_metadata(data: bytes) -> None:
    try:
        found = decode_metadata(data)
    except RemoteProtocolError:
        return
    assert encode_metadata(found) == data


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"": "x"}, ValueError),
        ({"Upper": "x"}, ValueError),
        ({"k" * 256: "x"}, ValueError),
        ({"é": "x"}, ValueError),
        ({"a\nb": "x"}, ValueError),
        ({"k": "x" * 65536}, ValueError),
        ({"k": 5}, TypeError),
        ({5: "x"}, TypeError),
    ],
)
def test_metadata_that_cannot_travel(metadata: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="metadata"):
        encode_metadata(metadata)


def test_messages_that_two_threads_build_at_once(core: Any) -> None:
    """Each event loop has a thread of its own, and the interpreter may change threads at any line."""

    def build(number: int) -> tuple[bytes, ...]:
        trace = core.trace.ServerTrace(number, "m", number)
        return (
            core.rpc.cancel_message(number, 1),
            core.rpc.credit_message(number, number),
            trace.block(number),
        )

    def other_thread(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_name == "_put":
            build(0x0A0B0C0D)
        return other_thread

    expected, before = build(0x01020304), sys.gettrace()
    sys.settrace(other_thread)
    try:
        built = build(0x01020304)
    finally:
        sys.settrace(before)
    assert built == expected
