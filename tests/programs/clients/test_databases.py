"""redis-server, redis-cli and PostgreSQL, with programs under `aiordma run` at the other end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests import patient

from .postgres import binaries, postgresql
from .running import LOCAL, UNDER, client, free_port, paths, program, server

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

ASYNCPG = """
import asyncio, sys, asyncpg
async def main(port):
    pool = await asyncpg.create_pool(host="127.0.0.1", port=port, user="postgres", database="postgres",
                                     min_size=2, max_size=4)
    async with pool.acquire() as one, pool.acquire() as other:
        await one.execute("create table words (word text)")
        await one.copy_records_to_table("words", records=[(str(n),) for n in range(10_000)])
        assert await other.fetchval("select count(*) from words") == 10_000
        assert await other.fetchval("select repeat('x', 1000000)") == "x" * 1_000_000
        await one.execute("drop table words")
    await pool.close()
asyncio.run(main(int(sys.argv[1])))
"""
REDIS = """
import asyncio, sys, redis.asyncio
async def main(port):
    client = redis.asyncio.Redis(port=port)
    await client.set("key", b"x" * 1_000_000)
    assert await client.get("key") == b"x" * 1_000_000
    await client.aclose()
asyncio.run(main(int(sys.argv[1])))
"""
#: A server that speaks as much of RESP as redis-cli needs.
RESP = """
import asyncio, sys
async def serve(reader, writer):
    while line := await reader.readline():
        words = []
        for _ in range(int(line[1:])):
            size = int((await reader.readline())[1:])
            words.append((await reader.readexactly(size + 2))[:-2])
        writer.write(b"$%d\\r\\n%s\\r\\n" % (len(words[-1]), words[-1]))
    writer.close()
async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
"""


def test_postgresql(tmp_path: Path) -> None:
    """The client speaks first, and the server takes offence at what it does not know."""
    pytest.importorskip("asyncpg", reason="asyncpg is not installed (`make test-clients` does)")
    initdb, postgres = program("initdb", also=binaries()), program("postgres", also=binaries())
    (tmp_path / "client.py").write_text(ASYNCPG)
    with postgresql(initdb, postgres) as (port, running):
        done = client([*UNDER, "client.py", str(port)], tmp_path)
        assert set(paths(done.stderr)) == {"tcp"}
        assert "invalid" not in running.output, "nothing but the client's bytes"
        asked = client([*UNDER, "--allow", f"out:*:{port}", "client.py", str(port)], tmp_path)
        assert set(paths(asked.stderr)) == {"tcp"}


def test_redis_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient.as_for_users(monkeypatch)  # redis-py's own time for a connection is short
    pytest.importorskip("redis", reason="redis-py is not installed")
    redis_server = program("redis-server")
    (tmp_path / "client.py").write_text(REDIS)
    port = free_port()
    with server([redis_server, "--port", str(port), "--bind", LOCAL, "--save", ""], port, tmp_path, "redis"):
        for options in ([], ["--allow", f"out:*:{port}"]):
            done = client([*UNDER, *options, "client.py", str(port)], tmp_path)
            assert paths(done.stderr) == {"tcp": 1}


def test_redis_cli(tmp_path: Path) -> None:
    redis_cli = program("redis-cli")
    (tmp_path / "resp.py").write_text(RESP)
    port = free_port()
    with server([*UNDER, "resp.py", str(port)], port, tmp_path, "resp") as running:
        for word in ("hello", "x" * 100_000):
            said = client([redis_cli, "-p", str(port), "echo", word], tmp_path).stdout
            assert said.strip() == word
        assert set(paths(running.end())) == {"tcp"}


def test_a_plain_program_of_asyncio(tmp_path: Path) -> None:
    """The same server, and a client that is plain asyncio: without, and with `aiordma run`."""
    pytest.importorskip("redis", reason="redis-py is not installed")
    (tmp_path / "resp.py").write_text(RESP)
    (tmp_path / "client.py").write_text("""
import asyncio, sys
async def main():
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    for word in (b"hello", b"x" * 1_000_000):
        writer.write(b"*1\\r\\n$%d\\r\\n%s\\r\\n" % (len(word), word))
        await reader.readline()
        assert await reader.readexactly(len(word) + 2) == word + b"\\r\\n"
    writer.close()
asyncio.run(main())
""")
    port = free_port()
    with server([*UNDER, "resp.py", str(port)], port, tmp_path, "resp") as running:
        client([sys.executable, "client.py", str(port)], tmp_path)
        done = client([*UNDER, "client.py", str(port)], tmp_path)
        assert paths(done.stderr) == {"rdma": 1}
        assert paths(running.end()) == {"rdma": 1, "tcp": 1}
