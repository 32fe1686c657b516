"""Whole short programs that talk to a plain server once, with and without `aiordma run`.

In the table, "RDMA" is the client under `aiordma run` (its connection is plain TCP), "TCP" the same without.
What is asked for the first time must be on another host: the client is in a network namespace then.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING

from demolib.stack import start_redis

from tests.cable import ADDRESSES, cable, namespaces
from tests.programs.clients.postgres import binaries, postgresql

from .turns import RDMA, Outcome, Sample, by_turns

if TYPE_CHECKING:
    from collections.abc import Iterator

REDIS = """
import asyncio, sys
import redis.asyncio
async def main():
    client = redis.asyncio.Redis(host=sys.argv[1], port=int(sys.argv[2]))
    await client.set("key", "value")
    assert await client.get("key") == b"value"
    await client.aclose()
asyncio.run(main())
"""
POSTGRESQL = """
import asyncio, sys
import asyncpg
async def main():
    place = {"host": sys.argv[1], "port": int(sys.argv[2])}
    client = await asyncpg.connect(**place, user="postgres", database="postgres")
    assert await client.fetchval("select 6 * 7") == 42
    await client.close()
asyncio.run(main())
"""
LOCAL, NEAR = "127.0.0.1", ADDRESSES["ipv4"][0]
#: What the title ends in, at least how many times the runs of the bare client, the server's address.
WAYS = [("known to be plain", 1 / 1.1, LOCAL), ("for the first time", 1 / 1.5, NEAR)]
#: Runs that count as one; a process is short.
REPEATS = 5


def short_rows(rounds: int) -> Iterator[Outcome]:
    """Raises ProgramError, OSError, subprocess.CalledProcessError, NoNamespacesError."""
    far = f"aiordma-{os.getpid()}-far"
    with namespaces(far), cable(None, far):
        for name, text, serving in (("redis-server", REDIS, _redis), ("PostgreSQL", POSTGRESQL, _postgresql)):
            with tempfile.TemporaryDirectory(prefix="aiordma-short-") as directory, serving() as port:
                script = os.path.join(directory, "client.py")
                with open(script, "w", encoding="utf-8") as file:
                    file.write(text)
                for way, goal, address in WAYS:
                    inside = [] if address == LOCAL else ["ip", "netns", "exec", far]
                    # The command as it is installed, beside this Python.
                    command = os.path.join(os.path.dirname(sys.executable), "aiordma")
                    under = [*inside, command, "run", script, address, str(port)]
                    plain = [*inside, sys.executable, script, address, str(port)]
                    title = f"short client of {name}, {way}"
                    yield by_turns(title, round(goal, 2), rounds, partial(_short, under, plain, directory))


@contextlib.contextmanager
def _redis() -> Iterator[int]:
    with tempfile.TemporaryDirectory(prefix="aiordma-redis-") as directory:
        server, port = start_redis(directory, "--bind", LOCAL, NEAR, "--protected-mode", "no")
        try:
            yield port
        finally:
            server.stop()


@contextlib.contextmanager
def _postgresql() -> Iterator[int]:
    initdb, postgres = (shutil.which(name, path=binaries()) for name in ("initdb", "postgres"))
    if initdb is None or postgres is None:
        raise FileNotFoundError("PostgreSQL's server is not installed: `make bench-apps` does")
    with postgresql(initdb, postgres, NEAR) as (port, _running):
        yield port


def _short(under: list[str], plain: list[str], cache: str, path: str) -> Sample:
    command, environ = under if path == RDMA else plain, {**os.environ, "XDG_CACHE_HOME": cache}
    before, took = resource.getrusage(resource.RUSAGE_CHILDREN), 0.0
    for _ in range(REPEATS):
        shutil.rmtree(os.path.join(cache, "aiordma"), ignore_errors=True)  # what was found out before
        began = time.perf_counter()
        subprocess.run(command, check=True, env=environ)
        took += time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return Sample(REPEATS / took, cpu / REPEATS * 1e6)
