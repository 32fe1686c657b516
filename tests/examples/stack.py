"""A redis-server, a back and a front: real processes, any of which can be killed and restarted."""

from __future__ import annotations

import contextlib
import signal
import socket
import tempfile
import time
from typing import TYPE_CHECKING, Any

import redis
from demolib import processes
from demolib.stack import Proxy, redis_server, start_redis

from tests.world import SLOWER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE_S = processes.DEADLINE_S = 30.0 * SLOWER


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true result of `condition`; redis errors count as false."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        with contextlib.suppress(redis.RedisError):
            if result := condition():
                return result
        time.sleep(0.005)
    raise AssertionError(f"not within {DEADLINE_S:.0f} s: {what}")


class Stack(Proxy):
    """The whole path between a Redis client and a redis-server."""

    def __init__(self, mode: str, *front_options: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="redis-proxy-test-")
        self._clients: list[redis.Redis] = []
        self._direct: redis.Redis | None = None
        self.redis, port = start_redis(self._directory.name)
        super().__init__(mode, port, "--patience", str(5 * SLOWER), *front_options)

    def start_redis(self, *options: str) -> None:
        """Start a new redis-server on the old port."""
        self.redis = redis_server(self._directory.name, self.redis_port, *options)

    def start_front_again(self) -> None:
        """Start a new front for the back's current port."""
        self.front.stop(signal.SIGKILL)
        self.start_front()

    def start_back_again(self, port: int) -> None:
        """Start a new back on another port."""
        self.back.stop(signal.SIGKILL)
        self.back_port = port
        self.start_back()

    def client(self, **options: Any) -> redis.Redis:
        """A redis-py client of the front, without its own retries."""
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
        self.stop()
        self.redis.stop(signal.SIGKILL)
        self._directory.cleanup()
        for name in ("front", "back"):
            program = getattr(self, name, None)  # None: it did not start, which is already an error
            assert program is None or "Traceback" not in program.output, program.output


@contextlib.contextmanager
def running(mode: str, *front_options: str) -> Iterator[Stack]:
    stack = Stack(mode, *front_options)
    try:
        stack.start()
        yield stack
    finally:
        stack.close()
