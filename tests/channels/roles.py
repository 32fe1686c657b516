"""Roles of other processes in tests of channels."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import anyio

from aiordma.channels import channel
from aiordma.config import Config
from tests.pipes.channel_ends import End
from tests.roles import LOCAL

if TYPE_CHECKING:
    from aiordma.channels.channel import ConnectedChannel
    from aiordma.pipes.contracts import Channel, Message
    from tests.program import Control


class Echo:
    """Echoes messages; those that find no room wait, in order."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._queue: collections.deque[Message] = collections.deque()
        self.ended = anyio.Event()
        channel.on_writable = self._more
        channel.on_closed = self._on_closed
        channel.on_message = self._echo

    def _on_closed(self, error: BaseException | None) -> None:
        self.error = error
        self._queue.clear()
        self.ended.set()

    def _echo(self, message: Message) -> None:
        self._queue.append(message)
        if len(self._queue) == 1:
            self._more()

    def _more(self) -> None:
        while self._queue and self._channel.try_send(b"", self._queue[0]):
            self._queue.popleft()


async def echo(connected: ConnectedChannel) -> None:
    async with connected:
        await Echo(connected.channel).ended.wait()


async def echo_server(control: Control, **settings: Any) -> None:
    """Echoes messages. Reports its port."""
    async with await channel.listen(LOCAL, config=Config(**settings)) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            control.say(listener.port)
            await control.heard_all()
            tasks.cancel_scope.cancel()


async def pumping_client(control: Control, port: int, **settings: Any) -> None:
    """Sends messages of all sizes to an echo server until killed, and reports how many have come back."""
    async with await channel.connect(LOCAL, port, config=Config(**settings)) as connected:
        end = End(connected.channel, keeps_views=False)
        control.say(connected.path)

        async def pump() -> None:
            number = 0
            while True:
                await end.send(b"%d" % number, bytes([64, 0, 255][number % 3]) * 1000 * (number % 50))
                number += 1
                await anyio.lowlevel.checkpoint()

        async def count() -> None:
            while True:
                await end.until(lambda: bool(end.messages) or bool(end.closed))
                control.say(len(end.messages))
                end.messages.clear()
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pump)
            tasks.start_soon(count)
            await control.heard_all()
            tasks.cancel_scope.cancel()
