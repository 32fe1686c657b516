"""The outbox of ``send_soon()``, on a pipe that calls in the middle of a send, as a poll for room does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from anyio import BrokenResourceError
from hypothesis import given
from hypothesis import strategies as st

from aiordma.wake.message_outbox import MessageOutbox
from aiordma.wake.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable


class CallingPipe:
    """Takes what there is room for; while it polls it gets more room, and says so, before it returns."""

    def __init__(self, rooms: list[int]) -> None:
        self.got = bytearray()
        self.room = 0
        self.rooms = rooms  # one after the other, as the peer frees them
        self.on_writable: Callable[[], None] | None = None
        self.in_the_middle: Callable[[], None] | None = None

    def more_room(self) -> bool:
        if not self.rooms:
            return False
        self.room += self.rooms.pop(0)
        assert self.on_writable is not None
        self.on_writable()
        return True

    def try_send(self, data: Any, start: int = 0) -> int:
        n = min(self.room, len(data) - start)
        self.room -= n
        self.got += memoryview(data)[start : start + n]
        return n

    def send_eof(self) -> None:
        raise AssertionError

    def poll_send(self, data: Any, start: int = 0) -> int:
        placed = self.try_send(data, start)
        if self.in_the_middle is not None:
            self.in_the_middle()
        polled = self.more_room()
        return placed + (self.try_send(data, start + placed) if polled else 0)


sizes = st.lists(st.integers(1, 9000), min_size=1, max_size=6)


@given(sizes=sizes, rooms=st.lists(st.integers(1, 6000), max_size=8), keeps_polling=st.booleans())
def test_room_that_comes_while_a_send_polls_changes_no_order(
    sizes: list[int], rooms: list[int], keeps_polling: bool
) -> None:
    pipe = CallingPipe([*rooms, 60_000])
    outbox = Outbox(pipe, None)
    parts = [bytes([65 + at]) * size for at, size in enumerate(sizes)]
    outbox.add(parts, 1 << 20)
    while not outbox.push_by(pipe.poll_send):
        if not keeps_polling:
            break
    while pipe.more_room():
        pass
    assert pipe.got == b"".join(parts)
    assert (outbox.nbytes, pipe.rooms) == (0, [])


def test_a_call_in_the_middle_is_not_lost_where_polling_ends() -> None:
    pipe = CallingPipe([])
    rooms_told = []
    outbox = Outbox(pipe, lambda: rooms_told.append(outbox.nbytes))
    outbox.add([b"x" * 5000, b"y" * 5000], 1 << 20)

    def late() -> None:  # nothing is placed any more by the send in which it comes
        pipe.in_the_middle = None
        pipe.room = 20_000
        assert pipe.on_writable is not None
        pipe.on_writable()

    pipe.in_the_middle = late
    assert outbox.push_by(pipe.poll_send)
    assert pipe.got == b"x" * 5000 + b"y" * 5000
    assert rooms_told == [0]


def test_what_is_dropped_in_the_middle_is_gone() -> None:
    pipe = CallingPipe([])
    pipe.room = 100
    outbox = Outbox(pipe, None)
    outbox.add([b"x" * 5000, b"y" * 5000], 1 << 20)
    pipe.in_the_middle = lambda: outbox.drop(BrokenResourceError())
    assert outbox.push_by(pipe.poll_send)
    assert outbox.nbytes == 0
    with pytest.raises(BrokenResourceError):
        outbox.check()
    outbox.add(b"z", 1 << 20)
    assert outbox.nbytes == 1


def test_a_message_is_sent_once_when_the_pipe_calls_while_it_is_sent() -> None:
    sent: list[bytes] = []

    class Messages:
        on_writable: Callable[[], None] | None = None

        def try_send(self, message: Any) -> bool:
            sent.append(bytes(message))
            if len(sent) == 1:
                assert self.on_writable is not None
                self.on_writable()
            return True

    outbox = MessageOutbox(Messages(), None, lambda size: None)
    outbox.add([b"1", b"2", b"3"], 1 << 20)
    assert outbox.push()
    assert sent == [b"1", b"2", b"3"]
