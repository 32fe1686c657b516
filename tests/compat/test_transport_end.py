"""The end of a transport on a ring: close, abort, failure; connection_lost() once, always from the loop."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import anyio
import pytest

from aiordma.testing.memory import memory_pipe_pair
from tests.health import settle

from .recorder import BufferedRecorder, Recorder, collect, connect_pipe, drain_far, one_transport

pytestmark = pytest.mark.anyio


async def test_close_flushes_first_and_reads_nothing_more() -> None:
    protocol = Recorder()
    transport, far = await one_transport(protocol, 8)
    transport.write(b"0123456789abcdef")
    transport.close()
    transport.close()
    assert transport.is_closing()
    far.try_send(b"ignored")
    await settle()
    assert protocol.events == ["made"]
    transport.write(b"ignored too")
    assert await collect(far, 16) == b"0123456789abcdef"
    assert await protocol.lost is None
    await settle()
    assert far.at_eof
    assert protocol.events == ["made", "lost"]


async def test_connection_lost_is_never_called_from_close_or_abort() -> None:
    for end in ("close", "abort"):
        protocol = Recorder()
        transport, _ = await one_transport(protocol)
        getattr(transport, end)()
        assert protocol.events == ["made"]
        assert await protocol.lost is None
        getattr(transport, end)()
        await settle()
        assert protocol.events == ["made", "lost"]


async def test_abort_drops_the_queue_and_resets_the_peer() -> None:
    protocol = Recorder()
    transport, far = await one_transport(protocol, 4)
    transport.write(b"too much for the ring")
    transport.abort()
    assert transport.get_write_buffer_size() == 0
    assert await protocol.lost is None
    await settle()
    assert isinstance(far.error, ConnectionResetError)


async def test_abort_with_nothing_queued_loses_nothing() -> None:
    protocol = Recorder()
    transport, far = await one_transport(protocol)
    transport.write(b"all of it")
    transport.abort()
    await protocol.lost
    await settle()
    assert far.error is None
    assert drain_far(far) == b"all of it"
    assert far.at_eof


async def test_abort_while_closing() -> None:
    protocol = Recorder()
    transport, _ = await one_transport(protocol, 4)
    transport.write(b"nobody reads this")
    transport.close()
    await settle()
    assert protocol.events == ["made"]
    transport.abort()
    assert await protocol.lost is None


async def test_writes_after_close_are_ignored_and_warned_about_from_the_fifth_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    protocol = Recorder()
    transport, far = await one_transport(protocol)
    transport.close()
    with caplog.at_level(logging.WARNING, logger="asyncio"):
        for _ in range(4):
            transport.write(b"lost")
        assert not caplog.records
        transport.write(b"lost")
        await protocol.lost
        transport.writelines([b"lost"])
    assert [record.name for record in caplog.records] == ["asyncio", "asyncio"]
    await settle()
    assert drain_far(far) == b""
    transport.write_eof()


@pytest.mark.parametrize("queued", [False, True])
async def test_broken_link_loses_the_connection_once(queued: bool) -> None:
    protocol = Recorder()
    transport, far = await one_transport(protocol, 8)
    transport.write(b"x" * (100 if queued else 3))
    cause = OSError("retries exceeded")
    far.break_with(cause)
    exc = await protocol.lost
    assert isinstance(exc, ConnectionResetError)
    assert exc.__cause__ is cause
    assert "retries exceeded" in str(exc)
    transport.write(b"more")
    await settle()
    assert protocol.events == ["made", "lost"]
    assert transport.get_write_buffer_size() == 0


async def test_data_that_arrived_before_the_break_is_delivered() -> None:
    protocol = Recorder()
    near, far = memory_pipe_pair(64)
    far.try_send(b"last words")
    connect_pipe(near, protocol)
    far.break_with(OSError("gone"))
    await protocol.lost
    assert protocol.data == b"last words"


async def test_error_found_by_write_reaches_the_protocol_from_the_loop() -> None:
    protocol = Recorder(keep_open=True)
    near, far = memory_pipe_pair(64, delivery="immediate")
    transport = connect_pipe(near, protocol)
    await settle()
    far.close()
    await settle()
    transport.write(b"nobody")  # on TCP, the write that meets the peer's end succeeds
    await settle()
    assert protocol.events == ["made", "eof"]
    transport.write(b"nobody")
    assert protocol.events == ["made", "eof"]
    exc = await protocol.lost
    assert isinstance(exc, BrokenPipeError)


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
@pytest.mark.parametrize("keep_open", [True, False])
@pytest.mark.parametrize("queued", [False, True])
async def test_a_write_after_the_peers_end_leaves_what_it_sent(
    kind: Any, keep_open: bool, queued: bool
) -> None:
    """As on TCP, where the peer's answer explains why it wants no more."""
    protocol = kind(keep_open=keep_open)
    near, far = memory_pipe_pair(16, delivery="immediate")
    transport = connect_pipe(near, protocol)
    await settle()
    transport.pause_reading()
    if queued:
        transport.write(bytes(30))
    far.try_send(b"no, thank you")
    far.close()
    for part in (b"one", bytearray(b"two"), memoryview(b"three")):
        transport.write(part)
        await settle(2)
    assert transport.get_write_buffer_size() == 0
    transport.resume_reading()
    await settle()
    assert protocol.data == b"no, thank you"
    if keep_open:
        assert protocol.events == ["made", "data", "eof"]
        transport.write(b"four")
        assert isinstance(await protocol.lost, BrokenPipeError)
    else:
        assert await protocol.lost is None
    assert protocol.events == ["made", "data", "eof", "lost"]


