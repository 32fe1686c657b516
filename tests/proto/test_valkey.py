"""Valkey's RDMA protocol: commands as bytes, the server's buffer and receives, the buffers of this end."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.errors import RemoteProtocolError
from aiordma.proto import valkey
from aiordma.proto.valkey import Opcode, TransferBuffer

BUFFER = TransferBuffer(0x7F00_1234_5000, 1 << 20, 0xABCD0001)


def buffer(core: Any, length: int, address: int = 1 << 32) -> Any:
    return core.valkey.TransferBuffer(address, length, 5)


def violation(core: Any) -> type[Exception]:
    """The error class of a core."""
    found: type[Exception] = (
        core.errors.RemoteProtocolError if hasattr(core, "errors") else RemoteProtocolError
    )
    return found


# ---- commands


def test_commands_are_laid_out_as_the_protocol_says() -> None:
    assert valkey.registration(BUFFER) == bytes.fromhex(
        "0003" + "00" * 14 + "00007f0012345000" + "00100000" + "abcd0001"
    )
    assert valkey.keepalive() == b"\0\2" + bytes(30)
    assert valkey.feature_query() == bytes(32)


def test_commands_of_a_server() -> None:
    assert valkey.parse(valkey.registration(BUFFER)).buffer == BUFFER
    assert valkey.parse(valkey.keepalive()).opcode == Opcode.KEEPALIVE
    answer = valkey.parse(bytes(31) + b"\1")
    assert (answer.opcode, answer.features) == (Opcode.GET_SERVER_FEATURE, 1)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "of 0 bytes"),
        (valkey.keepalive()[:31], "of 31 bytes"),
        (valkey.keepalive() + b"\0", "of 33 bytes"),
        (b"\0\1" + bytes(30), "command 1 from the server"),
        (b"\0\4" + bytes(30), "command 4 from the server"),
        (b"\xff\xff" + bytes(30), "command 65535"),
        (valkey.registration(BUFFER._replace(length=0)), "RegisterXferMemory with 0 bytes"),
        (valkey.registration(BUFFER._replace(address=0)), "at 0x0"),
        (valkey.registration(BUFFER._replace(length=(1 << 28) + 1)), "no buffer is like that"),
        (valkey.registration(BUFFER._replace(address=(1 << 64) - 4096)), "no buffer is like that"),
    ],
)
def test_what_no_server_sends(data: bytes, says: str) -> None:
    with pytest.raises(RemoteProtocolError, match=says):
        valkey.parse(data)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_command_or_a_protocol_error(data: bytes) -> None:
    try:
        command = valkey.parse(data)
    except RemoteProtocolError:
        return
    assert len(data) == 32
    assert (command.buffer is not None) == (command.opcode == Opcode.REGISTER_XFER_MEMORY)


# ---- sending


def test_a_buffer_is_filled_once_and_then_registered_again(core: Any) -> None:
    out = core.valkey.Outgoing()
    assert out.room() == 0
    out.registered(buffer(core, 100))
    assert out.room() == 100
    out.wrote(60)
    assert (out.offset, out.room()) == (60, 40)
    with pytest.raises(violation(core), match="room for 40 bytes"):
        out.registered(buffer(core, 100))
    out.wrote(40)
    assert out.room() == 0
    out.registered(buffer(core, 200, 1 << 40))
    assert (out.address, out.length, out.offset, out.room()) == (1 << 40, 200, 0, 200)


def test_writing_stops_before_the_server_has_no_receive_left(core: Any) -> None:
    out = core.valkey.Outgoing()
    out.registered(buffer(core, 1 << 20))
    asked = 0
    while out.room():
        out.wrote(1)
        if out.ask_due():
            out.ask()
            asked += 1
    assert asked == 1, "one question at a time"
    assert not out.may_command()
    # A question, a registration and a keepalive still find a receive.
    assert core.valkey.RECEIVES - 64 <= out.taken < core.valkey.RECEIVES - 32
    out.answered()
    assert out.room()
    assert out.ask_due()
    assert out.taken - out.confirmed == out.taken - out.asked


def test_a_full_buffer_that_is_registered_again_is_an_answer(core: Any) -> None:
    out = core.valkey.Outgoing()
    for _ in range(300):
        out.registered(buffer(core, 7))
        for _ in range(7):
            assert out.room()
            out.wrote(1)
    assert out.taken == 2100
    assert out.taken - out.confirmed == 7


def test_an_answer_without_a_question(core: Any) -> None:
    with pytest.raises(violation(core), match="has not asked"):
        core.valkey.Outgoing().answered()


# ---- receiving


def test_the_next_buffer_is_registered_when_the_last_is_full_and_it_is_free(core: Any) -> None:
    rx = core.valkey.Incoming(100, 2)
    places = []
    while rx.due():
        places.append(rx.next_at())
        rx.register()
        assert not rx.due()
        assert rx.arrive(100) == 0
    assert places == [0, 100]
    assert rx.readable() == 200
    rx.consume(99)
    assert not rx.due()
    rx.consume(1)
    assert rx.due()
    assert rx.next_at() == 0
    assert (rx.offset(), rx.contiguous()) == (100, 100)


@pytest.mark.parametrize("n", [0, 101, 1 << 31, (1 << 32) - 1])
def test_more_than_there_is_room_for(core: Any, n: int) -> None:
    rx = core.valkey.Incoming(100, 2)
    assert rx.arrive(1) == -1
    rx.register()
    assert rx.arrive(n) == -1
    assert rx.readable() == 0
    assert rx.arrive(100) == 0
    assert rx.arrive(1) == -1


@pytest.mark.parametrize("seed", range(20))
def test_two_ends_keep_every_byte_in_order(core: Any, seed: int) -> None:
    """A server that is one, written as the protocol's text says, sends to buffers of this end."""
    rng = random.Random(seed)
    size = rng.randrange(1, 50)
    rx = core.valkey.Incoming(size, 2)
    memory = bytearray(2 * size)
    sent, got, at, offset = bytearray(), bytearray(), 0, size
    for _ in range(2000):
        if rx.due():
            at, offset = rx.next_at(), 0
            rx.register()
        if rng.random() < 0.5 and offset < size:
            n = rng.randrange(1, size - offset + 1)
            piece = rng.randbytes(n)
            memory[at + offset : at + offset + n] = piece
            offset += n
            sent += piece
            assert rx.arrive(n) == 0
        elif rx.readable():
            n = rng.randrange(1, rx.contiguous() + 1)
            got += memory[rx.offset() : rx.offset() + n]
            rx.consume(n)
    assert got == sent[: len(got)]
    assert len(sent) - len(got) == rx.readable() <= 2 * size
