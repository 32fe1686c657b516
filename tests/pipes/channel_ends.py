"""Users of channels, for tests: they keep what arrives, and wait for what shall happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from aiordma.pipes.contracts import Channel, Message


class End:
    """The user of one end."""

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

    async def send(self, head: bytes, body: Buffer = b"") -> None:
        sent = False

        def attempt() -> bool:
            nonlocal sent
            sent = sent or self.channel.try_send(head, body)
            return sent

        await self.until(attempt)
