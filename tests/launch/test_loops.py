"""Event loops to choose: `new_event_loop()`, beside loops that stay as they are."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.launch import loops
from aiordma.negotiation import peer_cache
from tests.roles import LOCAL
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("AIORDMA_DEVICE", DEVICE)
    loops._methods.cache_clear()
    loops._class_of.cache_clear()
    peer_cache.forget()
    yield
    aiordma.uninstall()
    peer_cache.observe(None)
    peer_cache.forget()


async def path() -> str | None:
    """The path of a connection to a server, both made by the running loop."""
    loop = asyncio.get_running_loop()
    with anyio.fail_after(30):
        server = await loop.create_server(asyncio.Protocol, LOCAL, 0)
        transport, _ = await loop.create_connection(
            asyncio.Protocol, LOCAL, server.sockets[0].getsockname()[1]
        )
        found: str | None = transport.get_extra_info("aiordma.path")
        transport.abort()
        server.close()
        await server.wait_closed()
    return found


@pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_a_loop_of_ours_and_one_that_is_not(uvloop: bool) -> None:
    factory = functools.partial(aiordma.new_event_loop, uvloop=uvloop)
    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(path()) == "rdma"
    with asyncio.Runner() as runner:
        assert runner.run(path()) is None


@pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("first", ["loop", "install"])
def test_with_install(uvloop: bool, first: str) -> None:
    """Each in its order: the loop's own methods stay reachable, and neither undoes the other."""
    if first == "install":
        aiordma.install()
    with asyncio.Runner(loop_factory=functools.partial(aiordma.new_event_loop, uvloop=uvloop)) as runner:
        aiordma.install()
        assert runner.run(path()) == "rdma"
        aiordma.uninstall()
        assert runner.run(path()) == "rdma"


def test_rules_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIORDMA_RUN_RULES", f"deny out:{LOCAL}")
    with asyncio.Runner(loop_factory=aiordma.new_event_loop) as runner:
        assert runner.run(path()) is None


def test_uvicorn_takes_it() -> None:
    uvicorn: Any = pytest.importorskip("uvicorn")
    config = uvicorn.Config("app:app", loop="aiordma:new_event_loop")
    loop = config.get_loop_factory()()
    assert type(loop).__name__.startswith("Rdma")
    loop.close()
