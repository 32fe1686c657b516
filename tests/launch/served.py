"""Servers of other projects under `aiordma run`, and a client that asks them all the time."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.processes import FULL_PATIENCE
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RUN = [sys.executable, "-m", "aiordma", "run", "--report"]
#: Answers with the process that serves. A request of /wait lasts until there is a file `go`.
APPLICATION = """
import asyncio, os

async def app(scope, receive, send):
    while scope["type"] == "lifespan":
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
    if scope["path"] == "/wait":
        print("waits", flush=True)
        while not os.path.exists("go"):
            await asyncio.sleep(0.01)
    body = b"%d" % os.getpid()
    headers = [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""
#: Each answer is a line: the path, and the process that has served; or what has become of the request.
CLIENT = """
import asyncio, sys

async def ask(port, path):
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET %s HTTP/1.1\\r\\nHost: here\\r\\nConnection: close\\r\\n\\r\\n" % path.encode())
        answer = await reader.read()
        writer.close()
        pid = int(answer.rpartition(b"\\r\\n")[2])
    except Exception as error:
        print("lost", repr(error), flush=True)
    else:
        print(writer.get_extra_info("aiordma.path"), pid, flush=True)

async def main(port, path, times, tasks):
    async def again():
        for _ in range(times):
            await ask(port, path)
    await asyncio.gather(*(again() for _ in range(tasks)))

port, path, times, tasks = sys.argv[1:]
asyncio.run(main(int(port), path, int(times), int(tasks)))
"""
FOREVER = 10**9


class Started:
    """A process whose output goes to a file."""

    def __init__(self, command: list[str], place: Path, name: str, **options: object) -> None:
        self.log = place / f"{name}.log"
        environment = {**os.environ, "AIORDMA_DEVICE": DEVICE, "XDG_CACHE_HOME": str(place / "cache")}
        with self.log.open("w") as out:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=place,
                env={**environment, "PYTHONUNBUFFERED": "1"}, **options,  # type: ignore[call-overload]
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, true: Callable[[str], bool]) -> str:
        """Its output, as soon as that is as it should be."""
        end = time.monotonic() + FULL_PATIENCE
        while not true(text := self.output):
            assert self.process.poll() is None, text
            assert time.monotonic() < end, text
            time.sleep(0.02)  # another process writes the file
        return text

    def end(self) -> str:
        """End it by SIGTERM; all that it has written."""
        self.process.terminate()
        self.process.wait(FULL_PATIENCE)
        return self.output


@contextlib.contextmanager
def started(command: list[str], place: Path, name: str, **options: object) -> Iterator[Started]:
    """Ended with the block, whatever its state is."""
    running = Started(command, place, name, **options)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(FULL_PATIENCE)
        running.process.kill()
        running.process.wait()


def files(place: Path) -> None:
    """The application and its client."""
    (place / "app.py").write_text(APPLICATION)
    (place / "client.py").write_text(CLIENT)


def client(port: int, path: str = "/", *, times: int = FOREVER, tasks: int = 1) -> list[str]:
    """The command: so many tasks, each of which asks so many times."""
    return [*RUN, "client.py", str(port), path, str(times), str(tasks)]


def by_rdma(output: str) -> list[str]:
    """The processes that have answered by RDMA, each once."""
    return list(dict.fromkeys(re.findall(r"(?m)^rdma (\d+)$", output)))


def lost(output: str) -> list[str]:
    """What has become of requests that were not answered."""
    return re.findall(r"(?m)^lost .*", output)


def reported(output: str) -> set[str]:
    """Processes whose reports have connections by RDMA."""
    found = re.findall(r"connections of process (\d+)\n((?:  .*\n?)+)", output)
    return {process for process, rows in found if re.search(r"(?m)^  rdma +\d+ +client", rows)}
