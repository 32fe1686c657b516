"""The proxy's scanners, as plain Python and compiled: RESP split anywhere, and invalid input."""

from __future__ import annotations

import functools
import importlib.util
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .conftest import EXAMPLES, compiled_scanner

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("scan", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLAIN = _load(EXAMPLES / "proxy" / "scan.py")


@functools.cache
def _compiled() -> ModuleType:
    return _load(compiled_scanner())


@pytest.fixture(scope="module", params=["plain", "compiled"])
def scan(request: pytest.FixtureRequest) -> ModuleType:
    return PLAIN if request.param == "plain" else _compiled()


# ---- the RESP types -------------------------------------------------------------------------------------

_text = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=12).map(str.encode)
_simple = st.one_of(
    st.builds(b"+%b\r\n".__mod__, _text),
    st.builds(b"-ERR %b\r\n".__mod__, _text),
    st.builds(b":%d\r\n".__mod__, st.integers(-(2**63), 2**63 - 1)),
    st.builds(b"(%d\r\n".__mod__, st.integers()),
    st.builds(lambda x: b",%b\r\n" % repr(x).encode(), st.floats()),
    st.sampled_from([b"_\r\n", b"#t\r\n", b"#f\r\n", b"$-1\r\n", b"*-1\r\n", b"$0\r\n\r\n"]),
)
_bulk = st.builds(
    lambda kind, x: b"%b%d\r\n%b\r\n" % (kind, len(x), x),
    st.sampled_from([b"$", b"=", b"!"]),
    st.binary(max_size=40),
)
_streamed = st.lists(st.binary(min_size=1, max_size=9), max_size=3).map(
    lambda parts: b"$?\r\n" + b"".join(b";%d\r\n%b\r\n" % (len(x), x) for x in parts) + b";0\r\n"
)


