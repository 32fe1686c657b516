"""The Redis proxy when a process dies, is unreachable, stops, or does not read."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from demolib.processes import free_port

from tests.processes import FULL_PATIENCE

from .conftest import EXAMPLES, MODES
from .stack import Stack, running, until
from .test_redis_proxy import connections, in_a_wait, read_exactly, read_to_end

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(params=MODES)
def stack(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    # The memory of the proxy itself is bounded here. Rings of up to 8 MiB at each end would come on top.
    monkeypatch.setenv("AIORDMA_MAX_RING_BYTES", str(512 << 10))
    with running(request.param, "--streams", "1", "--client-buffer-mib", "1") as stack:
        yield stack


def memory_kib(pid: int) -> int:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])


@pytest.mark.parametrize("victim", ["redis", "back"])
def test_a_killed_server_is_told_and_survived(stack: Stack, victim: str) -> None:
    client = stack.client()
    client.set("a", 1)
    blocked: list[object] = []

    def block() -> None:
        try:
            stack.client().blpop(["none"], timeout=60)
        except redis.RedisError as exc:
            blocked.append(str(exc))

    waiter = threading.Thread(target=block)
    waiter.start()
    until(lambda: in_a_wait(stack), "blpop reached the server")
    program = getattr(stack, victim)
    program.stop(signal.SIGKILL)
    waiter.join(FULL_PATIENCE)
    assert "PROXY the connection to Redis was lost" in str(blocked)

    def away() -> str:
        try:
            client.get("a")
        except redis.ResponseError as exc:
            return str(exc)
        return ""

    expected = "redis-server at 127.0.0.1" if victim == "redis" else "refused"
    assert "PROXY Redis cannot be reached" in until(
        lambda: (text := away()) and expected in text and text, "told"
    )
    with pytest.raises(redis.ResponseError, match="PROXY Redis cannot be reached"):
        stack.client().blpop(["none"])
    getattr(stack, f"start_{victim}")()
    until(client.ping, "the lane is back")
    assert client.set("a", 2)
    assert stack.client(db=2).ping()


def test_commands_under_way_when_the_server_dies_are_answered(stack: Stack) -> None:
    with stack.socket() as sock, stack.socket() as watching:
        sock.sendall(b"PING\r\nSELECT 3\r\nPING\r\n")
        assert read_exactly(sock, 19) == b"+PONG\r\n+OK\r\n+PONG\r\n"
        watching.sendall(b"MULTI\r\nSET a 1\r\n")
        assert read_exactly(watching, 14) == b"+OK\r\n+QUEUED\r\n"
        with stack.socket() as shared:
            shared.sendall(b"PING\r\n")
            assert read_exactly(shared, 7) == b"+PONG\r\n"
            stack.redis.process.send_signal(signal.SIGSTOP)
            shared.sendall(b"PING\r\n" * 3)
            stack.redis.stop(signal.SIGKILL)
            lines = b""
            while lines.count(b"\n") < 3:
                lines += shared.recv(4096)
            assert [line.split()[0] for line in lines.splitlines()] == [b"-PROXY"] * 3
            stack.start_redis()
            end = b""
            while not end.endswith(b"+PONG\r\n"):
                shared.sendall(b"PING\r\n")
                end = shared.recv(4096)
        assert read_to_end(watching) == b"", "a transaction that is lost ends its connection"
        assert read_to_end(sock) == b"", "so does state of other kinds"


def test_the_front_waits_for_a_back_that_starts_later() -> None:
    with running("tcp") as stack:
        port = free_port()
        stack.back_port = port
        stack.start_front_again()
        client = stack.client()
        with pytest.raises(redis.ResponseError, match="PROXY Redis cannot be reached"):
            client.ping()
        stack.start_back_again(port)
        until(client.ping, "the back was found")


def test_a_peer_that_is_no_back_is_named() -> None:
    with running("tcp") as stack:
        stack.back_port = stack.redis_port
        stack.start_front_again()
        with pytest.raises(
            redis.ResponseError, match=r'not a redis_proxy.py back: it answered b"-ERR unknown'
        ):
            stack.client().ping()


@pytest.mark.parametrize("mode", ["auto", "tcp"])
def test_a_redis_client_at_the_back_is_told_where_to_go(mode: str) -> None:
    with running(mode) as stack, socket.create_connection(("127.0.0.1", stack.back_port), 20) as sock:
        sock.sendall(b"*1\r\n$4\r\nPING\r\n")
        assert b"-PROXY this is the back" in read_to_end(sock)


@pytest.mark.parametrize(
    ("back", "front", "path"), [("auto", "auto", "rdma"), ("tcp", "auto", "tcp"), ("auto", "tcp", "tcp")]
)
def test_front_and_back_agree_on_a_path(back: str, front: str, path: str) -> None:
    with running(back) as stack:
        stack.mode = front
        stack.start_front_again()
        assert stack.client().ping()
        for program in (stack.front, stack.back):
            assert f"travel by {path}" in program.wait_for("travel by")


def test_a_client_that_does_not_read_stalls_only_itself(stack: Stack) -> None:
    value = b"v" * 60_000
    client = stack.client()
    client.set("big", value)
    before = memory_kib(stack.front.process.pid)
    with stack.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.sendall(b"GET big\r\n" * 900)  # 54 MB of replies
        for _ in range(50):
            assert client.get("big") == value
        stack.front.wait_for("closing a client: it left more than 1048576 bytes of replies unread")
        for _ in range(50):
            assert client.get("big") == value
    assert memory_kib(stack.front.process.pid) - before < 32 * 1024


def test_back_pressure_reaches_through_a_lane_of_ones_own(stack: Stack) -> None:
    value = b"v" * 1_000_000
    client = stack.client()
    client.set("big", value)
    pids = [stack.front.process.pid, stack.back.process.pid]
    before = [memory_kib(pid) for pid in pids]
    with stack.socket() as lazy:
        lazy.sendall(b"SELECT 0\r\n" + b"GET big\r\n" * 60)
        assert read_exactly(lazy, 5) == b"+OK\r\n"
        until(
            lambda: any(int(c["omem"]) > 10_000_000 for c in connections(stack)),
            "replies wait in redis-server",
        )
        assert client.get("big") == value
        assert max(memory_kib(pid) - kib for pid, kib in zip(pids, before, strict=True)) < 24 * 1024
        for _ in range(60):
            assert read_exactly(lazy, 1_000_012) == b"$1000000\r\n" + value + b"\r\n"


@pytest.mark.parametrize(
    "command",
    [
        b"*1\r\n$04\r\nPING\r\n",
        b"*01\r\n$4\r\nPING\r\n",
        b"*2\r\n$6\r\nSCRIPT\r\n$-0\r\n\r\n",
        b"*2\r\n$6\r\nSCRIPT\r\n$00\r\n\r\n",
    ],
)
def test_a_command_that_redis_refuses_ends_its_own_connection_only(stack: Stack, command: bytes) -> None:
    with stack.socket() as other, stack.socket() as refused:
        other.sendall(b"PING\r\n")
        assert read_exactly(other, 7) == b"+PONG\r\n"
        before = {c["id"] for c in connections(stack)}
        refused.sendall(command)
        assert re.fullmatch(rb"-ERR Protocol error: invalid (multi)?bulk length\r\n", read_to_end(refused))
        other.sendall(b"PING\r\n")
        assert read_exactly(other, 7) == b"+PONG\r\n"
        assert {c["id"] for c in connections(stack)} == before, "the shared stream is the same"


def test_a_long_command_streams_through_with_bounded_memory(stack: Stack) -> None:
    before = memory_kib(stack.front.process.pid)
    stack.redis.process.send_signal(signal.SIGSTOP)
    size = 100_000_000
    with stack.socket() as sock:
        sock.settimeout(0.5)
        sock.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % size)
        sent = 0

        def send() -> None:
            nonlocal sent
            while sent < size:
                sent += sock.send(bytes(min(1_000_000, size - sent)))

        with pytest.raises(TimeoutError):
            send()
        assert sent < size
        assert memory_kib(stack.front.process.pid) - before < 24 * 1024
        stack.redis.process.send_signal(signal.SIGCONT)
        sock.settimeout(FULL_PATIENCE)
        send()
        sock.sendall(b"\r\n")
        assert read_exactly(sock, 5) == b"+OK\r\n"
    assert stack.direct().strlen("k") == size


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_front_lets_commands_end_and_stops(stack: Stack, number: signal.Signals) -> None:
    with stack.socket() as idle, stack.socket() as busy, stack.socket() as blocked:
        idle.sendall(b"PING\r\n")
        assert read_exactly(idle, 7) == b"+PONG\r\n"
        blocked.sendall(b"BLPOP job 0\r\n")
        until(lambda: in_a_wait(stack), "blpop reached the server")
        busy.sendall(b"PING\r\nPING\r\n")
        assert read_exactly(busy, 14) == b"+PONG\r\n+PONG\r\n"
        stack.front.process.send_signal(number)
        assert read_to_end(idle) == b""
        stack.direct().rpush("job", "x")
        assert read_to_end(blocked) == b"*2\r\n$3\r\njob\r\n$1\r\nx\r\n"
    assert stack.front.wait() == 0
    assert stack.back.stop(number) == 0
    assert "Traceback" not in stack.front.output + stack.back.output


def test_passwords_stay_with_their_client(stack: Stack) -> None:
    stack.redis.stop(signal.SIGKILL)
    stack.start_redis("--requirepass", "secret")

    def refused() -> bool:
        with pytest.raises(redis.RedisError) as caught:
            stack.client().get("a")
        return isinstance(caught.value, redis.AuthenticationError)

    until(refused, "the lanes are back")
    for protocol in (2, 3):
        known = stack.client(password="secret", protocol=protocol)
        assert known.set("a", protocol)
        assert known.get("a") == b"%d" % protocol
        with pytest.raises(redis.AuthenticationError):
            stack.client(password="wrong", protocol=protocol).get("a")
    assert refused()


def test_statistics_and_path_are_logged(stack: Stack) -> None:
    stack.client().ping()
    for program, text in ((stack.front, "RESP2 lane 0: 1 clients"), (stack.back, "streams 1 now")):
        program.wait_for("travel by " + ("rdma" if stack.mode == "rdma" else "tcp"))
        program.process.send_signal(signal.SIGUSR1)
        program.wait_for(text)


def test_help_and_mistakes() -> None:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(EXAMPLES / "redis_proxy.py"), *args],
            capture_output=True,
            text=True,
            timeout=FULL_PATIENCE,
        )

    assert "redis-cli -p 7000 ping" in run("--help").stdout
    for options, words in [
        (["front"], "required"),
        (["front", "--listen", "x", "--to", "y:1"], "--listen: invalid parse value: 'x'"),
        (["front", "--listen", ":0", "--to", "y:1", "--streams", "0"], "must be at least 1"),
        (["back", "--listen", ":0", "--redis", "y:1", "--mode", "magic"], "invalid choice"),
        (["front", "--listen", ":0", "--to", "a..b:1"], "--to: invalid parse value: 'a..b:1'"),
    ]:
        result = run(*options)
        assert result.returncode == 2
        assert words in result.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("back", "--mode", "tcp", "--listen", f"127.0.0.1:{port}", "--redis", "127.0.0.1:1")
        assert result.returncode == 1
        assert "cannot listen on 127.0.0.1" in result.stderr
        assert "Traceback" not in result.stderr
