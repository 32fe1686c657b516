"""Channels on TCP: frames in any pieces, bounded queues, ends in order and not, and peers that break the
rules.
"""

from __future__ import annotations

import errno
import random
import socket
import struct
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiordma import wake
from aiordma.errors import LinkError, RemoteProtocolError
from aiordma.pipes.tcp import TcpPipe
from aiordma.pipes.tcp_channel import TcpChannel
from tests.health import until

from .channel_ends import End

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.pipes.contracts import Buffer, Message

pytestmark = pytest.mark.anyio

GREETING = b"aiordma\x02" + struct.pack(">BxxxI", 2, 1 << 20)


def frame(payload: bytes, kind: int = 0xC1) -> bytes:
    return struct.pack(">BxxxI", kind, len(payload)) + payload


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as a,
    ):
        b, _ = server.accept()
        with b:
            for sock in (a, b):
                sock.setblocking(False)
            yield a, b


def channel_on(sock: socket.socket, most: int = 1 << 20) -> TcpChannel:
    return TcpChannel(TcpPipe(sock), kind=2, max_message_bytes=most)


async def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        await anyio.wait_readable(sock)
        data += (piece := sock.recv(count - len(data)))
        if not piece:
            break
    return data


async def test_order_and_boundaries_in_a_burst(sockets: tuple[socket.socket, socket.socket]) -> None:
    a, b = (channel_on(sock) for sock in sockets)
    at_a, at_b = End(a), End(b)
    rng = random.Random(1)
    sent = [rng.randbytes(rng.choice([0, 1, 100, 16_000, 17_000, 300_000])) for _ in range(200)]

    async def feed() -> None:
        for number, message in enumerate(sent):
            await at_a.send(message[:5], message[5:] if number % 2 else bytearray(message[5:]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(feed)
        assert await at_b.received(len(sent)) == sent
    assert a.statistics().bytes_sent == b.statistics().bytes_received == sum(map(len, sent))
    a.close()
    assert await at_b.ended() is None
    b.close()


async def test_a_silent_receiver_stops_the_sender(sockets: tuple[socket.socket, socket.socket]) -> None:
    a, b = (channel_on(sock) for sock in sockets)
    at_a = End(a)
    await until(lambda: b.greeted)
    sent = 0
    quiet = 0
    while quiet < 50:
        if a.try_send(b"", bytes(10_000)):
            sent += 1
            quiet = 0
        else:
            quiet += 1
            await anyio.lowlevel.checkpoint()
    assert a.statistics().outstanding <= 256 * 1024
    at_b = End(b)
    await at_b.received(sent)
    await at_a.send(b"again")
    await at_b.received(sent + 1)
    a.abort()
    assert isinstance(await at_b.ended(), LinkError)
    b.close()


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_frames_in_small_pieces(sockets: tuple[socket.socket, socket.socket], size: int) -> None:
    channel = channel_on(sockets[0])
    end = End(channel)
    messages = [b"", b"abc", bytes(20_000), b"x" * 16_384, b"end"]
    data = GREETING + b"".join(map(frame, messages)) + frame(b"", 0xC4)
    if size < 100:
        data = GREETING + frame(b"") + frame(b"abc") + frame(b"", 0xC4)
        messages = [b"", b"abc"]
    for at in range(0, len(data), size):
        sockets[1].send(data[at : at + size])
        await anyio.lowlevel.checkpoint()
    assert await end.ended() is None
    assert [bytes(message) for message in end.messages] == messages
    assert await read(sockets[1], 24) == b"aiordma\x02" + struct.pack(">BxxxI", 2, 1 << 20) + frame(b"", 0xC4)
    channel.close()


BROKEN = {
    "plain": b"GET / HTTP/1.1\r\n\r\n",
    "other kind": b"aiordma\x02" + struct.pack(">BxxxI", 1, 1 << 20),
    "too long": GREETING + struct.pack(">BxxxI", 0xC1, (1 << 20) + 1),
    "unknown frame": GREETING + frame(b"", 0xC2),
    "close with payload": GREETING + frame(b"x", 0xC4),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
async def test_broken_rules_break_the_channel(
    sockets: tuple[socket.socket, socket.socket], data: bytes
) -> None:
    channel = channel_on(sockets[0])
    end = End(channel)
    sockets[1].send(data)
    error = await end.ended()
    assert isinstance(error, RemoteProtocolError)
    assert channel.error is error
    with pytest.raises(anyio.BrokenResourceError):
        channel.try_send(b"")
    assert end.messages == []
    channel.close()


@pytest.mark.parametrize(
    "said", [b"", GREETING, GREETING + frame(b"abc")[:-1], GREETING + frame(bytes(20_000))[:-1]]
)
async def test_an_end_without_a_word_is_an_error(
    sockets: tuple[socket.socket, socket.socket], said: bytes
) -> None:
    channel = channel_on(sockets[0])
    end = End(channel)
    sockets[1].send(said)
    sockets[1].close()
    assert isinstance(await end.ended(), LinkError)
    assert end.messages == []
    channel.close()


async def test_closing_delivers_what_is_queued(sockets: tuple[socket.socket, socket.socket]) -> None:
    a, b = (channel_on(sock, 8 << 20) for sock in sockets)
    await until(lambda: a.greeted)
    sent = 0
    while a.try_send(b"", bytes(5_000_000)):
        sent += 1
    a.close()
    end = End(b)
    assert await end.ended() is None
    assert [len(message) for message in end.messages] == [5_000_000] * sent
    b.close()


async def test_a_failing_handler_breaks_the_channel(
    sockets: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: Message) -> None:
        raise RuntimeError("handler")

    a, b = (channel_on(sock) for sock in sockets)
    at_a, at_b = End(a), End(b)
    b.on_message = fail
    a.try_send(b"1")
    a.try_send(b"2")
    assert isinstance(await at_b.ended(), RuntimeError)
    assert isinstance(await at_a.ended(), LinkError)
    assert "callback of a channel failed" in caplog.text
    for channel in (a, b):
        channel.close()


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=200), greeted=st.booleans())
def test_garbage_gives_messages_or_an_error_and_nothing_else(data: bytes, greeted: bool) -> None:
    async def play() -> None:
        one, other = socket.socketpair()
        with one, other:
            one.setblocking(False)
            channel = channel_on(one)
            end = End(channel)
            other.send(GREETING * greeted + data)
            other.close()
            error = await end.ended()
            assert error is None or isinstance(error, LinkError | RemoteProtocolError)
            channel.close()

    anyio.run(play)


@pytest.mark.parametrize("late", [False, True])
async def test_what_came_before_a_failed_send_may_be_answered(
    sockets: tuple[socket.socket, socket.socket], late: bool
) -> None:
    """It is handed over from inside of that send, which has the beginning of the queue."""

    class Failing(TcpPipe):
        """``late``: it finds out behind what it has taken, as TLS may."""

        fails = False

        def try_send(self, data: Buffer, start: int = 0) -> int:
            if self.fails and late:
                self.fails = False
                self._fail_sending(ConnectionResetError(errno.ECONNRESET, "reset"))
                return len(memoryview(data)) - start
            return super().try_send(data, start)

    pipe = Failing(sockets[0])
    channel = TcpChannel(pipe, kind=2, max_message_bytes=1 << 20)
    end = End(channel)
    sockets[1].send(GREETING)
    await until(lambda: channel.greeted)
    while channel.try_send(b"", bytes(10_000)):
        await anyio.lowlevel.checkpoint()
    take, answered = channel.on_message, []
    assert take is not None

    def answer(message: Message) -> None:
        take(message)
        answered.append(channel.try_send(b"", b"answer"))

    channel.on_message = answer
    sockets[1].send(frame(b"question"))
    sockets[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sockets[1].close()
    pipe.fails = True
    channel.spin()
    assert isinstance(await end.ended(), LinkError)
    assert end.messages == [b"question"]
    assert answered == [True]


@pytest.mark.parametrize("end", ["in order", "reset", "reset amid a message"])
async def test_what_came_before_a_failed_send_waits_until_it_is_taken(
    sockets: tuple[socket.socket, socket.socket], end: str
) -> None:
    """While no messages are taken. The end comes behind it; if nothing whole is there, at once."""
    sent = [] if end == "reset amid a message" else [b"one", bytes(20_000), b"three"]
    behind = {"in order": frame(b"", 0xC4), "reset": b"", "reset amid a message": frame(b"half")[:-2]}[end]
    channel = channel_on(sockets[0])
    user = End(channel)
    take, tried = channel.on_message, []
    channel.on_writable = lambda: tried.append(channel.error)
    sockets[1].send(GREETING)
    await until(lambda: channel.greeted)
    channel.on_message = None
    sockets[1].send(b"".join(map(frame, sent)) + behind)
    sockets[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sockets[1].close()

    async def send_on() -> None:
        while True:
            channel.try_send(b"", b"in vain")
            await anyio.lowlevel.checkpoint()

    with pytest.raises(anyio.BrokenResourceError):
        await send_on()
    if sent:
        await until(lambda: bool(tried))  # who waits for room is told
        assert isinstance(tried[0], LinkError)
        assert not user.closed
        assert not user.messages
        channel.on_message = take
    error = await user.ended()
    assert user.messages == sent
    assert error is None if end == "in order" else isinstance(error, LinkError)
    assert channel.error is error
    channel.close()


async def test_others_have_their_turn_while_a_message_comes_byte_by_byte(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    """Inside TLS each byte may be a record, which takes as long as a longer one."""

    class Dripping(TcpPipe):
        dripping = False
        turns = most = in_this_turn = 0

        def try_receive(self, max_bytes: int) -> bytes | None:
            if not self.dripping or self.most == 1000:
                return super().try_receive(max_bytes)
            if not self.in_this_turn:
                wake.current().call_soon(self.next_turn)
            self.in_this_turn += 1
            self.most = max(self.most, self.in_this_turn)
            return b"x"

        def next_turn(self) -> None:
            self.turns += 1
            self.in_this_turn = 0

    pipe = Dripping(sockets[0])
    channel = TcpChannel(pipe, kind=2, max_message_bytes=1 << 20)
    channel.on_message = lambda message: None
    sockets[1].send(GREETING + struct.pack(">BxxxI", 0xC1, 16_000))
    await until(lambda: channel.greeted)
    pipe.dripping = True
    sockets[1].send(b"x")
    await until(lambda: pipe.turns >= 3 or pipe.most == 1000)
    assert pipe.most < 1000
    channel.abort()
