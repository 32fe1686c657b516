"""The transport on a ring keeps asyncio's contract."""

from __future__ import annotations

import array
import asyncio
import socket
from typing import Any

import anyio
import pytest

from aiordma.compat import flow
from aiordma.compat.transport import RingTransport
from aiordma.streams.info import StreamInfo
from aiordma.testing.memory import memory_pipe_pair
from tests.health import settle
from tests.private import needs

from .recorder import BufferedRecorder, Recorder, collect, connect_pipe, drain_far, one_transport

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
async def test_order_of_callbacks(kind: type[Recorder]) -> None:
    protocol = kind()
    near, far = memory_pipe_pair(64)
    far.try_send(b"early, before the protocol knows")
    far.send_eof()
    transport = connect_pipe(near, protocol)
    assert protocol.events == []  # connection_made() comes from the loop
    assert await protocol.lost is None
    assert protocol.events == ["made", "data", "eof", "lost"]
    assert protocol.data == b"early, before the protocol knows"
    assert protocol.transport is transport
    assert transport.is_closing()
    assert drain_far(far) == b""
    await settle()
    assert far.at_eof


async def test_data_that_is_announced_inside_a_callback(reported: list[dict[str, Any]]) -> None:
    """Code in a callback of the transport may poll the queue, and so announce data of that transport."""
    protocol = Recorder()
    near, far = memory_pipe_pair(64)
    transport = connect_pipe(near, protocol)
    await settle()
    assert near.on_readable is not None
    transport._call_soon(near.on_readable)
    far.try_send(b"hello")
    await settle()
    far.send_eof()
    with anyio.fail_after(20):
        assert await protocol.lost is None
    assert reported == []
    assert protocol.data == b"hello"


async def test_waiter_is_set_after_connection_made() -> None:
    protocol = Recorder()
    near, _ = memory_pipe_pair(64)
    waiter = asyncio.get_running_loop().create_future()
    transport = connect_pipe(near, protocol, waiter=waiter)
    await waiter
    assert protocol.events == ["made"]
    transport.abort()
    await protocol.lost


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
async def test_echo_with_a_tiny_ring(kind: type[Recorder]) -> None:
    class Echo(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.write(data)

    near, far = memory_pipe_pair(5)
    client, server = kind(), Echo()
    transport = connect_pipe(near, client)
    connect_pipe(far, server)
    data = bytes(range(256)) * 40
    transport.write(data)
    assert transport.get_write_buffer_size() == len(data) - 5
    transport.write_eof()
    with anyio.fail_after(20):
        assert await client.lost is None
        assert await server.lost is None
    assert client.data == server.data == data


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda b: memoryview(bytearray(b))])
async def test_write_takes_every_kind_of_bytes_and_keeps_its_own_copy(wrap: Any) -> None:
    protocol = Recorder()
    transport, far = await one_transport(protocol, 16)
    big = bytes(range(256)) * 600
    data = wrap(big)
    transport.write(data)
    small = wrap(b"0123456789")
    transport.write(small)
    for mutable in (data, small):
        if not isinstance(mutable, bytes) and not memoryview(mutable).readonly:
            memoryview(mutable)[:] = bytes(len(mutable))  # what asyncio programs may do after write()
    transport.close()
    assert await collect(far, len(big) + 10) == big + b"0123456789"
    assert await protocol.lost is None


async def test_write_of_a_strided_and_of_a_typed_view() -> None:
    protocol = Recorder()
    transport, far = await one_transport(protocol)
    transport.write(memoryview(b"0123456789")[::2])
    transport.write(memoryview(b"\1\0\0\0\2\0\0\0").cast("i"))
    await settle()
    assert drain_far(far) == b"02468" + b"\1\0\0\0\2\0\0\0"
    transport.abort()


@pytest.mark.parametrize("bad", ["text", 5, None, [1, 2]])
async def test_write_refuses_what_is_not_bytes(bad: Any) -> None:
    protocol = Recorder()
    transport, _ = await one_transport(protocol)
    with pytest.raises(TypeError, match="bytes-like"):
        transport.write(bad)
    transport.close()
    with pytest.raises(TypeError, match="bytes-like"):
        transport.write(bad)


async def test_writelines_small_and_large() -> None:
    protocol = Recorder()
    transport, far = await one_transport(protocol, 1 << 20)
    transport.writelines([b"a", bytearray(b"b"), memoryview(b"c")])
    transport.writelines(iter([b"d" * 70_000, b"", b"e"]))
    transport.writelines([])
    await settle()
    assert drain_far(far) == b"abc" + b"d" * 70_000 + b"e"
    transport.abort()