def _aggregates(items: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    lists = st.lists(items, max_size=4)
    pairs = st.lists(st.tuples(items, items).map(b"".join), max_size=3)
    return st.one_of(
        st.builds(
            lambda kind, x: b"%b%d\r\n" % (kind, len(x)) + b"".join(x), st.sampled_from([b"*", b"~"]), lists
        ),
        st.builds(
            lambda kind, x: kind + b"?\r\n" + b"".join(x) + b".\r\n", st.sampled_from([b"*", b"~"]), lists
        ),
        st.builds(lambda x: b"%%%d\r\n" % len(x) + b"".join(x), pairs),
        st.builds(lambda x: b"%?\r\n" + b"".join(x) + b".\r\n", pairs),
        st.builds(lambda x, value: b"|%d\r\n" % len(x) + b"".join(x) + value, pairs, items),
    )


_values = st.recursive(st.one_of(_simple, _bulk, _streamed), _aggregates, max_leaves=12)
_push = st.lists(_values, min_size=1, max_size=3).map(lambda x: b">%d\r\n" % len(x) + b"".join(x))
# A reply as received: pushes may precede it.
_replies = st.builds(lambda pushes, value: b"".join(pushes) + value, st.lists(_push, max_size=1), _values)
_names = st.sampled_from([b"GET", b"SET", b"MGET"])
_args = st.lists(st.binary(max_size=20), max_size=4)
_commands = st.builds(lambda name, args: [name, *args], _names, _args)


def encode(args: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%b\r\n" % (len(arg), arg) for arg in args)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


_cuts = st.lists(st.integers(0, 10_000), max_size=8)

# ---- replies ---------------------------------------------------------------------------------------------


def reply_ends(scan: ModuleType, pieces: list[bytes], want: int) -> tuple[list[int], Any]:
    """The ends of replies, from a scanner that is asked for `want` at a time."""
    scanner = scan.ReplyScanner()
    ends: list[int] = []
    before = 0
    for piece in pieces:
        pos = 0
        while pos < len(piece):
            pos = scanner.feed(piece, pos, want)
            assert scanner.done <= want
            if scanner.done and not scanner.partial:
                ends.append(before + pos)
        before += len(piece)
    return ends, scanner


@given(replies=st.lists(_replies, min_size=1, max_size=6), cuts=_cuts)
def test_replies_end_where_they_end(scan: ModuleType, replies: list[bytes], cuts: list[int]) -> None:
    data = b"".join(replies)
    expected = [sum(map(len, replies[: n + 1])) for n in range(len(replies))]
    for pieces in ([data], split(data, cuts), [data[i : i + 1] for i in range(len(data))]):
        ends, scanner = reply_ends(scan, pieces, 1)
        assert ends == expected
        assert not scanner.partial


def test_replies_may_be_nested_as_deep_as_a_server_likes(scan: ModuleType) -> None:
    levels = 100_000
    reply = b"*2\r\n:1\r\n" * levels + b"$4\r\n*1\r\n\r\n"
    for pieces in ([reply + b"+OK\r\n"], split(reply + b"+OK\r\n", [7, 1001, 88_888])):
        ends, scanner = reply_ends(scan, pieces, 1)
        assert ends == [len(reply), len(reply) + 5]
        assert not scanner.partial


@given(replies=st.lists(_replies, min_size=1, max_size=8), want=st.integers(1, 8))
def test_no_more_replies_than_wanted(scan: ModuleType, replies: list[bytes], want: int) -> None:
    scanner = scan.ReplyScanner()
    end = scanner.feed(b"".join(replies), 0, want)
    assert scanner.done == min(want, len(replies))
    assert end == sum(map(len, replies[:want]))


@given(reply=_values)
def test_a_cut_reply_is_partial(scan: ModuleType, reply: bytes) -> None:
    for cut in range(1, len(reply)):
        scanner = scan.ReplyScanner()
        assert scanner.feed(reply[:cut], 0, 1) == cut
        assert scanner.done == 0
        assert scanner.partial


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"hello\r\n", "where a reply must start"),
        (b"$-2\r\n", "negative"),
        (b"$1x\r\n", "in a size"),
        (b"$\r\n", "in a size"),
        (b"$99999999999\r\n", "ten digits"),
        (b"$9999999999\r\n", "limit"),
        (b"*9999999999\r\n", "limit"),
        (b"$3\r\nabcd\r\n", "announced length"),
        (b"+a\rb", "line feed"),
        (b"*1\r\n>1\r\n+a\r\n", "push inside"),
        (b"*1\r\n.\r\n", "where a reply must start"),
        (b"$?\r\n+a\r\n", "streamed string"),
        (b"~-1\r\n", "in a size"),
        (b"*1\r\n" * ((1 << 20) + 1), "nested deeper"),
    ],
)
def test_what_is_not_resp_is_refused(scan: ModuleType, data: bytes, words: str) -> None:
    with pytest.raises(scan.ProtocolError, match=words):
        scan.ReplyScanner().feed(data, 0, 1)


@given(
    data=st.lists(st.sampled_from([*b"*$+-:>|%~?.;=!_#(,012345\r\nax"]), max_size=40).map(bytes), cuts=_cuts
)
def test_plain_and_compiled_agree_on_anything(data: bytes, cuts: list[int]) -> None:
    outcomes: list[object] = []
    for scan in (PLAIN, _compiled()):
        for pieces in ([data], split(data, cuts)):
            try:
                ends, scanner = reply_ends(scan, pieces, 1)
                outcomes.append((ends, scanner.partial))
            except scan.ProtocolError as exc:
                outcomes.append(str(exc))
    assert outcomes.count(outcomes[0]) == len(outcomes)


# ---- commands --------------------------------------------------------------------------------------------


def feed_all(scanner: Any, pieces: list[bytes]) -> tuple[int, bytes]:
    """The number of commands counted, and the bytes left at the end."""
    count = 0
    rest = b""
    for piece in pieces:
        data = rest + piece
        count += scanner.feed(data)
        rest = data[scanner.end :]
    return count, rest


@given(commands=st.lists(_commands, max_size=6), cuts=_cuts, missing=st.integers(0, 12))
def test_commands_are_counted(
    scan: ModuleType, commands: list[list[bytes]], cuts: list[int], missing: int
) -> None:
    data = b"".join(map(encode, commands))
    tail = encode([b"GET", b"x"])[:missing]
    whole = data + tail
    for pieces in ([whole], split(whole, cuts), [whole[i : i + 1] for i in range(len(whole))]):
        scanner = scan.CommandScanner({b"GET", b"SET", b"MGET"}, 1 << 20)
        count, rest = feed_all(scanner, pieces)
        assert count == len(commands)
        assert rest == tail
        assert scanner.verdict == scan.MORE


