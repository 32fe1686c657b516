"""Checks of Redis behind the proxy with redis-py. Each function raises AssertionError on failure."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[[redis.Redis, redis.Redis], None]


def types(proxied: redis.Redis, direct: redis.Redis) -> None:
    """strings, numbers, lists, hashes, sets, sorted sets, streams"""
    proxied.set("s", "text")
    proxied.incrby("n", 41)
    proxied.incr("n")
    proxied.rpush("l", *range(100))
    proxied.hset("h", mapping={"a": 1, "b": "two"})
    proxied.sadd("set", *range(20))
    proxied.zadd("z", {"one": 1.5, "two": 2})
    proxied.xadd("x", {"field": "value"}, id="1-1")
    for client in (proxied, direct):  # Redis holds what the proxy forwarded, and returns it unchanged
        assert client.get("s") == b"text"
        assert client.get("n") == b"42"
        assert client.lrange("l", 0, -1) == [b"%d" % n for n in range(100)]
        assert client.hgetall("h") == {b"a": b"1", b"b": b"two"}
        assert set(client.smembers("set")) == {b"%d" % n for n in range(20)}
        assert [(name, float(score)) for name, score in client.zrange("z", 0, -1, withscores=True)] == [
            (b"one", 1.5),
            (b"two", 2.0),
        ]
        assert client.xlen("x") == 1
    replies = proxied.pipeline(transaction=False).incr("s").get("s").execute(raise_on_error=False)
    assert [type(reply) for reply in replies] == [redis.ResponseError, bytes], "an error is one reply of many"


def binary(proxied: redis.Redis, direct: redis.Redis) -> None:
    """every byte value, and values from 0 bytes to 16 MiB"""
    for size in (0, 1, 4096, 65_537, 1_000_003, 16 * 1024 * 1024):
        value = random.Random(size).randbytes(size)
        proxied.set("big", value)
        assert direct.get("big") == value
        assert proxied.get("big") == value
    awkward = bytes(range(256)) + b"\r\n$5\r\n*3\r\n"
    proxied.set(awkward, awkward)
    assert proxied.get(awkward) == awkward


def pipelines(proxied: redis.Redis, direct: redis.Redis) -> None:
    """20,000 commands in one pipeline, replies in order"""
    with proxied.pipeline(transaction=False) as pipe:
        for number in range(10_000):
            pipe.set(f"k{number}", number).get(f"k{number}")
        replies = pipe.execute()
    assert [int(reply) for reply in replies[1::2]] == list(range(10_000))
    assert direct.get("k9999") == b"9999"


def transactions(proxied: redis.Redis, direct: redis.Redis) -> None:
    """MULTI/EXEC, and WATCH that detects another client's change"""
    with proxied.pipeline(transaction=True) as pipe:
        assert pipe.set("t", 1).incr("t").get("t").execute() == [True, 2, b"2"]
    with proxied.pipeline() as pipe:
        pipe.watch("t")
        direct.set("t", 100)
        pipe.multi()
        pipe.set("t", 3)
        try:
            pipe.execute()
        except redis.WatchError:
            pass
        else:
            raise AssertionError("WATCH did not notice")
    assert proxied.get("t") == b"100"


def publish_subscribe(proxied: redis.Redis, direct: redis.Redis) -> None:
    """messages reach subscribers and pattern subscribers"""
    with proxied.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe("news")
        pubsub.psubscribe("ne*")
        while direct.pubsub_numsub("news")[0][1] < 1 or direct.pubsub_numpat() < 1:
            pass  # the subscriptions are still in flight
        assert direct.publish("news", b"\x00hello") == 2
        got: list[dict[str, Any]] = []
        while len(got) < 2:
            message = pubsub.get_message(timeout=5)
            if message is not None:
                got.append(message)
        assert {message["type"] for message in got} == {"message", "pmessage"}
        assert {message["data"] for message in got} == {b"\x00hello"}


def blocking(proxied: redis.Redis, direct: redis.Redis) -> None:
    """BLPOP blocks without delaying other clients"""
    got: list[Any] = []
    waiter = threading.Thread(target=lambda: got.append(proxied.blpop(["jobs"], timeout=10)))
    waiter.start()
    while not any("b" in client["flags"] for client in direct.client_list()):
        pass
    assert proxied.ping()
    assert not got
    proxied.rpush("jobs", "one")
    waiter.join(10)
    assert [list(item) for item in got] == [[b"jobs", b"one"]]


def databases(proxied: redis.Redis, direct: redis.Redis) -> None:
    """SELECT affects only the client that sent it"""
    options = proxied.get_connection_kwargs()
    with redis.Redis(port=options["port"], db=5, protocol=options["protocol"]) as other:
        other.set("where", "db 5")
        assert proxied.get("where") is None
        assert other.get("where") == b"db 5"


def many_clients(proxied: redis.Redis, direct: redis.Redis) -> None:
    """50 clients at once, each gets its own replies"""
    results = [False] * 50

    def work(number: int) -> None:
        options = proxied.get_connection_kwargs()
        with redis.Redis(port=options["port"], protocol=options["protocol"]) as client:
            for turn in range(20):
                value = b"%d:%d" % (number, turn)
                client.set(f"c{number}", value)
                if client.echo(value) != value or client.get(f"c{number}") != value:
                    return
            results[number] = True

    threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(results), f"{results.count(False)} clients got wrong replies"


CHECKS: list[Check] = [
    types,
    binary,
    pipelines,
    transactions,
    publish_subscribe,
    blocking,
    databases,
    many_clients,
]
