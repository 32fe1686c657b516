"""Large pieces between two processes: one writes into the other's buffer, and is killed or stopped."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.config import Config
from aiordma.streams import exactly
from tests.health import until
from tests.links.pairs import member_of, pattern, sizing_of
from tests.processes import PATIENCE, process
from tests.roles import LOCAL
from tests.world import DEVICE

if TYPE_CHECKING:
    from tests.program import Control

pytestmark = pytest.mark.anyio

MIB = 1 << 20
PIECE = 8 * MIB
SENDER = "tests.system.adversity.test_pieces:pieces_sender"


async def pieces_sender(control: Control) -> None:
    """On one stream, sends as many bytes of the pattern as it is told, again and again."""
    async with await aiordma.listen(LOCAL, config=Config(device=DEVICE)) as listener:
        control.say(listener.port)
        async with await listener.accept() as stream:
            at = 0
            with contextlib.suppress(EOFError):
                while True:
                    count = await control.hear()
                    await stream.send(pattern(at, count))
                    at += count
                    control.say(at)


def placing(stream: aiordma.RdmaStream) -> bool:
    placement = sizing_of(stream)._placement
    return placement is not None and placement.placing


async def open_stream(port: int) -> aiordma.RdmaStream:
    return await aiordma.connect(LOCAL, port, mode="rdma", config=Config(device=DEVICE, place_bytes=MIB))


async def test_pieces_are_placed_by_another_process() -> None:
    with process(SENDER) as sender:
        async with await open_stream(await sender.heard()) as stream:
            buffer = bytearray(PIECE)
            for number in range(5):
                sender.say(PIECE)
                with anyio.fail_after(PATIENCE):
                    await stream.receive_exactly_into(buffer)
                assert buffer == pattern(number * PIECE, PIECE)
                await sender.heard()
            assert stream.path == "rdma"
            assert stream.statistics().bytes_placed > PIECE


async def test_the_sender_is_killed_in_the_middle() -> None:
    with process(SENDER) as sender:
        async with await open_stream(await sender.heard()) as stream:
            buffer = bytearray(PIECE)

            async def kill() -> None:
                await until(lambda: placing(stream))
                sender.say(3 * MIB)
                await sender.heard()
                sender.kill()

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(kill)
                    with pytest.raises(anyio.BrokenResourceError):
                        await stream.receive_exactly_into(buffer)
            # What had arrived is received, or lost with the link, but never half of a byte's place.
            got = b""

            async def take_all() -> None:
                nonlocal got
                while True:
                    got += await stream.receive()

            with pytest.raises(anyio.BrokenResourceError):
                await take_all()
            assert got == pattern(0, len(got))
            assert len(got) <= 3 * MIB


async def test_the_sender_is_stopped_and_the_task_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactly, "_GRACE_S", 0.1)
    with process(SENDER) as sender:
        async with await open_stream(await sender.heard()) as stream:
            buffer = bytearray(PIECE)
            scope = anyio.CancelScope()
            ended = anyio.Event()

            async def take() -> None:
                with scope:
                    await stream.receive_exactly_into(buffer)
                ended.set()

            try:
                with anyio.fail_after(PATIENCE):
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(take)
                        await until(lambda: placing(stream))
                        sender.say(3 * MIB)
                        await sender.heard()
                        os.kill(sender.pid, signal.SIGSTOP)
                        scope.cancel()
                        await until(lambda: member_of(stream).fails_over)
                        assert not ended.is_set()
                        os.kill(sender.pid, signal.SIGCONT)
                        await ended.wait()
            finally:
                os.kill(sender.pid, signal.SIGCONT)
            assert scope.cancelled_caught
            sender.say(MIB)
            got = b""
            with anyio.fail_after(PATIENCE):
                while len(got) < 4 * MIB:
                    got += await stream.receive()
            assert got == pattern(0, 4 * MIB)
            assert stream.path == "tcp"
