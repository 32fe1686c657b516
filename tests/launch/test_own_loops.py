"""Loops of the program's own, under `aiordma.install()`: their methods are called as asyncio calls them; and
the program's log has no lines of ours."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import uvloop

import aiordma

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOCAL = "127.0.0.1"
LOOPS: dict[str, Any] = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.Loop}


@pytest.fixture(autouse=True)
def _installed(cache: Path) -> None:
    aiordma.install()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readexactly(5))
    writer.close()


async def say_hello() -> str:
    """Between two ends in this loop; the path."""
    async with await asyncio.start_server(echo, LOCAL, 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        writer.close()
        path: str = writer.get_extra_info("aiordma.path")
        return path


def with_own_methods(base: Any, called: list[str]) -> Callable[[], Any]:
    class Own(base):  # type: ignore[misc]
        async def create_connection(self, *arguments: Any, **options: Any) -> Any:
            called.append("create_connection")
            return await super().create_connection(*arguments, **options)

        async def create_server(self, *arguments: Any, **options: Any) -> Any:
            called.append("create_server")
            return await super().create_server(*arguments, **options)

    return Own


@pytest.mark.parametrize("kind", LOOPS)
def test_a_class_with_methods_of_its_own(kind: str) -> None:
    """They are called, and what they call is ours."""
    called: list[str] = []
    with asyncio.Runner(loop_factory=with_own_methods(LOOPS[kind], called)) as runner:
        assert runner.run(say_hello()) == "rdma"
    assert called == ["create_server", "create_connection"]


def test_a_class_that_overrides_nothing() -> None:
    class Own(asyncio.SelectorEventLoop):
        pass

    with asyncio.Runner(loop_factory=Own) as runner:
        assert runner.run(say_hello()) == "rdma"


def test_a_method_that_a_test_has_replaced() -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        with mock.patch.object(loop, "create_connection", side_effect=OSError("mocked")):
            with pytest.raises(OSError, match="mocked"):
                await asyncio.open_connection(LOCAL, 1)
        with mock.patch.object(loop, "create_server", side_effect=OSError("mocked")):
            with pytest.raises(OSError, match="mocked"):
                await asyncio.start_server(echo, LOCAL, 0)
        assert await say_hello() == "rdma"

    asyncio.run(main())


@pytest.mark.parametrize("kind", LOOPS)
def test_the_program_s_log_is_its_own(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
        assert runner.run(say_hello()) == "rdma"
    ours = [record for record in caplog.records if record.name.split(".")[0] == "aiordma"]
    assert any("127.0.0.1" in record.getMessage() for record in ours)
    assert [record for record in ours if record.levelno > logging.DEBUG] == []
