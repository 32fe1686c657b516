"""The end of a transport on a ring: close, abort, failure; connection_lost() once, always from the loop."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest

from aiordma.testing.memory import memory_pipe_pair

from .recorder import Recorder, collect, connect_pipe, drain_far, one_transport, settle

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
    protocol = Recorder()
    near, far = memory_pipe_pair(64, delivery="immediate")
    transport = connect_pipe(near, protocol)
    await settle()
    transport.pause_reading()  # so that the transport notices only when it writes
    far.close()
    transport.write(b"nobody")
    assert "lost" not in protocol.events
    exc = await protocol.lost
    assert isinstance(exc, BrokenPipeError)


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
