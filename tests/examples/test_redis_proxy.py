"""The Redis proxy in operation: redis-server, back, front, and typical clients."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
import redis
from proxy.resp import encode_command

from .conftest import MODES
from .stack import DEADLINE_S, Stack, running, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("redis proxy")


@pytest.fixture(scope="module", params=MODES)
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with running(request.param) as stack:
        yield stack


@pytest.fixture(autouse=True)
def empty(stack: Stack) -> None:
    stack.direct().flushall()


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def client(request: pytest.FixtureRequest, stack: Stack) -> redis.Redis:
    return stack.client(protocol=request.param)


def connections(stack: Stack) -> list[dict[str, Any]]:
    """The clients that redis-server sees, without the one that asks."""
    return [c for c in stack.direct().client_list() if c["cmd"] != "client|list"]


def in_a_wait(stack: Stack) -> list[dict[str, Any]]:
    """Those that wait in a command. (One that does not keeps the name of its last command.)"""
    return [c for c in connections(stack) if "b" in c["flags"]]


def read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(min(size - len(data), 65536))
        assert more, f"closed after {data!r}"
        data += more
    return data


def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    while more := sock.recv(65536):
        data += more
    return data


# ---- behaviour for every client --------------------------------------------------------------------------


def test_types(client: redis.Redis) -> None:
    assert client.set("s", "value")
    assert client.get("s") == b"value"
    assert client.get("none") is None
    assert client.incr("n", 7) == 7
    assert client.rpush("l", *range(50)) == 50
    assert client.lrange("l", 0, -1) == [b"%d" % n for n in range(50)]
    assert client.hset("h", mapping={"a": 1, "b": "two"}) == 2
    assert client.hgetall("h") == {b"a": b"1", b"b": b"two"}
    assert client.sadd("set", "x", "y") == 2
    assert set(client.smembers("set")) == {b"x", b"y"}
    assert client.zadd("z", {"one": 1, "two": 2.5}) == 2
    assert client.zscore("z", "two") == 2.5
    assert client.xadd("x", {"f": "v"}, id="1-1") == b"1-1"
    assert client.xlen("x") == 1
    assert client.eval("return {1, {2, 'three', {4}}, false}", 0) == [1, [2, b"three", [4]], None]
    with pytest.raises(redis.ResponseError, match="wrong kind of value"):
        client.incr("l")
    with pytest.raises(redis.ResponseError, match="unknown command"):
        client.execute_command("NOSUCH", "x")
    assert client.ping()


@pytest.mark.parametrize("size", [0, 1, 1000, 65_500, 65_536, 1_000_003, 20_000_000])
def test_binary_values_of_any_size(client: redis.Redis, size: int) -> None:
    value = random.Random(size).randbytes(size)
    assert client.set("big", value)
    assert client.get("big") == value
    assert client.set("after", b"\r\n$3\r\n\x00")
    assert client.get("after") == b"\r\n$3\r\n\x00"


def test_pipelines(client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipe:
        for n in range(5000):
            pipe.set(f"k{n % 100}", n)
            pipe.get(f"k{n % 100}")
        replies = pipe.execute()
    assert replies[0::2] == [True] * 5000
    assert replies[1::2] == [b"%d" % n for n in range(5000)]


def test_transactions(client: redis.Redis) -> None:
    with client.pipeline(transaction=True) as pipe:
        pipe.set("a", 1)
        pipe.incr("a")
        pipe.lrange("a", 0, 1)
        assert pipe.execute(raise_on_error=False)[:2] == [True, 2]
    assert client.get("a") == b"2"


def test_watch_sees_what_others_do(stack: Stack, client: redis.Redis) -> None:
    client.set("w", 1)
    with client.pipeline() as pipe:
        pipe.watch("w")
        assert pipe.get("w") == b"1"
        stack.direct().set("w", 2)
        pipe.multi()
        pipe.set("w", 3)
        with pytest.raises(redis.WatchError):
            pipe.execute()
    assert client.get("w") == b"2"


def test_publish_and_subscribe(stack: Stack, client: redis.Redis) -> None:
    with client.pubsub() as pubsub:
        pubsub.subscribe("news")
        pubsub.psubscribe("n*")
        assert [until(lambda: pubsub.get_message(timeout=1), "subscribed")["type"] for _ in range(2)] == [
            "subscribe",
            "psubscribe",
        ]
        assert stack.client().publish("news", b"\x00hello") == 2
        messages = [until(lambda: pubsub.get_message(timeout=1), "message") for _ in range(2)]
        assert sorted(message["type"] for message in messages) == ["message", "pmessage"]
        assert {message["data"] for message in messages} == {b"\x00hello"}
        pubsub.unsubscribe()
        assert until(lambda: pubsub.get_message(timeout=1), "unsubscribed")["type"] == "unsubscribe"


def test_blocking_commands_block_their_client_only(stack: Stack, client: redis.Redis) -> None:
    got: list[object] = []
    waiter = threading.Thread(target=lambda: got.append(client.blpop(["queue"], timeout=2 * DEADLINE_S)))
    waiter.start()
    until(lambda: in_a_wait(stack), "blpop reached the server")
    others = stack.client()
    assert others.set("x", 1)
    assert not got
    others.rpush("queue", "job")
    waiter.join(DEADLINE_S)
    assert [list(reply) for reply in got] == [[b"queue", b"job"]]  # type: ignore[call-overload]
    assert client.get("x") == b"1"


def test_a_consumer_with_the_name_of_an_option_blocks_itself_only(stack: Stack) -> None:
    stack.direct().xgroup_create("k", "g", mkstream=True)
    with contextlib.ExitStack() as sockets:
        waiting = sockets.enter_context(stack.socket())
        waiting.sendall(b"XREADGROUP GROUP g streams BLOCK 0 STREAMS k >\r\n")
        until(lambda: in_a_wait(stack), "xreadgroup reached the server")
        others = [sockets.enter_context(stack.socket()) for _ in range(8)]  # some on each shared stream
        for other in others:
            other.sendall(b"PING\r\n")
        for other in others:
            assert read_exactly(other, 7) == b"+PONG\r\n"
        stack.direct().xadd("k", {"a": "b"}, id="1-1")
        assert read_exactly(waiting, 4) == b"*1\r\n"


def test_select_and_names_stay_with_their_client(stack: Stack) -> None:
    first = stack.client(db=3)
    first.set("k", "three")
    second = stack.client()
    assert second.get("k") is None
    assert first.get("k") == b"three"
    with stack.client(single_connection_client=True) as named:
        named.client_setname("me")
        assert named.client_getname() == "me"
    with stack.client(single_connection_client=True) as nameless:
        assert nameless.client_getname() is None


def test_monitor(stack: Stack, client: redis.Redis) -> None:
    with client.monitor() as monitor:
        stack.client().set("seen", 1)
        assert until(lambda: "SET seen 1" in monitor.next_command()["command"], "the command was monitored")


def test_client_reply_off_and_skip(stack: Stack) -> None:
    with stack.socket() as sock:
        sock.sendall(b"CLIENT REPLY SKIP\r\nSET a 1\r\nGET a\r\nCLIENT REPLY OFF\r\nSET a 2\r\nPING\r\n")
        sock.sendall(b"CLIENT REPLY ON\r\nGET a\r\n")
        assert read_exactly(sock, 19) == b"$1\r\n1\r\n+OK\r\n$1\r\n2\r\n"


def test_inline_commands_and_quit(stack: Stack) -> None:
    with stack.socket() as sock:
        sock.sendall(b'\r\n  set q "a b\\x41"  \r\nGET q\r\nping\n*0\r\nQUIT\r\nSET q no\r\n')
        assert read_to_end(sock) == b"+OK\r\n$4\r\na bA\r\n+PONG\r\n+OK\r\n"
    assert stack.direct().get("q") == b"a bA"


def test_commands_before_the_end_of_the_stream_are_answered(stack: Stack) -> None:
    with stack.socket() as sock:
        sock.sendall(b"SET e 1\r\nGET e\r\n")
        sock.shutdown(socket.SHUT_WR)
        assert read_to_end(sock) == b"+OK\r\n$1\r\n1\r\n"


def test_the_end_of_the_stream_ends_a_blocked_command(stack: Stack) -> None:
    with stack.socket() as sock:
        sock.sendall(b"BLPOP nothing 0\r\n")
        until(lambda: in_a_wait(stack), "blpop reached the server")
        sock.shutdown(socket.SHUT_WR)
        assert read_to_end(sock) == b""
    until(lambda: not in_a_wait(stack), "blpop ended")


def test_split_at_every_byte(stack: Stack) -> None:
    commands = b"".join(
        [
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\r\n$3\r\n",
            b"*1\r\n$5\r\nMULTI\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nEXEC\r\n",
            b"GET k\r\n*2\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\n",
            b"*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n*1\r\n$4\r\nQUIT\r\n",
        ]
    )
    with stack.socket() as sock:
        sock.sendall(commands)
        expected = read_to_end(sock)
    assert expected.startswith(
        b"+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n$4\r\n\r\n$3\r\n$4\r\n\r\n$3\r\n$2\r\n\r\n\r\n*14\r\n"
    )
    for at in range(1, len(commands), 7):
        with stack.socket() as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in (commands[:at], commands[at : at + 3], commands[at + 3 :]):
                sock.sendall(piece)
            reply = read_to_end(sock)
            # The reply to HELLO names the connection.
            assert reply.partition(b"$2\r\nid")[0] == expected.partition(b"$2\r\nid")[0]
            assert reply.endswith(b"+OK\r\n")


# ---- shared connections ----------------------------------------------------------------------------------


def test_many_clients_share_few_connections(stack: Stack) -> None:
    clients = [stack.client(protocol=2 + n % 2, single_connection_client=True) for n in range(50)]

    def work(number: int, client: redis.Redis) -> None:
        rng = random.Random(number)
        for turn in range(40):
            value = b"%d:%d:" % (number, turn) + rng.randbytes(rng.choice([0, 10, 3000]))
            with client.pipeline(transaction=False) as pipe:
                pipe.set(f"c{number}", value).get(f"c{number}").echo(value)
                results[number] = results[number] and pipe.execute() == [True, value, value]

    results = [True] * len(clients)
    threads = [threading.Thread(target=work, args=each) for each in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert results == [True] * len(clients)
    until(lambda: len(connections(stack)) <= 21, "only shared and idle lanes are left")


def test_a_lane_comes_back_clean_after_a_transaction(stack: Stack) -> None:
    with stack.socket() as sock:
        for _ in range(20):
            sock.sendall(b"WATCH a\r\nMULTI\r\nSET a 1\r\nEXEC\r\nPING\r\n")
            assert read_exactly(sock, 35) == b"+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n+PONG\r\n"
        sock.sendall(b"MULTI\r\nSET a 2\r\n")
        read_exactly(sock, 14)
    with stack.socket() as sock:
        sock.sendall(b"MULTI\r\nGET a\r\nDISCARD\r\nEXEC\r\n")
        assert read_exactly(sock, 19) == b"+OK\r\n+QUEUED\r\n+OK\r\n"
        assert read_exactly(sock, 25) == b"-ERR EXEC without MULTI\r\n"
    assert stack.direct().get("a") == b"1"


def test_the_proxy_adds_no_commands_of_its_own(stack: Stack) -> None:
    """SLOWLOG has what clients sent: nothing for a lane that comes back as it was taken."""
    direct = stack.direct()
    before = direct.info("commandstats").get("cmdstat_reset", {"calls": 0})["calls"]
    with stack.socket() as sock:
        for _ in range(5):
            sock.sendall(b"WATCH a\r\nMULTI\r\nGET a\r\nEXEC\r\nBLPOP nothing 0.001\r\nPING\r\n")
            answer = read_exactly(sock, 14 + len(b"+QUEUED\r\n*1\r\n") - 4)
            assert answer.startswith(b"+OK\r\n+OK\r\n+QUEUED\r\n")
            until_pong(sock)
        assert direct.info("commandstats").get("cmdstat_reset", {"calls": 0})["calls"] == before
        # What the server refused leaves a doubt, which RESET ends.
        sock.sendall(b"MULTI\r\nGET\r\nEXEC\r\nPING\r\n")
        until_pong(sock)
    until(
        lambda: direct.info("commandstats").get("cmdstat_reset", {"calls": 0})["calls"] == before + 1,
        "a lane on which a command was refused is reset",
    )


def until_pong(sock: socket.socket) -> None:
    data = b""
    while not data.endswith(b"+PONG\r\n"):
        more = sock.recv(4096)
        assert more, data
        data += more


def test_replies_nested_deeper_than_any_client_expects_harm_nobody_else(stack: Stack) -> None:
    """On a shared lane: its other clients get their replies, and it is not lost."""
    deep = "local t = {} for i = 1, 3000 do t = {t} end return t"
    other = stack.client(single_connection_client=True)
    before = other.info("clients")["connected_clients"]
    with stack.socket() as sock:
        for _ in range(20):
            sock.sendall(encode_command([b"EVAL", deep.encode(), b"0"]) + b"PING\r\n")
            assert other.echo("mine") == b"mine"
            until_pong(sock)
    assert other.info("clients")["connected_clients"] == before
    assert "is lost" not in stack.front.output


def test_hostile_clients_harm_nobody_else(stack: Stack) -> None:
    good = stack.client(single_connection_client=True)
    assert good.ping()
    for attack, answer in [
        (b"*1\r\n$-5\r\n", b"-ERR Protocol error: invalid bulk length\r\n"),
        (b"*9999999\r\n", b"-ERR Protocol error: invalid multibulk length\r\n"),
        (b'GET "a\r\n', b"-ERR Protocol error: unbalanced quotes in request\r\n"),
        (b"*2\r\n$3\r\nGET\r\n:1\r\n", b"-ERR Protocol error: expected '$', got ':'\r\n"),
        (b"x" * 70_000, b"-ERR Protocol error: too big inline request\r\n"),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b""),
    ]:
        with stack.socket() as sock:
            sock.sendall(b"PING\r\n" + attack)
            assert read_to_end(sock) == b"+PONG\r\n" + answer
    assert good.ping()
    assert "is lost" not in stack.front.output, "no shared lane went down with them"
