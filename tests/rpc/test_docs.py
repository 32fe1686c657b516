"""What the pages on calls show works: whole programs print what they say, and the parts of the how-to run."""

from __future__ import annotations

import ast
import inspect
import logging
import os
import re
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from aiordma import rpc
from tests.world import FULL_PATIENCE

ROOT = Path(__file__).parents[2]
MODES = ("rdma", "tcp")


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def run(program: str, mode: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"AIORDMA_MODE": mode},
        capture_output=True,
        text=True,
        timeout=2 * FULL_PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("mode", MODES)
def test_the_how_tos_program(mode: str) -> None:
    (program,) = (block for block in blocks("docs/howto/rpc.md") if "anyio.run(" in block)
    program = program.replace("7001)", "0) as server", 1).replace("7001)", "server.port)", 1)
    assert run(program, mode) == f"['hello, RDMA', 'hello, RDMA'] by {mode}\n"


@pytest.mark.parametrize("mode", MODES)
def test_the_tutorials_program(mode: str) -> None:
    (program,) = (block for block in blocks("docs/tutorial.md") if "rpc.serve" in block)
    (shown,) = (block for block in blocks("docs/tutorial.md", "console") if "calls.py" in block)
    program = program.replace("7002)", "0) as server", 1).replace("7002)", "server.port)", 1)
    assert run(program, mode) == shown.partition("\n")[2]


@pytest.mark.parametrize("mode", MODES)
def test_the_program_with_arrays(mode: str) -> None:
    (program,) = (block for block in blocks("docs/howto/memory.md") if "rpc.serve" in block)
    program = program.replace("7003)", "0) as server", 1).replace("7003)", "server.port)", 1)
    assert run(program, mode) == f"{mode} 250000.0\n"


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs/reference/rpc.md").read_text(encoding="utf-8")
    assert {name for name in rpc.__all__ if not re.search(rf"rpc\.{name}\b", text)} == set()


@dataclass
class Article:
    name: str
    price: float


@dataclass
class Item:
    article: str
    count: int


@dataclass
class Receipt:
    total: int


class Parts:
    """The how-to's blocks, cut into what defines things and what uses a server."""

    def __init__(self, page: str) -> None:
        self.definitions: list[ast.stmt] = []
        self.uses: list[list[ast.stmt]] = []
        for block in blocks(page):
            if "anyio.run(" in block:
                continue  # a whole program, which has its own test
            tree = compile(block, page, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            uses: list[ast.stmt] = []
            for statement in tree.body:
                if "rpc.serve(" in ast.unparse(statement):
                    continue  # a server is running already
                (uses if self._waits(statement) else self.definitions).append(statement)
            if uses:
                self.uses.append(uses)

    @staticmethod
    def _waits(statement: ast.stmt) -> bool:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return False
        text = ast.unparse(statement)
        return "await " in text or "async " in text or "rpc.connect" in text

    @staticmethod
    async def run(statements: list[ast.stmt], names: dict[str, Any]) -> None:
        module = ast.fix_missing_locations(ast.Module(statements, []))
        code = compile(module, "howto", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.iscoroutine(result):
            await result


@pytest.mark.anyio
async def test_the_parts_of_the_how_to() -> None:
    parts = Parts("docs/howto/rpc.md")
    articles = [Article("apple", 1.5), Article("apricot", 20.0)]
    names: dict[str, Any] = {
        "AsyncIterator": AsyncIterator,
        "Article": Article,
        "Item": Item,
        "Receipt": Receipt,
        "PRICES": {a.name: a.price for a in articles},
        "find": lambda prefix: [a for a in articles if a.name.startswith(prefix)],
        "basket": [Item("apple", 2), Item("apricot", 1)],
        "anyio": anyio,
        "log": logging.getLogger("test"),
        "rpc": rpc,
        "time": time,
        "zlib": zlib,
    }
    await Parts.run(parts.definitions, names)
    shop: rpc.Service = names["shop"]
    shop.add(lambda prefix: names["find"](prefix), name="find")
    shop.add(lambda item: None, name="put_aside")
    shop.add(lambda article: b"picture", name="picture")
    health, reflection = names["health"], names["reflection"]
    services = [shop, health.service, reflection.service, names["counter"]]
    async with rpc.serve(services, "127.0.0.1", 0, interceptors=[names["Logged"]()]) as server:
        seen = _Seen(server.port)
        names["rpc"] = seen
        async with seen.connect("server", 7005) as client:
            for uses in parts.uses:
                names["client"] = names["upstream"] = client
                await Parts.run(uses, names)
            assert await client.call("counter.value", returns=int) == 0
            assert await client.call("shop.quote", "apple", timeout=5.0) == 1.5
    assert seen.connected > 3
    assert isinstance(names["receipt"], Receipt)
    assert names["data"] == b"picture"


@pytest.mark.anyio
async def test_the_guard_of_the_how_to_guards_every_kind() -> None:
    names: dict[str, Any] = {"rpc": rpc}
    wanted = ("class Guard", "class Token", "TOKENS")
    definitions = Parts("docs/howto/rpc.md").definitions
    await Parts.run([each for each in definitions if ast.unparse(each).startswith(wanted)], names)
    service = rpc.Service("t")
    ran: list[str] = []

    @service.method
    def one() -> int:
        ran.append("one")
        return 1

    @service.method
    async def several() -> AsyncIterator[int]:
        ran.append("several")
        yield 1

    @service.method
    async def taking(items: AsyncIterator[int]) -> int:
        ran.append("taking")
        return sum([item async for item in items])

    @service.method
    async def both(items: AsyncIterator[int]) -> AsyncIterator[int]:
        ran.append("both")
        async for item in items:
            yield item

    interceptors = [names["Guard"]()]
    async with rpc.serve(service, "127.0.0.1", 0, interceptors=interceptors) as server:
        async with rpc.connect("127.0.0.1", server.port) as client:
            for method in KINDS:
                with pytest.raises(rpc.RpcError, match="no valid token"):
                    await KINDS[method](client, f"t.{method}")
        assert ran == []
        async with rpc.connect("127.0.0.1", server.port, interceptors=[names["Token"]()]) as client:
            for method in KINDS:
                await KINDS[method](client, f"t.{method}")
    assert ran == list(KINDS)


async def _items(client: rpc.Client, method: str) -> list[Any]:
    async with client.stream(method) as stream:
        await stream.end()
        return [item async for item in stream]


async def _result(client: rpc.Client, method: str) -> Any:
    async with client.stream(method) as stream:
        return await stream.result()


#: how each kind of method is called
KINDS: dict[str, Any] = {"one": rpc.Client.call, "several": _items, "taking": _result, "both": _items}


class _Seen:
    """`aiordma.rpc`, with the servers of the page where the test's own is."""

    def __init__(self, port: int) -> None:
        self.connected = 0
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(rpc, name)

    def connect(self, host: str, port: int, **options: Any) -> Any:
        self.connected += 1
        return rpc.connect("127.0.0.1", self._port, **options)

    def connect_pool(self, servers: list[tuple[str, int]], **options: Any) -> Any:
        self.connected += 1
        return rpc.connect_pool([("127.0.0.1", self._port)] * len(servers), **options)
