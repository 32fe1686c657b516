"""The in-memory ring pipe keeps the contract that everything above the rings relies on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.testing.memory import MemoryPipe, memory_pipe_pair


class Steps(list[Callable[[], None]]):
    """Deliveries waiting to be run by hand."""

    def run(self) -> None:
        while self:
            self.pop(0)()


def immediate(ring_bytes: int = 8) -> tuple[MemoryPipe, MemoryPipe]:
    return memory_pipe_pair(ring_bytes, delivery="immediate")


def test_bytes_wrap_around_and_writes_are_partial() -> None:
    a, b = immediate(8)
    assert a.try_send(b"abcdefghij") == 8
    assert a.try_send(b"more") == 0
    assert b.try_receive(5) == b"abcde"
    assert a.try_send(b"abcdefghijklmn", 8) == 5
    assert bytes(b.view()) == b"fgh"  # contiguous part only: the rest has wrapped
    b.consume(2)
    assert b.try_receive(100) == b"hijklm"
    assert b.try_receive(1) is None
    assert b.readable == 0
    assert a.writable == 8


def test_receive_into() -> None:
    a, b = immediate(8)
    buffer = bytearray(6)
    assert b.try_receive_into(buffer) == -1
    a.try_send(memoryview(b"0123456789")[2:])
    assert b.try_receive_into(buffer) == 6
    assert b.try_receive_into(memoryview(buffer)[4:]) == 2
    assert bytes(buffer) == b"234589"
    a.send_eof()
    assert b.try_receive_into(buffer) == 0


def test_eof_comes_after_the_bytes_and_only_one_way() -> None:
    a, b = immediate()
    a.try_send(b"last")
    a.send_eof()
    a.send_eof()
    assert (b.at_eof, b.try_receive(10), b.at_eof) == (False, b"last", True)
    assert b.try_receive(10) == b""
    assert b.try_receive(10) == b""
    with pytest.raises(anyio.ClosedResourceError):
        a.try_send(b"x")
    assert b.try_send(b"answer") == 6
    assert a.try_receive(10) == b"answer"


def test_on_writable_is_called_only_after_a_short_send() -> None:
    a, b = immediate(4)
    calls: list[str] = []
    a.on_writable = lambda: calls.append("w")
    a.try_send(b"1234")
    b.try_receive(4)
    assert calls == []
    a.try_send(b"12345")
    b.try_receive(1)
    b.try_receive(1)
    assert calls == ["w"]


def test_on_readable_for_data_eof_and_error() -> None:
    a, b = immediate()
    calls: list[Any] = []
    b.on_readable = lambda: calls.append((b.readable, b.at_eof, b.error))
    a.try_send(b"ab")
    b.try_receive(2)
    a.send_eof()
    error = OSError("link lost")
    a.break_with(error)
    assert calls == [(2, False, None), (0, True, None), (0, True, error)]


def test_close_reaches_the_peer_after_the_bytes() -> None:
    a, b = immediate()
    a.try_send(b"bye")
    a.close()
    a.close()
    for use in (lambda: a.try_send(b"x"), lambda: a.try_receive(1), a.view, a.spin_readable):
        with pytest.raises(anyio.ClosedResourceError):
            use()
    assert b.try_receive(10) == b"bye"
    assert b.try_receive(10) == b""
    with pytest.raises(anyio.BrokenResourceError) as caught:
        b.try_send(b"nobody")
    assert isinstance(caught.value.__cause__, BrokenPipeError)
    assert b.writable == 0


def test_closed_end_gets_no_callbacks() -> None:
    steps = Steps()
    a, b = memory_pipe_pair(8, delivery=steps.append)
    b.on_readable = lambda: pytest.fail("called after close()")
    a.try_send(b"x")
    b.close()
    steps.run()
    assert b.readable == 0


def test_abort_breaks_the_peer() -> None:
    a, b = immediate()
    a.abort()
    a.abort()
    assert isinstance(b.error, ConnectionResetError)
    with pytest.raises(anyio.BrokenResourceError) as caught:
        b.try_receive(1)
    assert caught.value.__cause__ is b.error
    with pytest.raises(anyio.BrokenResourceError):
        b.try_send(b"x")
    with pytest.raises(anyio.ClosedResourceError):
        a.try_send(b"x")


def test_injected_error_lets_arrived_bytes_be_read_and_wakes_writers() -> None:
    a, b = immediate(4)
    woken: list[str] = []
    a.on_writable = lambda: woken.append("a")
    a.try_send(b"12345")
    error = OSError("link lost")
    b.break_with(error)
    assert woken == ["a"]
    assert b.try_receive(10) == b"1234"
    for use in (lambda: b.try_receive(1), lambda: a.try_send(b"x")):
        with pytest.raises(anyio.BrokenResourceError) as caught:
            use()
        assert caught.value.__cause__ is error
    assert a.spin_writable()
    assert b.spin_readable()


def test_eof_that_has_arrived_outlives_an_error() -> None:
    a, b = immediate()
    a.send_eof()
    a.break_with(OSError("link lost"))
    assert b.at_eof
    assert b.try_receive(1) == b""
    with pytest.raises(anyio.BrokenResourceError):
        b.try_send(b"x")


def test_nothing_arrives_before_delivery_unless_polled_for() -> None:
    steps = Steps()
    a, b = memory_pipe_pair(8, delivery=steps.append)
    a.try_send(b"x")
    a.try_send(b"y")
    assert (b.readable, b.spin_readable(), len(steps)) == (0, False, 1)
    steps.run()
    assert b.readable == 2
    c, d = memory_pipe_pair(8, delivery=steps.append, spin=True)
    assert not d.spin_readable()
    c.try_send(b"x")
    assert d.spin_readable()
    assert d.statistics().busy_polls == 2
    assert d.statistics().busy_poll_hits == 1


def test_setting_a_callback_polls() -> None:
    steps = Steps()
    calls: list[str] = []
    a, b = memory_pipe_pair(4, delivery=steps.append, spin=True)
    assert a.try_send(b"12345") == 4
    b.on_readable = lambda: calls.append("readable")
    assert b.try_receive(4) == b"1234"
    a.on_writable = lambda: calls.append("writable")
    assert calls == ["readable", "writable"]


def test_bad_arguments() -> None:
    a, b = immediate()
    with pytest.raises(ValueError, match="max_bytes"):
        b.try_receive(0)
    with pytest.raises(ValueError, match="start"):
        a.try_send(b"abc", 4)
    with pytest.raises(ValueError, match="at least 1 byte"):
        b.try_receive_into(bytearray())
    with pytest.raises(ValueError, match="consume"):
        b.consume(1)
    with pytest.raises(TypeError):
        a.try_send("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ring_bytes"):
        memory_pipe_pair(0, delivery="immediate")
    with pytest.raises(ValueError, match="delivery"):
        memory_pipe_pair(8, delivery="never")  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_delivery_on_the_running_loop() -> None:
    a, b = memory_pipe_pair(8)
    arrived = anyio.Event()
    b.on_readable = arrived.set
    a.try_send(b"x")
    assert b.readable == 0
    with anyio.fail_after(10):
        await arrived.wait()
    assert b.try_receive(1) == b"x"


@given(
    ring_bytes=st.integers(1, 40),
    data=st.binary(max_size=300),
    moves=st.lists(st.tuples(st.sampled_from("srvd"), st.integers(1, 50)), max_size=60),
)
def test_no_byte_is_lost_or_repeated(ring_bytes: int, data: bytes, moves: list[tuple[str, int]]) -> None:
    steps = Steps()
    a, b = memory_pipe_pair(ring_bytes, delivery=steps.append)
    sent, got = 0, bytearray()
    for move, n in moves:
        if move == "s":
            sent += a.try_send(data[: sent + n], sent)
        elif move == "r":
            got += b.try_receive(n) or b""
        elif move == "v":
            part = bytes(b.view()[:n])
            got += part
            b.consume(len(part))
        elif steps:
            steps.pop(0)()
        assert got == data[: len(got)]
        assert 0 <= b.readable <= ring_bytes
        assert len(got) + b.readable + a.writable <= sent + ring_bytes
    while (n := len(got)) < sent:
        steps.run()
        got += b.try_receive(1000) or b""
        assert len(got) > n
    assert got == data[:sent]
