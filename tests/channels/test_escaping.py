"""What callbacks of a channel raise that is no `Exception`: their channel breaks, and no other."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from aiordma.channels import channel as channels
from aiordma.config import Config
from aiordma.pipes.placement import Placement
from aiordma.testing.channel import memory_channels
from tests.health import until
from tests.pipes.channel_ends import End
from tests.roles import LOCAL
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATHS = ["rdma", "tcp", "memory"]
CONFIG = Config(device=DEVICE)
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
LONG = bytes(100_000)


class Odd(BaseException):
    """A program's own."""


@asynccontextmanager
async def pair(path: Any) -> AsyncIterator[tuple[Any, Any]]:
    if path == "memory":
        yield memory_channels()
        return
    async with (
        await channels.listen(LOCAL, config=CONFIG) as listener,
        await channels.connect(LOCAL, listener.port, config=CONFIG, mode=path) as one,
        await listener.accept() as other,
    ):
        yield one.channel, other.channel


class Raising:
    """Callbacks of a channel, one of which raises."""

    def __init__(self, channel: Any, callback: str, error: type[BaseException]) -> None:
        self._callback, self._error = callback, error
        self.called: list[str] = []
        channel.on_message = lambda _: self._call("on_message")
        channel.on_writable = lambda: self._call("on_writable")
        channel.on_closed = lambda _: self._call("on_closed")
        if callback.startswith("place"):
            channel.placer = self

    def _call(self, callback: str) -> None:
        self.called.append(callback)
        if callback == self._callback:
            raise self._error

    def place(self, head: bytes, body_bytes: int) -> Placement:
        self._call("place")
        return Placement(memoryview(bytearray(body_bytes)))

    def placed(self, head: bytes, placement: Placement) -> None:
        self._call("placed")


async def play(path: str, callback: str, error: type[BaseException]) -> None:
    async with pair(path) as (one, other), pair(path) as (witness, beside):
        raising = Raising(other, callback, error)
        if callback == "on_writable":
            while other.try_send(b"", LONG):
                pass
        near = End(one, keeps_views=False)
        if callback == "on_closed":
            one.close()
        elif callback != "on_writable":
            assert one.try_send(b"head", LONG)
        await until(lambda: callback in raising.called)
        if callback != "on_closed":
            await until(lambda: near.closed and "on_closed" in raising.called)
            assert isinstance(near.closed[0], Exception)
            assert type(other.error) is error
        assert raising.called.count(callback) == raising.called.count("on_closed") == 1
        reader = End(beside, keeps_views=False)
        assert witness.try_send(b"as ", b"ever")
        await until(lambda: reader.messages)
        assert reader.messages == [b"as ever"]


CALLBACKS = pytest.mark.parametrize("callback", ["on_message", "on_writable", "on_closed", "place", "placed"])


@pytest.mark.anyio
@CALLBACKS
@pytest.mark.parametrize("path", PATHS)
async def test_it_breaks_its_channel_only(path: str, callback: str) -> None:
    for error in (asyncio.CancelledError, GeneratorExit, Odd):
        await play(path, callback, error)


@CALLBACKS
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("loop", LOOPS)
def test_it_ends_the_loop_which_may_be_run_again(loop: str, path: str, callback: str) -> None:
    for error in (KeyboardInterrupt, SystemExit):
        running = LOOPS[loop]()
        playing = running.create_task(play(path, callback, error))
        ended = []
        while not playing.done():
            try:
                running.run_until_complete(playing)
            except error as exc:
                ended.append(type(exc))
        playing.result()
        running.close()
        assert ended == [error]
