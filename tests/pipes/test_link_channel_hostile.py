"""A peer that breaks the protocol of a channel harms that channel, or the link if that is what it broke;
nobody else.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiordma.errors import LinkError, RemoteProtocolError
from tests.health import until

from .channel_ends import End
from .link_pairs import connect, connect_channels
from .link_pairs import open_engine as open_an_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiordma.datapath._qp import QueuePair
    from aiordma.links.engine import Engine
    from aiordma.pipes._link_channel import MessageChannel

    from .link_pairs import Open

pytestmark = pytest.mark.anyio

MESSAGE, ANNOUNCE, CREDIT, CLOSE = 0xC1, 0xC2, 0xC3, 0xC4


def sender(engine: Engine) -> QueuePair:
    """The client's end of the link."""
    group = next(group for group in engine.groups.values() if group.key[1] == "client")
    return group.link.queue_pair


def header(kind: int, channel: MessageChannel, taken: int = 0, flags: int = 0) -> bytes:
    return struct.pack(">BBxxII", kind, flags, channel.token, taken)


def announcement(
    channel: MessageChannel, length: int, addr: int = 4096, rkey: int = 77, head: bytes = b""
) -> bytes:
    return header(ANNOUNCE, channel) + struct.pack(">QII", addr, rkey, length) + head


Attack = "Callable[[MessageChannel], list[bytes]]"

# What is said to the victim, and what its error says.
ON_THE_CHANNEL: dict[str, tuple[Callable[[MessageChannel], list[bytes]], str]] = {
    "unknown type": (lambda b: [header(0xC9, b)], "unknown type 0xc9"),
    "credit for nothing": (lambda b: [header(CREDIT, b, taken=1)], "never sent"),
    "credit goes back": (lambda b: [header(CREDIT, b, taken=0xFFFFFFFF)], "never sent"),
    "too long to announce": (lambda b: [announcement(b, 100_001)], "100001 bytes"),
    "nothing announced": (lambda b: [announcement(b, 0)], "0 bytes announced"),
    "beyond the address space": (lambda b: [announcement(b, 5000, addr=2**64 - 100)], "bytes announced at"),
    "short announcement": (lambda b: [announcement(b, 5000)[:20]], "announcement of 20 bytes"),
    "more than the budget": (
        lambda b: [header(MESSAGE, b) + bytes(40)] * 160,
        "more than it may send",
    ),
    "message after close": (lambda b: [header(CLOSE, b), header(MESSAGE, b) + b"x"], ""),
    "cursors of a stream": (
        lambda b: [b"\xfe\x2c\0\1" + b.token.to_bytes(4, "big") + bytes(36)],
        "cursors of a stream",
    ),
}


@pytest.mark.parametrize("name", ON_THE_CHANNEL)
async def test_one_channel_is_broken(open_engine: Open, name: str) -> None:
    attack, text = ON_THE_CHANNEL[name]
    async with open_engine(max_message_bytes=100_000, channel_receive_bytes=16384) as engine:
        a, b = await connect_channels(engine)
        other_a, other_b = await connect_channels(engine)
        end, other = End(b), End(other_b)
        if name == "more than the budget":
            b.on_message = None  # its user takes nothing, and so tells nothing
        for message in attack(b):
            await until(lambda message=message: sender(engine).send_llc(message))  # type: ignore[misc]
        error = await end.ended()
        if text:
            assert isinstance(error, RemoteProtocolError)
            assert text in str(error)
        with pytest.raises(anyio.BrokenResourceError):
            b.try_send(b"")
        assert other_a.try_send(b"", bytes(9000))
        assert await other.received(1) == [bytes(9000)]
        b.close()
        a.abort()
        await until(lambda: a.is_finished and b.is_finished)


