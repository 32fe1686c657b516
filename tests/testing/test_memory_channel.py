"""The in-memory channel keeps the contract that calls and everything else above channels relies on."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.errors import LinkError
from aiordma.pipes.contracts import Message
from aiordma.proto.message import MAX_HEAD_BYTES
from aiordma.testing import MemoryChannel, memory_channels


class Steps(list[Callable[[], None]]):
    """Deliveries waiting to be run by hand."""

    def run(self) -> None:
        while self:
            self.pop(0)()


class End:
    """What one end was told."""

    def __init__(self, channel: MemoryChannel) -> None:
        self.messages: list[Message] = []
        self.closed: list[BaseException | None] = []
        self.writable = 0
        channel.on_message = self.messages.append
        channel.on_closed = self.closed.append
        channel.on_writable = self.count

    def count(self) -> None:
        self.writable += 1


def pair(**options: int) -> tuple[Steps, MemoryChannel, End, MemoryChannel, End]:
    steps = Steps()
    a, b = memory_channels(delivery=steps.append, **options)  # type: ignore[arg-type]
    return steps, a, End(a), b, End(b)


def test_messages_keep_their_boundaries_and_order() -> None:
    steps, a, at_a, b, at_b = pair(small_bytes=10)
    assert a.try_send(b"head", b"body")
    assert a.try_send(b"", bytearray(20))
    assert a.try_send(b"")
    assert at_b.messages == []  # never from inside try_send()
    steps.run()
    assert [type(m) for m in at_b.messages] == [bytes, memoryview, bytes]
    assert [bytes(m) for m in at_b.messages] == [b"headbody", bytes(20), b""]
    assert b.try_send(b"back")
    steps.run()
    assert at_a.messages == [b"back"]


def test_a_body_is_taken_with_the_call() -> None:
    steps, a, _, _, at_b = pair()
    body = bytearray(b"x" * 5000)
    a.try_send(b"", body)
    body[:] = bytes(5000)
    steps.run()
    assert bytes(at_b.messages[0]) == b"x" * 5000


def test_credit_runs_out_and_comes_back() -> None:
    steps, a, at_a, b, at_b = pair(receive_bytes=200)
    b.on_message = None
    steps.run()
    sent = 0
    while a.try_send(b"x" * 36):
        sent += 1
    assert sent == 2
    steps.run()
    assert (at_a.writable, at_b.messages) == (0, [])
    b.on_message = at_b.messages.append
    steps.run()
    assert (at_a.writable, len(at_b.messages)) == (1, 2)
    assert a.try_send(b"", b"x" * 5000)  # more than the budget: alone
    assert not a.try_send(b"")
    assert a.statistics().times_blocked == 2


def test_sizes_are_checked() -> None:
    _, a, _, _, _ = pair(max_message_bytes=1000)
    with pytest.raises(ValueError, match="1001 bytes"):
        a.try_send(b"x", bytes(1000))
    with pytest.raises(ValueError, match="head"):
        a.try_send(bytes(MAX_HEAD_BYTES + 1))
    with pytest.raises(ValueError, match="at least 1"):
        memory_channels(0, delivery=Steps().append)


def test_close_comes_after_the_messages() -> None:
    steps, a, at_a, b, at_b = pair()
    a.try_send(b"last")
    a.close()
    a.close()
    with pytest.raises(anyio.ClosedResourceError):
        a.try_send(b"")
    steps.run()
    assert at_b.messages == [b"last"]
    assert at_b.closed == [None]
    assert b.error is None
    with pytest.raises(anyio.BrokenResourceError):
        b.try_send(b"")
    b.close()
    steps.run()
    assert at_a.closed == []


def test_abort_and_broken_links_are_errors() -> None:
    steps, a, _, b, at_b = pair()
    a.abort()
    steps.run()
    assert at_b.closed == [b.error]
    assert b.error is not None
    with pytest.raises(anyio.BrokenResourceError) as caught:
        b.try_send(b"")
    assert caught.value.__cause__ is b.error
    steps, a, at_a, b, at_b = pair()
    reason = OSError("cable")
    b.break_with(reason)
    steps.run()
    assert at_a.closed == at_b.closed == [reason]


def test_a_failing_handler_breaks_the_channel() -> None:
    steps, a, at_a, b, at_b = pair()
    error = RuntimeError("handler")

    def fail(message: Message) -> None:
        raise error

    b.on_message = fail
    a.try_send(b"1")
    a.try_send(b"2")
    steps.run()
    assert at_b.closed == [error]
    assert isinstance(at_a.closed[0], Exception)


def test_spin_delivers() -> None:
    steps = Steps()
    a, b = memory_channels(delivery=steps.append, spin=True)
    at_b = End(b)
    assert not b.spin()
    a.try_send(b"x")
    assert b.spin()
    assert at_b.messages == [b"x"]


@given(st.lists(st.one_of(st.integers(0, 300), st.none()), max_size=60), st.integers(1, 500))
def test_every_message_arrives_once_in_order(sizes: list[int | None], budget: int) -> None:
    steps, a, at_a, _, at_b = pair(receive_bytes=budget)
    sent: list[bytes] = []
    waiting = False
    for number, size in enumerate(sizes):
        if size is None:
            steps.run()
            assert not waiting or at_a.writable
            at_a.writable = 0
            waiting = False
        elif a.try_send(b"%d" % number, bytes(size)):
            sent.append(b"%d" % number + bytes(size))
        else:
            waiting = True
    steps.run()
    assert [bytes(m) for m in at_b.messages] == sent


@pytest.mark.anyio
async def test_on_every_loop() -> None:
    a, b = memory_channels()
    arrived = anyio.Event()
    b.on_message = lambda message: arrived.set()
    a.try_send(b"x")
    assert not arrived.is_set()
    with anyio.fail_after(5):
        await arrived.wait()


@pytest.mark.parametrize("how", ["abort", "break"])
def test_what_came_while_nothing_was_taken_comes_before_the_end(how: str) -> None:
    steps, a, _, b, at_b = pair(receive_bytes=200)
    b.on_message = None
    assert a.try_send(b"before")
    while b.try_send(bytes(30)):
        pass
    steps.run()
    (a.abort if how == "abort" else lambda: a.break_with(LinkError("cut")))()
    steps.run()
    assert (at_b.messages, at_b.closed, at_b.writable) == ([], [], 1)
    with pytest.raises(anyio.BrokenResourceError):
        b.try_send(b"in vain")
    b.on_message = at_b.messages.append
    steps.run()
    assert at_b.messages == [b"before"]
    assert [type(error) for error in at_b.closed] == [LinkError]
