"""A channel on TCP that gets very many messages at once: others have their turn, and none is lost by that."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma import wake
from aiordma.errors import LinkError
from aiordma.pipes.tcp import TcpPipe
from aiordma.pipes.tcp_channel import TcpChannel
from tests.health import until

from .channel_ends import End
from .test_tcp_channel import GREETING, frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.pipes.contracts import Buffer, Message

pytestmark = pytest.mark.anyio


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        other.setblocking(False)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        yield one, other


async def test_others_have_their_turn_between_short_messages(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """A peer may send tens of thousands of empty ones in as many bytes as one read takes."""
    channel, count = TcpChannel(TcpPipe(ends[0]), kind=2, max_message_bytes=1 << 20), 5000
    taken = 0
    turns: list[int] = []

    def take(_message: Message) -> None:
        nonlocal taken
        if taken == sum(turns):
            before = taken
            wake.current().call_soon(lambda: turns.append(taken - before))
        taken += 1

    ends[1].sendall(GREETING + frame(b"") * count)
    await anyio.wait_readable(ends[0])
    channel.on_message = take
    await until(lambda: sum(turns) == count)
    assert max(turns) <= 1024
    channel.abort()


@pytest.mark.parametrize("sent", [[b"short"] * 2000, [bytes(16_000)] * 40, [bytes(100_000)] * 6])
async def test_what_came_before_a_failed_send_is_handed_over_however_much_it_is(
    ends: tuple[socket.socket, socket.socket], sent: list[bytes]
) -> None:
    class Failing(TcpPipe):
        fails = False

        def try_send(self, data: Buffer, start: int = 0) -> int:
            if self.fails:
                self.fails = False
                self._fail_sending(ConnectionResetError(errno.ECONNRESET, "reset"))
                raise anyio.BrokenResourceError("reset")
            return super().try_send(data, start)

    pipe = Failing(ends[0])
    channel = TcpChannel(pipe, kind=2, max_message_bytes=1 << 20)
    ends[1].sendall(GREETING)
    await until(lambda: channel.greeted)
    pipe.fails = True
    ends[1].sendall(b"".join(map(frame, sent)))
    end = End(channel)
    channel.try_send(b"", b"what fails")
    assert isinstance(await end.ended(), LinkError)
    assert [bytes(message) for message in end.messages] == sent
    channel.close()
