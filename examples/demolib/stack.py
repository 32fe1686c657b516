"""redis-server, and proxies in front of it, on free ports of this machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from .processes import Program, ProgramError, free_port

PROXY = str(Path(__file__).parents[1] / "redis_proxy.py")


def start_redis(directory: str, *more: str) -> tuple[Program, int]:
    """Start a redis-server without persistence; return it and its port. Raises ProgramError, OSError."""
    for attempt in range(5):
        port = free_port()
        try:
            return redis_server(directory, port, *more), port
        except ProgramError:  # another process may have taken the port
            if attempt == 4:
                raise
    raise AssertionError


def redis_server(directory: str, port: int, *more: str) -> Program:
    """Raises ProgramError, OSError."""
    options = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", directory)
    return Program("redis-server", "--port", str(port), *options, *more, ready="Ready to accept connections")


class Proxy:
    """A back and a front; each can be stopped and restarted on its port."""

    back: Program
    front: Program

    def __init__(self, mode: str, redis_port: int, *front_options: str) -> None:
        self.mode = mode
        self.redis_port = redis_port
        self.front_options = front_options
        self.back_port = 0
        self.front_port = 0

    def start(self) -> None:
        """Raises ProgramError."""
        self.start_back()
        self.start_front()

    def start_back(self) -> None:
        redis = f"127.0.0.1:{self.redis_port}"
        self.back = self._run("back", "--listen", f"127.0.0.1:{self.back_port}", "--redis", redis)
        self.back_port = _port(self.back)

    def start_front(self) -> None:
        back = f"127.0.0.1:{self.back_port}"
        listen = f"127.0.0.1:{self.front_port}"
        self.front = self._run("front", "--listen", listen, "--to", back, *self.front_options)
        self.front_port = _port(self.front)

    def stop(self) -> None:
        """End what was started, front first."""
        for name in ("front", "back"):
            if hasattr(self, name):
                getattr(self, name).stop()

    def tcp_bytes(self) -> int:
        """Bytes that the kernel's TCP has transferred so far on open connections between front and back, both
        directions."""
        found = subprocess.run(
            ["ss", "-tinH", "state", "established", f"( sport = :{self.back_port} )"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        return sum(int(number) for number in re.findall(r"bytes_(?:sent|received):(\d+)", found))

    def _run(self, role: str, *args: str) -> Program:
        return Program(sys.executable, PROXY, role, *args, "--mode", self.mode, ready="listening on ")


def _port(program: Program) -> int:
    return int(program.first_line.rpartition(":")[2])