@pytest.mark.parametrize("rest", [b"", bytes(20), bytes(range(200, 248))], ids=["none", "zeros", "full"])
async def test_messages_to_nobody_are_dropped(open_engine: Open, rest: bytes) -> None:
    """Its connection is gone, that is all: what it says is for nobody else, whatever it looks like."""
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        end = End(b)
        for token in (b.token ^ 0x10000, 0xFFFFFFFF, 0):
            for kind in (MESSAGE, ANNOUNCE, CREDIT, CLOSE):
                message = struct.pack(">BBxxII", kind, 0, token, 5) + rest
                await until(lambda message=message: sender(engine).send_llc(message))  # type: ignore[misc]
        # What came before may still be under way, and the window full of it.
        await End(a).send(b"fine")
        assert await end.received(1) == [b"fine"]


async def test_a_message_without_header_breaks_the_link(open_engine: Open) -> None:
    async with open_engine() as engine:
        ends = [End(b) for _, b in (await connect_channels(engine), await connect_channels(engine))]
        assert sender(engine).send_llc(bytes([MESSAGE]) + bytes(10))
        for end in ends:
            error = await end.ended()
            assert isinstance(error, RemoteProtocolError)
            assert "shorter than its header" in str(error)


async def test_memory_that_is_not_the_peers_breaks_the_link_only(open_engine: Open) -> None:
    """The READ is refused by the peer's own device: the QP is lost, the engine and its other links are
    not.
    """
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        at_a, end = End(a), End(b)
        assert sender(engine).send_llc(announcement(b, 5000, head=b"head"))
        assert isinstance(await end.ended(), Exception)
        assert isinstance(await at_a.ended(), Exception)
        a.close()
        b.close()
        assert a.is_finished
        assert b.is_finished
        again_a, again_b = await connect_channels(engine)
        again = End(again_b)
        again_a.try_send(b"", bytes(9000))
        assert await again.received(1) == [bytes(9000)]


async def test_a_channel_message_to_a_stream_breaks_the_stream_only(open_engine: Open) -> None:
    async with open_engine() as engine:
        _, peer = await connect(engine)
        a, b = await connect_channels(engine)
        end = End(b)
        assert sender(engine).send_llc(header(MESSAGE, peer.ring) + b"x")
        await until(lambda: peer.error is not None)
        assert isinstance(peer.error, RemoteProtocolError)
        a.try_send(b"fine")
        assert await end.received(1) == [b"fine"]


async def test_a_peer_that_says_nothing_any_more_gets_nothing_kept(open_engine: Open) -> None:
    """It announced, and its link broke before it was pulled; everything comes back at both ends."""
    async with open_engine(max_outstanding_wrs=1) as engine:
        a, b = await connect_channels(engine)
        end = End(b)
        for _ in range(4):
            a.try_send(b"", bytes(1_000_000))
        await anyio.lowlevel.checkpoint()
        sender(engine).break_link(LinkError("cut"))
        await end.ended()
        end.messages.clear()
        a.close()
        b.close()
        await until(lambda: a.is_finished and b.is_finished)
        await until(lambda: not engine.all_groups)
        parked = sum(parts.pool_bytes for parts in engine.cache.parked)
        assert engine.pool.used_bytes == parked


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([MESSAGE, ANNOUNCE, CREDIT, CLOSE, 0xC0, 0xCF]),
            st.booleans(),
            st.binary(max_size=52),
        ),
        max_size=12,
    )
)
def test_fuzz(messages: list[tuple[int, bool, bytes]]) -> None:
    """Whatever comes: messages, or an error of the channel, or of the link; the engine goes on."""

    async def play() -> None:
        async with open_an_engine(channel_receive_bytes=16384, max_message_bytes=100_000) as engine:
            a, b = await connect_channels(engine)
            End(b)
            for kind, right, rest in messages:
                token = b.token if right else b.token ^ 1
                message = (bytes([kind, rest[0] if rest else 0, 0, 0]) + token.to_bytes(4, "big") + rest[1:])[
                    :60
                ]
                if engine.groups:
                    sender(engine).send_llc(message)
                await anyio.lowlevel.checkpoint()
            for channel in (a, b):
                channel.abort()
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            again_a, again_b = await connect_channels(engine)
            again = End(again_b)
            again_a.try_send(b"", bytes(9000))
            assert await again.received(1) == [bytes(9000)]

    anyio.run(play)
