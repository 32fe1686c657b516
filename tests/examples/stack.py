"""A redis-server, a back and a front: real processes on free ports."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

import redis

from .conftest import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE_S = 20.0


def free_port() -> int:
    """A port nobody listens on (redis-server cannot choose one itself)."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true result of `condition`; redis errors count as false."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        with contextlib.suppress(redis.RedisError):
            if result := condition():
                return result
        time.sleep(0.01)
    raise AssertionError(f"not within {DEADLINE_S:.0f} s: {what}")


class Program:
    """A process whose output is collected while it runs."""

    def __init__(self, *args: str, ready: str) -> None:
        self.args = args
        self.lines: list[str] = []
        self.process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.first_line = self.wait_for(ready)
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str) -> str:
        """The first line of output, so far or to come, that has `text` in it."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._news:
            self._news.wait_for(lambda: found() or not self._reader.is_alive(), DEADLINE_S)
        line = found()
        assert line is not None, f"{self.args[:3]} did not say {text!r} but:\n{self.output}"
        return line

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal and waits for the end; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


class Stack:
    """Everything between a Redis client and a redis-server; any part can be killed and started again."""

    def __init__(self, mode: str, *front_options: str) -> None:
        self.mode = mode
        self.front_options = front_options
        self.directory = tempfile.TemporaryDirectory(prefix="redis-proxy-test-")
        self.redis_port = free_port()
        self.back_port = 0
        self.front_port = 0
        self._clients: list[redis.Redis] = []
        self._direct: redis.Redis | None = None
        self.redis: Program | None = None
        self.back: Program | None = None
        self.front: Program | None = None

    def start(self) -> None:
        self.start_redis()
        self.start_back()
        self.start_front()

    def start_redis(self) -> None:
        for _ in range(5):  # somebody else may take the free port
            try:
                self.redis = Program(
                    "redis-server", "--port", str(self.redis_port), "--bind", "127.0.0.1", "--save", "",
                    "--dir", self.directory.name, "--enable-debug-command", "yes",
                    ready="Ready to accept connections",
                )  # fmt: skip
                return
            except AssertionError:
                if self.back is not None:
                    raise
                self.redis_port = free_port()

    def start_back(self) -> None:
        self.back = self._proxy(
            "back", "--listen", f"127.0.0.1:{self.back_port}", "--redis", f"127.0.0.1:{self.redis_port}"
        )
        self.back_port = int(self.back.first_line.rpartition(":")[2])

    def start_front(self) -> None:
        self.front = self._proxy(
            "front", "--listen", "127.0.0.1:0", "--to", f"127.0.0.1:{self.back_port}", *self.front_options
        )
        self.front_port = int(self.front.first_line.rpartition(":")[2])

    def start_front_again(self) -> None:
        """A new front, for the back's port of now."""
        assert self.front is not None
        self.front.stop(signal.SIGKILL)
        self.start_front()

    def start_back_again(self, port: int) -> None:
        """A new back on another port."""
        assert self.back is not None
        self.back.stop(signal.SIGKILL)
        self.back_port = port
        self.start_back()

    def client(self, **options: Any) -> redis.Redis:
        """A redis-py client of the front, without retries of its own."""
        options = {"protocol": 2, "retry": None, "socket_timeout": DEADLINE_S} | options
        client = redis.Redis(port=self.front_port, **options)
        self._clients.append(client)
        return client

    def direct(self) -> redis.Redis:
        """The client of the redis-server itself."""
        if self._direct is None:
            self._direct = redis.Redis(port=self.redis_port, protocol=2, single_connection_client=True)
            self._clients.append(self._direct)
        return self._direct

    def socket(self) -> socket.socket:
        """A raw connection to the front."""
        return socket.create_connection(("127.0.0.1", self.front_port), DEADLINE_S)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for program in (self.front, self.back, self.redis):
            if program is not None:
                program.stop(signal.SIGKILL)
        self.directory.cleanup()
        for program in (self.front, self.back):
            assert program is None or "Traceback" not in program.output, program.output

    def _proxy(self, role: str, *args: str) -> Program:
        script = str(EXAMPLES / "redis_proxy.py")
        return Program(sys.executable, script, role, *args, "--mode", self.mode, ready="listening on ")


@contextlib.contextmanager
def running(mode: str, *front_options: str) -> Iterator[Stack]:
    stack = Stack(mode, *front_options)
    try:
        stack.start()
        yield stack
    finally:
        stack.close()