async def test_pause_and_resume_writing_alternate_at_the_marks() -> None:
    protocol = Recorder()
    transport, far = await one_transport(protocol, 10)
    assert transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)
    transport.set_write_buffer_limits(high=20, low=5)
    transport.write(b"x" * 30)  # 20 queued: not above the mark
    assert protocol.events == ["made"]
    transport.write(b"x")
    transport.write(b"x" * 5)
    assert protocol.events == ["made", "pause"]
    for left in (16, 6):
        await settle(3)
        drain_far(far)
        await settle(3)
        assert transport.get_write_buffer_size() == left
    assert protocol.events == ["made", "pause"]
    drain_far(far)
    await settle(3)
    assert transport.get_write_buffer_size() == 0
    assert protocol.events == ["made", "pause", "resume"]
    transport.close()
    await protocol.lost


async def test_write_buffer_limits() -> None:
    protocol = Recorder()
    transport, far = await one_transport(protocol, 10)
    transport.set_write_buffer_limits(low=100)
    assert transport.get_write_buffer_limits() == (100, 400)
    transport.set_write_buffer_limits(high=100)
    assert transport.get_write_buffer_limits() == (25, 100)
    with pytest.raises(ValueError, match="high"):
        transport.set_write_buffer_limits(high=1, low=2)
    transport.write(b"x" * 60)
    transport.set_write_buffer_limits(high=0)  # pauses at once: 50 are queued
    assert protocol.events == ["made", "pause"]
    await collect(far, 60)
    await settle()
    assert protocol.events == ["made", "pause", "resume"]
    transport.abort()


async def test_writing_in_resume_writing() -> None:
    class Writer(Recorder):
        rounds = 3

        def resume_writing(self) -> None:
            super().resume_writing()
            if self.rounds:
                self.rounds -= 1
                self.transport.write(b"y" * 50)
            else:
                self.transport.close()

    protocol = Writer()
    transport, far = await one_transport(protocol, 8)
    transport.set_write_buffer_limits(high=10, low=0)
    transport.write(b"y" * 50)
    assert await collect(far, 200) == b"y" * 200
    assert await protocol.lost is None
    assert protocol.events == ["made", *["pause", "resume"] * 4, "lost"]


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
async def test_pause_reading_holds_data_and_eof_back(kind: type[Recorder]) -> None:
    protocol = kind()
    transport, far = await one_transport(protocol)
    assert transport.is_reading()
    transport.pause_reading()
    transport.pause_reading()
    assert not transport.is_reading()
    far.try_send(b"later")
    far.send_eof()
    await settle()
    assert protocol.events == ["made"]
    transport.resume_reading()
    transport.resume_reading()
    assert protocol.events == ["made"]  # not inside the call
    assert await protocol.lost is None
    assert protocol.events == ["made", "data", "eof", "lost"]
    assert protocol.data == b"later"
    assert not transport.is_reading()
    transport.resume_reading()
    transport.pause_reading()


