"""A length that a peer has announced is no memory yet: a channel on TCP takes it as the bytes come."""

from __future__ import annotations

import contextlib
import mmap
import resource
import socket
from pathlib import Path

import pytest

from aiordma.pipes.tcp import TcpPipe
from aiordma.pipes.tcp_channel import TcpChannel
from aiordma.proto.channel_frames import ChannelAssembler, greeting, message_header
from tests.health import until

from .channel_ends import End

pytestmark = pytest.mark.anyio

CONNECTIONS, SIZE, MIB = 8, 64 << 20, 1 << 20
ANNOUNCED = greeting(2, MIB) + message_header(SIZE, 8)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_a_message_that_was_only_announced_takes_no_memory() -> None:
    with contextlib.ExitStack() as stack:
        channels, before = [], resident()
        for _ in range(CONNECTIONS):
            one, other = (stack.enter_context(sock) for sock in socket.socketpair())
            one.setblocking(False)
            channels.append(TcpChannel(TcpPipe(one), kind=2, max_message_bytes=SIZE))
            stack.callback(channels[-1].abort)
            End(channels[-1])
            other.sendall(ANNOUNCED)
        await until(lambda: all(channel._incoming.room is not None for channel in channels))
        assert resident() - before < CONNECTIONS * MIB


@pytest.mark.parametrize("withdrawn", [False, True])
def test_nor_does_it_where_nothing_compiled_fits(withdrawn: bool) -> None:
    """Nor the rest of one whose place was withdrawn."""
    places = [memoryview(mmap.mmap(-1, SIZE)) for _ in range(CONNECTIONS)] if withdrawn else []
    assemblers, before = [], resident()
    for _ in range(CONNECTIONS):
        assembler = ChannelAssembler(2, 2 * SIZE)
        if withdrawn:
            assembler.place = lambda _head, _size: places.pop()
        assembler.feed(greeting(2, MIB) + message_header(SIZE + 8, 8) + b"the head")
        assert assembler.take() is None
        assembler.withdraw()
        assert assembler.room is not None
        assemblers.append(assembler)
    assert resident() - before < CONNECTIONS * MIB
    assert len(places) == 0


@pytest.mark.parametrize("size", [17_000, MIB, SIZE])
async def test_it_is_whole_in_the_end_and_stays_so(size: int) -> None:
    """Also behind the end of the channel, for views of it; nobody may write there."""
    pair = socket.socketpair()
    with pair[0], pair[1]:
        for sock in pair:
            sock.setblocking(False)
        near, far = (TcpChannel(TcpPipe(sock), kind=2, max_message_bytes=SIZE) for sock in pair)
        at_near, at_far = End(near), End(far)
        await until(lambda: far.greeted)
        body = (bytes(range(251)) * (size // 251 + 1))[:size]
        await at_far.send(b"", body)
        await at_near.until(lambda: bool(at_near.messages))
        message = at_near.messages.pop()
        near.abort()
        far.abort()
        assert isinstance(message, memoryview)
        assert (message.readonly, message.format, message.contiguous) == (True, "B", True)
        part = message[1000:]
        del message
        assert part == body[1000:]