@given(commands=st.lists(_commands, max_size=3), other=st.sampled_from([b"MULTI", b"get", b""]), cuts=_cuts)
def test_other_commands_stop_the_count(
    scan: ModuleType, commands: list[list[bytes]], other: bytes, cuts: list[int]
) -> None:
    data = b"".join(map(encode, commands)) + encode([other, b"x"]) + encode([b"GET", b"y"])
    scanner = scan.CommandScanner({b"GET", b"SET", b"MGET"}, 1 << 20)
    count, rest = feed_all(scanner, split(data, cuts))
    assert count == len(commands)
    assert rest == encode([other, b"x"]) + encode([b"GET", b"y"])
    assert scanner.verdict == scan.OTHER


@pytest.mark.parametrize("inline", [b"PING\r\n", b"\r\n", b"*0\r\n", b"*-1\r\n"])
def test_inline_and_empty_commands_are_for_the_caller(scan: ModuleType, inline: bytes) -> None:
    scanner = scan.CommandScanner({b"GET"}, 1 << 20)
    assert scanner.feed(encode([b"GET", b"x"]) + inline) == 1
    assert scanner.verdict == scan.OTHER
    assert scanner.end == len(encode([b"GET", b"x"]))


def test_long_commands_are_told_as_soon_as_they_are_seen(scan: ModuleType) -> None:
    scanner = scan.CommandScanner({b"SET"}, 1000)
    assert scanner.feed(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000\r\nxxx") == 0
    assert scanner.verdict == scan.BIG
    scanner = scan.CommandScanner({b"SET"}, 1000)
    assert scanner.feed(b"*3000\r\n$3\r\nSET\r\n" + b"$1\r\nk\r\n" * 150) == 0
    assert scanner.verdict == scan.BIG
    scanner = scan.CommandScanner({b"SET"}, 1000)
    assert scanner.feed(encode([b"SET", b"k", bytes(2000)])) == 1, "it is all here"


@pytest.mark.parametrize(
    "data",
    [
        b"*x\r\n",
        b"*\r\n",
        b"*1\n",
        b"*1048577\r\n",
        b"*1\r\n+3\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$536870913\r\n",
        b"*1\r\n$3\r\nGETxx",
        b"*99999999999999",
        # Redis takes a number in one spelling only.
        b"*01\r\n$3\r\nGET\r\n",
        b"*00\r\n",
        b"*1\r\n$03\r\nGET\r\n",
        b"*2\r\n$3\r\nGET\r\n$00\r\n\r\n",
        b"*2\r\n$3\r\nGET\r\n$-0\r\n\r\n",
        b"*+1\r\n",
        b"* 1\r\n",
        b"*1\r\n$+3\r\n",
        b"*1\r\n$3 \r\n",
    ],
)
def test_broken_commands_are_told(scan: ModuleType, data: bytes) -> None:
    whole = encode([b"GET", b"x"]) + data
    scanner = scan.CommandScanner({b"GET"}, 1 << 20)
    assert scanner.feed(whole) == 1
    assert scanner.verdict == scan.BAD
    assert scanner.error
    assert scanner.end == len(encode([b"GET", b"x"]))


@given(
    data=st.lists(
        st.sampled_from(
            [
                b"*1\r\n",
                b"*2\r\n",
                b"$3\r\n",
                b"GET\r\n",
                b"SET\r\n",
                b"$",
                b"*",
                b"\r",
                b"\n",
                b"1",
                b"-1",
                b"GET",
            ]
        ),
        max_size=12,
    ).map(b"".join),
    cuts=_cuts,
)
def test_plain_and_compiled_agree_on_any_command(data: bytes, cuts: list[int]) -> None:
    outcomes = []
    for scan in (PLAIN, _compiled()):
        scanner = scan.CommandScanner({b"GET"}, 1 << 20)
        outcomes.append((feed_all(scanner, split(data, cuts)), scanner.verdict, scanner.error))
    assert outcomes[0] == outcomes[1]