async def test_who_never_reads_learns_of_the_peers_end_by_writing() -> None:
    protocol = Recorder()
    near, far = memory_pipe_pair(64, delivery="immediate")
    transport = connect_pipe(near, protocol)
    await settle()
    transport.pause_reading()
    far.try_send(b"answer")
    far.close()
    with anyio.fail_after(20):
        while not protocol.lost.done():
            transport.write(b"more")
            await asyncio.sleep(0.01)
    assert isinstance(await protocol.lost, BrokenPipeError)


@pytest.mark.parametrize("end", ["eof", "abort"])
async def test_an_empty_write_does_nothing_at_a_closed_peer(end: str) -> None:
    protocol = Recorder(keep_open=True)
    near, far = memory_pipe_pair(64, delivery="immediate")
    transport = connect_pipe(near, protocol)
    await settle()
    transport.pause_reading()
    (far.close if end == "eof" else far.abort)()
    for empty in (b"", bytearray(), memoryview(b"")):
        transport.write(empty)
    transport.writelines([b"", b""])
    await settle()
    assert protocol.events == ["made"]
    transport.abort()
    await protocol.lost


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
async def test_the_end_comes_after_what_the_last_data_has_scheduled(kind: Any) -> None:
    class Scheduling(kind):  # type: ignore[misc]
        def _record_data(self, data: bytes) -> None:
            super()._record_data(data)
            asyncio.get_running_loop().call_soon(self.events.append, "scheduled")

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            asyncio.get_running_loop().call_soon(self.events.append, "scheduled at first")

    protocol = Scheduling()
    near, far = memory_pipe_pair(64, delivery="immediate")
    far.try_send(b"last")
    far.close()
    connect_pipe(near, protocol)
    await protocol.lost
    assert protocol.events == ["made", "scheduled at first", "data", "scheduled", "eof", "lost"]


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
async def test_the_end_comes_a_turn_later_though_reading_is_due_twice(kind: Any) -> None:
    """As where a socket has news in the turn in which reading is resumed."""

    class Scheduling(kind):  # type: ignore[misc]
        def _record_data(self, data: bytes) -> None:
            super()._record_data(data)
            asyncio.get_running_loop().call_soon(self.events.append, "scheduled")

    protocol = Scheduling()
    transport, far = await one_transport(protocol, 64)
    transport.pause_reading()
    far.try_send(b"last")
    far.close()
    await settle()
    assert protocol.events == ["made"]
    transport.resume_reading()
    transport.set_protocol(protocol)  # which may have left something that was not read
    await protocol.lost
    assert protocol.events == ["made", "data", "scheduled", "eof", "lost"]


async def test_unflushed_close_ends_when_the_peer_goes() -> None:
    protocol = Recorder()
    transport, far = await one_transport(protocol, 4)
    transport.write(b"nobody reads this")
    transport.close()
    far.abort()
    assert isinstance(await protocol.lost, ConnectionResetError)


async def test_an_unclosed_transport_warns() -> None:
    near, far = memory_pipe_pair(64)
    connect_pipe(near, Recorder())
    await settle()
    near.on_readable = near.on_writable = None
    with pytest.warns(ResourceWarning, match="unclosed transport"):
        gc.collect()
    await settle()
    assert isinstance(far.error, ConnectionResetError)


class CountingOwner:
    def __init__(self) -> None:
        self.live: set[Any] = set()

    def attach(self, transport: Any) -> None:
        self.live.add(transport)

    def detach(self, transport: Any) -> None:
        self.live.remove(transport)


@pytest.mark.parametrize("end", ["close", "abort", "break"])
async def test_the_server_is_told(end: str) -> None:
    owner = CountingOwner()
    protocol = Recorder()
    near, far = memory_pipe_pair(64)
    transport = connect_pipe(near, protocol, server=owner)
    assert owner.live == {transport}
    await settle()
    if end == "break":
        far.break_with(OSError("gone"))
    else:
        getattr(transport, end)()
    await protocol.lost
    await settle()
    assert owner.live == set()


@pytest.mark.parametrize("answer", ["write", "abort"])
async def test_a_pipe_that_breaks_while_it_has_what_waits(
    answer: str, reported: list[dict[str, Any]]
) -> None:
    """It hands over what came before from inside of that send, and the protocol answers there."""

    class Answering(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if answer == "write":
                self.transport.write(b"answer")
            else:
                self.transport.abort()

    protocol = Answering()
    transport, far = await one_transport(protocol, 64)
    near = transport._pipe
    transport.write(bytes(100))

    def break_and_tell(data: Any, start: int = 0) -> int:
        with memoryview(data) as view:
            assert near.on_readable is not None
            near.on_readable()
            if answer != "abort":
                raise anyio.BrokenResourceError from OSError("gone")
            return len(view) - start

    transport._try_send = break_and_tell
    near.on_readable, told = None, near.on_readable
    far.try_send(b"question")
    await settle()
    near.on_readable = told
    assert near.on_writable is not None
    asyncio.get_running_loop().call_soon(near.on_writable)
    with anyio.fail_after(20):
        await protocol.lost
    assert protocol.data == b"question"
    assert reported == []
    assert transport.get_write_buffer_size() == 0
