"""Parsing commands, and which of them may share a connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proxy.commands import Kind, Transaction, classify
from proxy.hello import MAX_LINE, Line, refusal
from proxy.net import Address
from proxy.resp import encode_command, parse_command, split_inline
from proxy.scan import ProtocolError


@given(
    args=st.lists(st.binary(max_size=30), max_size=5),
    before=st.binary(max_size=5),
    after=st.binary(max_size=5),
)
def test_a_command_is_parsed_where_it_stands(args: list[bytes], before: bytes, after: bytes) -> None:
    data = encode_command(args)
    assert parse_command(before + data + after, len(before)) == (args, len(before) + len(data))
    for cut in range(1, len(data)):
        assert parse_command(data[:cut], 0) is None


@pytest.mark.parametrize(
    ("line", "args"),
    [
        (b"set a b", [b"set", b"a", b"b"]),
        (b"  set   a  ", [b"set", b"a"]),
        (b"", []),
        (b'set "a b" c', [b"set", b"a b", b"c"]),
        (rb'set "\x41\n\"\\\q" c', [b"set", b'A\n"\\q', b"c"]),
        (rb"set 'a\'b\n'", [b"set", rb"a'b\n"]),
        (b'set ""', [b"set", b""]),
        (b'set a"b c"', [b"set", b"ab c"]),
    ],
)
def test_inline_commands_are_split_as_redis_does(line: bytes, args: list[bytes]) -> None:
    assert split_inline(line) == args
    assert parse_command(line + b"\r\n" + b"rest", 0) == (args, len(line) + 2)


@pytest.mark.parametrize("line", [b'set "a', b"set 'a", b'set "a"b', b"set 'a'b", b'set "a\\'])
def test_unbalanced_quotes(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="unbalanced quotes"):
        split_inline(line)


@given(line=st.binary(max_size=40))
def test_any_inline_line_is_split_or_refused(line: bytes) -> None:
    try:
        args = split_inline(line)
    except ProtocolError:
        return
    assert sum(map(len, args)) <= len(line)


def test_endless_lines_are_refused() -> None:
    with pytest.raises(ProtocolError, match="too big inline"):
        parse_command(b"x" * 70_000, 0)
    with pytest.raises(ProtocolError, match="invalid multibulk length"):
        parse_command(b"*1" + b"1" * 20, 0)


@pytest.mark.parametrize(
    "number", [b"01", b"00", b"-0", b"-01", b"+1", b" 1", b"1 ", b"", b"-", b"--1", b"1_0"]
)
def test_a_number_in_a_spelling_that_redis_refuses(number: bytes) -> None:
    with pytest.raises(ProtocolError, match="invalid multibulk length"):
        parse_command(b"*%b\r\n$4\r\nPING\r\n" % number, 0)
    with pytest.raises(ProtocolError, match="invalid bulk length"):
        parse_command(b"*2\r\n$6\r\nSCRIPT\r\n$%b\r\nx\r\n" % number, 0)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"get a", Kind.SHARE),
        (b"Set a b", Kind.SHARE),
        (b"xread streams a 0", Kind.SHARE),
        (b"xread count 1 streams block 0", Kind.SHARE),
        (b"client setinfo lib-name x", Kind.SHARE),
        (b"script load x", Kind.SHARE),
        (b"exec", Kind.END),
        (b"unwatch", Kind.END),
        (b"multi", Kind.HOLD),
        (b"watch a", Kind.HOLD),
        (b"blpop a 0", Kind.HOLD),
        (b"xread block 0 streams a $", Kind.HOLD),
        (b"xreadgroup group g c BLOCK 5 streams a >", Kind.HOLD),
        # A group, a consumer and a key may have any name.
        (b"xreadgroup group g streams BLOCK 0 STREAMS k >", Kind.HOLD),
        (b"XREADGROUP GROUP STREAMS c block 0 streams k >", Kind.HOLD),
        (b"xreadgroup count 1 noack group streams streams block 0 streams k >", Kind.HOLD),
        (b"xreadgroup group block block streams k >", Kind.SHARE),
        (b"XREADGROUP GROUP count BLOCK COUNT 1 NOACK STREAMS BLOCK streams > >", Kind.SHARE),
        (b"xreadgroup group g c claim 5 streams k >", Kind.SHARE),
        (b"xreadgroup group g c claim 5 block 0 streams k >", Kind.HOLD),
        (b"xread count 1 BLOCK 0 streams streams $", Kind.HOLD),
        (b"xread streams streams block 0 0", Kind.SHARE),
        (b"xread count streams block 0 streams k $", Kind.HOLD),
        # What is not known here, or ends too early: perhaps the server knows it.
        (b"xread later streams k 0", Kind.HOLD),
        (b"xread block\0 0 streams k $", Kind.HOLD),
        (b"xread", Kind.HOLD),
        (b"xreadgroup group g", Kind.HOLD),
        (b"blpop streams 0", Kind.HOLD),
        (b"BLMPOP 0 1 streams left", Kind.HOLD),
        (b"bLmove streams streams left left 0", Kind.HOLD),
        (b"bzpopmin streams 0", Kind.HOLD),
        (b"wait 1 0", Kind.HOLD),
        (b"script kill", Kind.HOLD),
        (b"script kill\0", Kind.KEEP),
        (b"script debug\0 yes", Kind.KEEP),
        (b"script later", Kind.KEEP),
        (b"script", Kind.KEEP),
        (b"Script Exists x", Kind.SHARE),
        (b"function list withcode", Kind.SHARE),
        (b"FUNCTION KILL", Kind.HOLD),
        (b"hello 3", Kind.HELLO),
        (b"hello 3 auth a b", Kind.KEEP),
        (b"hello", Kind.KEEP),
        (b"client tracking on", Kind.ASK),
        (b"select 1", Kind.ASK),
        (b"auth x", Kind.ASK),
        (b"subscribe a", Kind.KEEP),
        (b"unsubscribe", Kind.KEEP),
        (b"client reply off", Kind.KEEP),
        (b"client", Kind.ASK),
        (b"monitor", Kind.KEEP),
        (b"script debug yes", Kind.KEEP),
        (b"readonly", Kind.KEEP),
        (b"reset", Kind.KEEP),
        (b"shutdown", Kind.KEEP),
        (b"post / http/1.1", Kind.KEEP),
        (b"bf.add a b", Kind.KEEP),
        (b"quit", Kind.QUIT),
    ],
)
def test_what_a_command_means_for_its_connection(line: bytes, kind: Kind) -> None:
    assert classify(line.split(b" ")) is kind


def test_a_transaction_is_followed_to_its_end() -> None:
    state = Transaction()
    for line, still_open in [
        (b"get a", False),
        (b"multi x", False),
        (b"watch a", True),
        (b"unwatch x", True),
        (b"unwatch", False),
        (b"watch a", True),
        (b"multi", True),
        (b"unwatch", True),
        (b"exec x", True),
        (b"exec", False),
        (b"multi", True),
        (b"discard", False),
    ]:
        state.sent(line.split())
        assert state.open is still_open, line


@given(
    line=st.binary(max_size=30).filter(lambda x: b"\n" not in x),
    rest=st.binary(max_size=9),
    at=st.integers(0, 40),
)
def test_the_first_line_split_anywhere(line: bytes, rest: bytes, at: int) -> None:
    data = line + b"\n" + rest
    collector = Line()
    first = collector.feed(data[:at])
    behind = collector.feed(data[at:]) if first is None else first + data[at:]
    assert collector.text == line + b"\n"
    assert behind == rest


def test_a_first_line_is_bounded() -> None:
    collector = Line()
    assert collector.feed(b"x" * (MAX_LINE - 1)) is None
    with pytest.raises(ValueError, match="no line end"):
        collector.feed(b"x")
    assert len(refusal("y" * 2000)) <= MAX_LINE
    assert refusal("a\r\n+OK") == b"-PROXY a??+OK\r\n"


def test_addresses() -> None:
    assert Address.parse("10.0.0.1:80") == ("10.0.0.1", 80)
    assert Address.parse("[::1]:80") == ("::1", 80)
    assert str(Address("::1", 80)) == "[::1]:80"
    for bad in ("80", "a:", "a:b", "a:70000"):
        with pytest.raises(ValueError, match="is not HOST:PORT"):
            Address.parse(bad)
    for bad in ("server..example:1", "x" * 64 + ".example:1", ".example:1"):
        with pytest.raises(ValueError, match="no name of a host"):
            Address.parse(bad)