async def test_pause_reading_inside_data_received() -> None:
    class Pausing(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.pause_reading()

    protocol = Pausing()
    transport, far = await one_transport(protocol, 8)
    far.try_send(b"one")
    await settle()
    far.try_send(b"two")
    await settle()
    assert protocol.data == b"one"
    transport.resume_reading()
    await settle()
    assert protocol.data == b"onetwo"
    transport.abort()


async def test_half_close_by_us() -> None:
    protocol = Recorder()
    transport, far = await one_transport(protocol, 4)
    assert transport.can_write_eof()
    transport.write(b"question")
    transport.write_eof()
    transport.write_eof()
    with pytest.raises(RuntimeError, match="after write_eof"):
        transport.write(b"more")
    assert await collect(far, 8) == b"question"
    await settle()
    assert far.at_eof
    assert not transport.is_closing()
    far.try_send(b"answ")
    await settle()
    assert protocol.data == b"answ"
    far.close()
    assert await protocol.lost is None


async def test_half_close_by_the_peer() -> None:
    protocol = Recorder(keep_open=True)
    transport, far = await one_transport(protocol)
    far.send_eof()
    await settle()
    assert protocol.events == ["made", "eof"]
    assert not transport.is_closing()
    transport.write(b"still")
    await settle()
    assert drain_far(far) == b"still"
    transport.close()
    await protocol.lost
    assert protocol.events == ["made", "eof", "lost"]


@pytest.mark.parametrize("callback", ["data_received", "eof_received", "get_buffer", "buffer_updated"])
async def test_exception_in_a_callback_is_fatal_and_reported(
    callback: str, reported: list[dict[str, Any]]
) -> None:
    error = ValueError("in " + callback)

    def fail(*args: Any) -> Any:
        raise error

    protocol = BufferedRecorder() if "buffer" in callback else Recorder()
    setattr(protocol, callback, fail)
    transport, far = await one_transport(protocol)
    far.try_send(b"x")
    far.send_eof()
    assert await protocol.lost is error
    assert len(reported) == 1
    assert reported[0]["exception"] is error
    assert reported[0]["transport"] is transport
    assert reported[0]["protocol"] is protocol
    assert callback in reported[0]["message"]


@pytest.mark.parametrize("callback", ["pause_writing", "resume_writing"])
@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("own", [False, True], ids=["asyncio's", "own"])
async def test_exception_in_flow_control_is_reported_only(
    callback: str,
    error: type[BaseException],
    own: bool,
    reported: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise error

    if own:  # which stands in for asyncio's where that has another shape
        for name in ("_maybe_pause_protocol", "_maybe_resume_protocol", "_tell"):
            monkeypatch.setattr(RingTransport, name, getattr(flow.OwnFlowControl, name), raising=False)
    protocol = Recorder()
    protocol.pause_writing = protocol.resume_writing = lambda: None  # type: ignore[method-assign]
    setattr(protocol, callback, fail)
    transport, far = await one_transport(protocol, 4)
    transport.set_write_buffer_limits(high=4)
    transport.write(b"0123456789")
    assert await collect(far, 10) == b"0123456789"
    await settle()
    assert [context["message"] for context in reported] == [f"protocol.{callback}() failed"]
    assert type(reported[0]["exception"]) is error
    assert not transport.is_closing()
    transport.abort()
    await protocol.lost


async def test_empty_buffer_from_get_buffer_is_an_error(reported: list[dict[str, Any]]) -> None:
    protocol = BufferedRecorder(size=0)
    _, far = await one_transport(protocol)
    far.try_send(b"x")
    assert isinstance(await protocol.lost, RuntimeError)
    assert len(reported) == 1


async def test_set_protocol_hands_over_what_is_unread() -> None:
    first, second, third = Recorder(), BufferedRecorder(), Recorder()
    transport, far = await one_transport(first)
    far.try_send(b"for the first")
    await settle()
    transport.pause_reading()
    far.try_send(b"for the second")
    await settle()
    transport.set_protocol(second)
    assert transport.get_protocol() is second
    transport.resume_reading()
    await settle()
    transport.set_protocol(third)
    far.try_send(b"for the third")
    await settle()
    received = [bytes(protocol.data) for protocol in (first, second, third)]
    assert received == [b"for the first", b"for the second", b"for the third"]
    transport.close()
    await third.lost
    assert first.events == ["made", "data"]
    assert second.events == ["data"]


async def test_protocol_is_not_called_while_a_task_polls() -> None:
    """A poll inside a task dispatches for other streams too; their protocols must not notice."""
    seen: list[Any] = []

    class Watcher(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            seen.append(asyncio.current_task())

    protocol = Watcher()
    near, far = memory_pipe_pair(64, delivery="immediate")
    transport = connect_pipe(near, protocol)
    await settle()
    far.try_send(b"delivered in the middle of this task")
    assert seen == []
    await settle()
    assert seen == [None]
    transport.abort()


async def test_callbacks_run_in_the_context_of_creation() -> None:
    import contextvars

    variable = contextvars.ContextVar("variable", default="elsewhere")
    seen: list[str] = []

    class Watcher(Recorder):
        def data_received(self, data: bytes) -> None:
            seen.append("data " + variable.get())

        def connection_lost(self, exc: BaseException | None) -> None:
            seen.append("lost " + variable.get())
            super().connection_lost(exc)

    protocol = Watcher()
    near, far = memory_pipe_pair(64)
    token = variable.set("creation")
    transport = connect_pipe(near, protocol)
    variable.reset(token)
    await settle()
    far.try_send(b"x")
    await settle()
    transport.close()
    await protocol.lost
    assert seen == ["data creation", "lost creation"]


async def test_many_small_writes_to_a_full_ring_keep_their_order() -> None:
    protocol = Recorder()
    transport, far = await one_transport(protocol, 3)
    expected = bytearray()
    for i in range(3000):
        piece = bytes([i % 251]) * (i % 7)
        expected += piece
        transport.write(piece if i % 2 else bytearray(piece))
    transport.close()
    assert await collect(far, len(expected)) == expected
    await protocol.lost


async def test_a_flood_leaves_the_loop_alive() -> None:
    """Each callback delivers a bounded amount: others run even if one connection always has data."""
    turns = 0
    loop = asyncio.get_running_loop()

    class Flooded(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            assert far.try_send(b"again") == 5  # more data is always available
            if turns > 3:
                self.transport.abort()

    def tick() -> None:
        nonlocal turns
        turns += 1
        if not protocol.lost.done():
            loop.call_soon(tick)

    protocol = Flooded()
    near, far = memory_pipe_pair(64, delivery="immediate")
    connect_pipe(near, protocol)
    await settle()
    loop.call_soon(tick)
    far.try_send(b"start")
    with anyio.fail_after(20):
        await protocol.lost


async def test_extra_info_and_repr() -> None:
    near, _ = memory_pipe_pair(64)
    protocol = Recorder()
    transport = connect_pipe(near, protocol, extra={"peername": ("192.0.2.1", 7)})
    assert transport.get_extra_info("aiordma.path") == "rdma"
    assert transport.get_extra_info("aiordma.fallback_reason", "unknown") is None
    info = transport.get_extra_info("aiordma.stream")
    assert isinstance(info, StreamInfo)
    assert info.path == "memory"
    assert info.statistics() == near.statistics()
    assert transport.get_extra_info("peername") == ("192.0.2.1", 7)
    assert transport.get_extra_info("nothing", 5) == 5
    assert "192.0.2.1" in repr(transport)
    assert "open" in repr(transport)
    transport.close()
    await protocol.lost
    assert "closed" in repr(transport)
    assert transport.get_extra_info("peername") == ("192.0.2.1", 7)


@needs("_sendfile_compatible")
async def test_loop_sendfile(tmp_path: Any, anyio_backend: Any) -> None:
    if anyio_backend[1]["use_uvloop"]:
        pytest.skip("uvloop's sendfile() takes only its own transports")
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 300)
    protocol = Recorder()
    # sendfile() installs its own protocol, which does not forward that writing is paused
    protocol.pause_writing = protocol.resume_writing = lambda: None  # type: ignore[method-assign]
    transport, far = await one_transport(protocol, 1000)
    transport.write(b"head")
    with path.open("rb") as file:
        sending = asyncio.ensure_future(asyncio.get_running_loop().sendfile(transport, file))
        assert await collect(far, 4 + 256 * 300) == b"head" + path.read_bytes()
        assert await sending == 256 * 300
    transport.write(b"tail")
    transport.close()
    assert await collect(far, 4) == b"tail"
    await protocol.lost


@needs("_sendfile_compatible")
@pytest.mark.parametrize(("offset", "count"), [(0, None), (0, 700), (900, None), (900, 50), (3000, None)])
async def test_sendfile_is_from_the_offset_as_on_a_socket(
    tmp_path: Any, anyio_backend: Any, offset: int, count: int | None
) -> None:
    if anyio_backend[1]["use_uvloop"]:
        pytest.skip("uvloop's sendfile() takes only its own transports")
    path = tmp_path / "file"
    path.write_bytes(bytes(range(250)) * 8)
    loop = asyncio.get_running_loop()

    async def sent_by(transport: Any) -> tuple[int, int]:
        with path.open("rb") as file:
            file.seek(1000)
            return await loop.sendfile(transport, file, offset, count), file.tell()

    near, far = socket.socketpair()
    near.setblocking(False)
    plain = Recorder()
    with far:
        transport, _ = await loop.create_connection(lambda: plain, sock=near)
        expected = await sent_by(transport)
        transport.close()
        await plain.lost
        data = far.recv(10_000)
    protocol = Recorder()
    ours, pipe = await one_transport(protocol, 4000)
    assert await sent_by(ours) == expected
    await settle()
    assert drain_far(pipe) == data
    ours.close()
    await protocol.lost


@pytest.mark.parametrize("size", [10, 70_000])
async def test_writelines_takes_all_that_has_bytes_or_nothing(size: int) -> None:
    protocol = Recorder()
    transport, far = await one_transport(protocol, 200_000)
    doubles = array.array("d", [1.0, 2.0])
    good: list[Any] = [bytes(size), doubles, memoryview(b"abcdef")[::2], bytearray(b"x")]
    transport.writelines(good)
    expected = bytes(size) + doubles.tobytes() + b"acex"
    assert await collect(far, len(expected)) == expected
    for bad in ([bytes(size), "text"], [bytes(size), None], [bytes(size), 5]):
        with pytest.raises(TypeError):
            transport.writelines(bad)  # type: ignore[arg-type]
    await settle()
    assert not drain_far(far)
    transport.close()
    await protocol.lost
