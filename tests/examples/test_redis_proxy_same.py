"""For any input of a client, the proxy's replies equal those of redis-server, byte for byte."""

from __future__ import annotations

import itertools
import socket
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proxy.resp import encode_command

from .conftest import MODES
from .stack import Stack, running

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.xdist_group("redis proxy, compared"), pytest.mark.slow]


@pytest.fixture(scope="module", params=MODES)
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with running(request.param) as stack:
        yield stack


_key = st.sampled_from([b"a", b"b", b"\r\n"])
_value = st.one_of(
    st.binary(max_size=20), st.integers(-5, 5).map(lambda n: b"%d" % n), st.just(b"x" * 70_000)
)


def _command(*parts: st.SearchStrategy[bytes] | bytes) -> st.SearchStrategy[list[bytes]]:
    return st.tuples(*(st.just(part) if isinstance(part, bytes) else part for part in parts)).map(list)


_shared = st.one_of(
    _command(b"SET", _key, _value),
    _command(b"get", _key),
    _command(b"INCR", _key),
    _command(b"APPEND", _key, _value),
    _command(b"LPUSH", _key, _value, _value),
    _command(b"LRANGE", _key, b"0", b"-1"),
    _command(b"DEL", _key, _key),
    _command(b"EcHo", _value),
    _command(b"PING"),
    _command(b"GET"),
    _command(b"EVAL", b"return {1, {'a', {ARGV[1]}}, false}", b"0", _value),
    _command(b"CLIENT", b"SETINFO", b"LIB-NAME", b"x"),
)
_stateful = st.one_of(
    _command(b"MULTI"),
    _command(b"MULTI", b"x"),
    _command(b"EXEC"),
    _command(b"DISCARD"),
    _command(b"WATCH", _key),
    _command(b"UNWATCH"),
    _command(b"SELECT", st.sampled_from([b"0", b"1", b"99"])),
    _command(b"CLIENT", b"SETNAME", b"me"),
    _command(b"CLIENT", b"GETNAME"),
    _command(b"AUTH", b"x"),
    _command(b"SUBSCRIBE", b"s"),
    _command(b"UNSUBSCRIBE"),
    _command(b"BLPOP", b"empty", b"0.001"),
    _command(b"RESET"),
    _command(b"NOSUCH", _value),
)
_inline = st.sampled_from(
    [b"PING\r\n", b"\r\n", b"set a 'b c'\r\n", b'get "a"\n', b"*0\r\n", b"MULTI\r\n", b"EXEC\r\n", b"*-1\r\n"]
)
_broken = st.sampled_from(
    [
        b"*1\r\n:1\r\n",
        b"*1\r\n$-1\r\n",
        b"*x\r\n",
        b'get "a\r\n',
        b"*1\r\n$9999999999\r\n",
        b"*1\r\n$04\r\nPING\r\n",
        b"*01\r\n$4\r\nPING\r\n",
        b"*2\r\n$6\r\nSCRIPT\r\n$-0\r\n\r\n",
    ]
)
_words = st.one_of(
    _shared.map(encode_command), _shared.map(encode_command), _stateful.map(encode_command), _inline
)
_QUIT = b"QUIT\r\n"


def _talk(words: list[bytes], end: bytes) -> bytes:
    # Redis 8 does not report a mistake that came in one read with a command that blocked, and waits on.
    return b"".join(word for word in words if end == _QUIT or b"BLPOP" not in word) + end


_talks = st.builds(_talk, st.lists(_words, max_size=12), st.one_of(st.just(_QUIT), _broken))


def talk(port: int, data: bytes, cuts: list[int]) -> tuple[bytes, bool]:
    """Send `data` in pieces; return the replies, and whether they were cut short.

    A server that disconnects before reading everything resets the connection, and replies may get lost.
    """
    answer = b""
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
        try:
            for start, end in itertools.pairwise(edges):
                sock.sendall(data[start:end])
            while more := sock.recv(65536):
                answer += more
        except (BrokenPipeError, ConnectionResetError):
            return answer, True
    return answer, False


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@given(data=_talks, cuts=st.lists(st.integers(0, 100_000), max_size=4))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_same_answers(stack: Stack, data: bytes, cuts: list[int]) -> None:
    stack.direct().flushall()
    expected, cut_expected = talk(stack.redis_port, data, cuts)
    stack.direct().flushall()
    answer, cut_answer = talk(stack.front_port, data, cuts)
    if cut_expected or cut_answer:
        size = min(len(expected), len(answer))
        expected, answer = expected[:size], answer[:size]
    assert answer == expected
