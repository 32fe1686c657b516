"""Channels between the running loop's engine and itself: no TCP, the CLC messages are handed over in
memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from aiordma.proto import clc
from tests.pipes.conftest import _open, open_engine
from tests.pipes.conftest import connect as connect_pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from aiordma.links.engine import Engine
    from aiordma.pipes._link_channel import MessageChannel
    from aiordma.pipes.contracts import Channel, Message

    Open = Callable[..., AbstractAsyncContextManager[Engine]]


__all__ = ["End", "_open", "connect", "open_engine", "settled"]


async def connect(engine: Engine, kind: int = clc.Kind.CALLS) -> tuple[MessageChannel, MessageChannel]:
    """A connected pair (client, server); the messages go through their encodings."""
    return await connect_pair(engine, kind)


class End:
    """The user of one end: keeps what it is told, and can wait for it."""

    def __init__(self, channel: Channel, *, keeps_views: bool = True) -> None:
        self.channel, self._keeps_views = channel, keeps_views
        self.messages: list[Message] = []
        self.closed: list[BaseException | None] = []
        self._waiting: list[anyio.Event] = []
        channel.on_message = self._on_message
        channel.on_writable = self._wake
        channel.on_closed = self._on_closed

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()

    def _on_message(self, message: Message) -> None:
        self.messages.append(message if self._keeps_views else bytes(message))
        self._wake()

    def _on_closed(self, error: BaseException | None) -> None:
        self.closed.append(error)
        self._wake()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for callbacks until it holds."""
        with anyio.fail_after(20):
            while not condition():
                news = anyio.Event()
                self._waiting.append(news)
                if self.channel.spin():
                    await anyio.lowlevel.checkpoint()
                else:
                    await news.wait()

    async def received(self, count: int) -> list[bytes]:
        await self.until(lambda: len(self.messages) >= count)
        return [bytes(message) for message in self.messages]

    async def ended(self) -> BaseException | None:
        await self.until(lambda: bool(self.closed))
        return self.closed[0]

    async def send(self, head: bytes, body: bytes = b"") -> None:
        sent = False

        def attempt() -> bool:
            nonlocal sent
            sent = sent or self.channel.try_send(head, body)
            return sent

        await self.until(attempt)


async def settled(condition: Callable[[], bool]) -> None:
    """Let the loop run until it holds."""
    with anyio.fail_after(20):
        while not condition():
            await anyio.lowlevel.checkpoint()
