"""Comms: messages, back-pressure, and every way in which they end."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import numpy as np
import pytest
from anyio import BrokenResourceError, EndOfStream
from distributed.comm import connect, listen
from distributed.comm.core import CommClosedError
from distributed.protocol import to_serialize

import aiordma
from distributed_aiordma import frames
from distributed_aiordma.comm import RdmaComm

from .pairs import comm_pair, until

pytestmark = pytest.mark.asyncio

MIB = 1 << 20


def stream_of(comm: RdmaComm) -> Any:
    """The open stream of a comm, with its private parts."""
    return comm._stream


async def test_messages_both_ways_on_rdma() -> None:
    async with comm_pair() as (a, b):
        assert (a.path, b.path) == ("rdma", "rdma")
        for number in range(100):
            await a.write({"op": "ping", "n": number})
            assert await b.read() == {"op": "ping", "n": number}
            await b.write([number])
            assert list(await a.read()) == [number]


@pytest.mark.parametrize("mib", [0.001, 0.2, 3, 40])
async def test_arrays_arrive_whole_writable_and_aligned(mib: float) -> None:
    sent = np.random.default_rng(1).integers(0, 1 << 60, int(mib * MIB / 8))
    async with comm_pair() as (a, b):
        written = await a.write({"op": "put", "data": to_serialize(sent)})
        assert written > sent.nbytes
        received = (await b.read())["data"]
        np.testing.assert_array_equal(received, sent)
        assert received.flags.writeable
        assert received.flags.aligned


async def test_many_arrays_in_one_message() -> None:
    sent = {f"k{n}": np.full(1000 * n, n) for n in range(1, 40)}
    async with comm_pair() as (a, b):
        await a.write({key: to_serialize(value) for key, value in sent.items()})
        received = await b.read()
        assert sorted(received) == sorted(sent)
        for key, value in sent.items():
            np.testing.assert_array_equal(received[key], value)


async def test_write_does_not_wait_for_the_reader_and_keeps_the_order() -> None:
    big = np.arange(4 * MIB)  # far more than the ring has room for
    async with comm_pair() as (a, b):
        for number in range(4):
            async with asyncio.timeout(10):
                await a.write({"n": number, "data": to_serialize(big)})
                await a.write({"n": number, "small": True})
        assert stream_of(a)._outbox.nbytes > 0
        for number in range(4):
            message = await b.read()
            assert message["n"] == number
            np.testing.assert_array_equal(message["data"], big)
            assert await b.read() == {"n": number, "small": True}
        assert stream_of(a)._outbox.nbytes == 0


async def test_a_message_that_ends_within_a_large_frame() -> None:
    async with comm_pair() as (a, b):
        stream_of(a).send_soon([frames.begin([b"", b""], [10, MIB]), bytes(1000)])
        await a.close()
        async with asyncio.timeout(10):
            with pytest.raises(CommClosedError):
                await b.read()
        assert b.closed()


async def test_what_waits_is_bounded() -> None:
    big = np.zeros(8 * MIB, np.uint8)
    async with comm_pair() as (a, b):
        stream_of(a).send_soon_limit = 10 * MIB
        await a.write({"data": to_serialize(big)})
        await a.write({"data": to_serialize(big)})
        assert stream_of(a)._outbox.nbytes > 10 * MIB
        third = asyncio.create_task(a.write({"data": to_serialize(big)}))
        done, _ = await asyncio.wait([third], timeout=0.05)
        assert not done
        for _ in range(2):
            assert (await b.read())["data"].nbytes == 8 * MIB
        async with asyncio.timeout(10):
            await third
        assert (await b.read())["data"].nbytes == 8 * MIB


async def test_a_writer_that_waits_for_room_learns_that_the_peer_is_gone() -> None:
    big = np.zeros(16 * MIB, np.uint8)
    async with comm_pair() as (a, b):
        stream_of(a).send_soon_limit = 1
        await a.write({"data": to_serialize(big)})
        waiting = asyncio.create_task(a.write({"data": to_serialize(big)}))
        await asyncio.sleep(0)
        b.abort()
        async with asyncio.timeout(10):
            with pytest.raises(CommClosedError):
                await waiting
        assert a.closed()


async def test_close_sends_what_waits() -> None:
    big = np.arange(2 * MIB)
    async with comm_pair() as (a, b):
        await a.write({"data": to_serialize(big)})
        closing = asyncio.create_task(a.close())
        np.testing.assert_array_equal((await b.read())["data"], big)
        await closing
        with pytest.raises(CommClosedError):
            await b.read()


async def test_closed_is_known_without_reading() -> None:
    async with comm_pair() as (a, b):
        assert not b.closed()
        await a.close()
        await until(b.closed)
        with pytest.raises(CommClosedError):
            await b.write("x")


async def test_abort_ends_the_peer_and_own_tasks() -> None:
    async with comm_pair() as (a, b):
        reads = [asyncio.create_task(comm.read()) for comm in (a, b)]
        await asyncio.sleep(0)
        a.abort()
        async with asyncio.timeout(10):
            for read in reads:
                with pytest.raises(CommClosedError):
                    await read
        await until(b.closed)
        a.abort()
        await a.close()


async def test_a_cancelled_read_closes_the_comm() -> None:
    async with comm_pair() as (a, b):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await a.read()
        assert a.closed()
        await until(b.closed)


@pytest.mark.parametrize("error", [BufferError, SystemExit])
async def test_an_error_while_writing_closes_the_comm(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    async with comm_pair() as (a, b):

        def fail(items: object) -> None:
            raise error

        monkeypatch.setattr(stream_of(a), "send_soon", fail)
        with pytest.raises(error):
            await a.write("x")
        assert a.closed()
        await until(b.closed)


async def test_nothing_is_written_after_the_end() -> None:
    async with comm_pair() as (a, _):
        await a.close()
        assert a.closed()
        assert "closed" in repr(a)
        with pytest.raises(CommClosedError):
            await a.write("x")
        with pytest.raises(CommClosedError):
            await a.read()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        struct.pack("<II", frames._MAGIC, 0xFFFFFFFF),
        struct.pack("<IIQ", frames._MAGIC, 1, (1 << 63) - 1),
        struct.pack("<IIQ", frames._MAGIC, 1, 1 << 45),  # more memory than there is
        struct.pack("<IIQ", frames._MAGIC, 1, 100) + b"too short",
        frames.begin([b"\xc1"], [1]) + b"\xc1",  # no msgpack
    ],
)
async def test_garbage_ends_its_own_comm_only(garbage: bytes) -> None:
    ended: list[BaseException | None] = []

    async def handle(comm: RdmaComm) -> None:
        try:
            while True:
                await comm.write(await comm.read())
        except CommClosedError:
            ended.append(None)
        except Exception as exc:
            ended.append(exc)
            comm.abort()

    async with listen("rdma://127.0.0.1", handle) as listener:
        good = await connect(listener.contact_address)
        bad = await connect(listener.contact_address)
        stream_of(bad).send_soon(garbage)
        await bad.close()
        await until(lambda: ended)
        await good.write("still here")
        assert await good.read() == "still here"
        await good.close()
        await until(lambda: len(ended) == 2)


async def test_a_client_that_never_shakes_hands_is_closed_with_the_listener() -> None:
    async def handle(comm: RdmaComm) -> None:
        raise AssertionError("no handshake")

    listener = await listen("rdma://127.0.0.1", handle)
    host, port = listener.get_host_port()
    async with aiordma.connect(host, port) as stream:
        await stream.receive()  # the server's half of the handshake
        listener.abort_handshaking_comms()
        listener.stop()
        async with asyncio.timeout(10):
            with pytest.raises((BrokenResourceError, EndOfStream)):
                await stream.receive()
    with pytest.raises(ValueError, match="not started"):
        listener.get_host_port()
    listener.stop()


async def test_the_port_is_free_when_stop_returns() -> None:
    async def handle(comm: RdmaComm) -> None: ...

    listener = await listen("rdma://127.0.0.1", handle)
    _, port = listener.get_host_port()
    listener.stop()
    again = await listen(f"rdma://127.0.0.1:{port}", handle)
    again.stop()
