"""Whole short programs that talk to a plain server once, with and without `aiordma run`.

In the table, "RDMA" is the client under `aiordma run` (its connection is plain TCP), "TCP" the same without.
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

from tests.programs.clients.postgres import binaries, postgresql

from .turns import RDMA, Outcome, Sample, by_turns

if TYPE_CHECKING:
    from collections.abc import Iterator

REDIS = """
import asyncio, sys
import redis.asyncio
async def main():
    client = redis.asyncio.Redis(port=int(sys.argv[1]))
    await client.set("key", "value")
    assert await client.get("key") == b"value"
    await client.aclose()
asyncio.run(main())
"""
POSTGRESQL = """
import asyncio, sys
import asyncpg
async def main():
    place = {"host": "127.0.0.1", "port": int(sys.argv[1])}
    client = await asyncpg.connect(**place, user="postgres", database="postgres")
    assert await client.fetchval("select 6 * 7") == 42
    await client.close()
asyncio.run(main())
"""
#: What the title ends in, at least how many times the runs of the bare client, options of `aiordma run`.
WAYS = [
    ("known to be plain", 1 / 1.1, ()),
    # A rule with the port has it asked each time, as if it were unknown and on another host.
    ("for the first time", 1 / 1.5, ("--allow", "out:*:{port}")),
]
#: Runs that count as one; a process is short.
REPEATS = 5


def short_rows(rounds: int) -> Iterator[Outcome]:
    """Raises ProgramError, OSError, subprocess.CalledProcessError."""
    for name, text, serving in (("redis-server", REDIS, _redis), ("PostgreSQL", POSTGRESQL, _postgresql)):
        with tempfile.TemporaryDirectory(prefix="aiordma-short-") as directory, serving() as port:
            script = os.path.join(directory, "client.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write(text)
            environ = {**os.environ, "XDG_CACHE_HOME": directory}
            for way, goal, options in WAYS:
                # The command as it is installed, beside this Python.
                command = os.path.join(os.path.dirname(sys.executable), "aiordma")
                under = [command, "run", *(option.format(port=port) for option in options), script, str(port)]
                plain = [sys.executable, script, str(port)]
                title = f"short client of {name}, {way}"
                yield by_turns(title, round(goal, 2), rounds, partial(_short, under, plain, environ))


@contextlib.contextmanager
def _redis() -> Iterator[int]:
    with tempfile.TemporaryDirectory(prefix="aiordma-redis-") as directory:
        server, port = start_redis(directory)
        try:
            yield port
        finally:
            server.stop()


@contextlib.contextmanager
def _postgresql() -> Iterator[int]:
    initdb, postgres = (shutil.which(name, path=binaries()) for name in ("initdb", "postgres"))
    if initdb is None or postgres is None:
        raise FileNotFoundError("PostgreSQL's server is not installed: `make bench-apps` does")
    with postgresql(initdb, postgres) as (port, _running):
        yield port


def _short(under: list[str], plain: list[str], environ: dict[str, str], path: str) -> Sample:
    command = under if path == RDMA else plain
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for _ in range(REPEATS):
        subprocess.run(command, check=True, env=environ)
    took = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return Sample(REPEATS / took, cpu / REPEATS * 1e6)
