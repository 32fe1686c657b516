"""fork() in a process with an engine: the child gets a clear error, or an engine of its own; the parent
goes on."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from typing import TYPE_CHECKING

import pytest

import aiordma
from aiordma.links import engine as engines
from tests.processes import process
from tests.roles import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.program import Control

HERE = "tests.system.integration.test_fork"
ECHO = "tests.roles:echo_server"


def in_child(work: Callable[[], str]) -> str:
    """Fork, and what ``work`` returns or raises in the child."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(20)
            try:
                text = work()
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writes, text.encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return text if status == 0 else f"status {status}: {text}"


async def round_trip(stream: aiordma.RdmaStream) -> None:
    await stream.send(b"hello")
    assert await stream.receive() == b"hello"


async def forks(control: Control, port: int) -> None:
    engine = await engines.current()
    stream = await aiordma.connect(LOCAL, port, mode="rdma")
    await round_trip(stream)

    def send() -> str:
        stream.send_nowait(b"from the child")
        return "sent"

    def close() -> str:
        engine.close()
        gc.collect()
        return "closed"

    async def connect() -> str:
        async with await aiordma.connect(LOCAL, port, mode="rdma") as own:
            await round_trip(own)
            return own.path

    def own_engine() -> str:
        return asyncio.run(connect())

    def exits() -> str:
        del stream._pipe
        gc.collect()
        return "collected"

    for work in (send, close, own_engine, exits):
        control.say(in_child(work))
        await round_trip(stream)
        async with await aiordma.connect(LOCAL, port, mode="rdma") as another:
            await round_trip(another)
    await stream.aclose()


@pytest.mark.parametrize("loop", ["asyncio", "asyncio+uvloop"])
def test_fork_beside_open_streams(loop: str) -> None:
    with process(ECHO) as server:
        port = server.hear()
        with process(f"{HERE}:forks", loop=loop, port=port) as parent:
            sent = parent.hear()
            assert "fork" in sent, sent
            assert parent.hear() == "closed"
            assert parent.hear() == "rdma"
            assert parent.hear() == "collected"
        server.say("statistics?")
        assert server.hear()["device"] == "soft0"
