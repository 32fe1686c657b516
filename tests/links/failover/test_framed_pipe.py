"""The transport of a stream on TCP alone, on a connection that delivers when the test wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from aiordma import wake
from aiordma.errors import Code, FallbackReason
from aiordma.links.failover.framed_pipe import FramedPipe
from aiordma.proto.frames import MAX_BODY_BYTES, data_header
from tests.health import until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


class Delivery:
    """A carrier (``tcp_carrier.py``) whose bytes come from the test."""

    def __init__(self) -> None:
        self.closed = False
        self.failure = None
        self.pending = 0
        self.watched = False
        self.on_input: Callable[[], None] | None = None
        self._arrived = bytearray()

    def read(self, size: int) -> bytes | None:
        data = bytes(self._arrived[:size])
        del self._arrived[:size]
        return data or None

    def watch(self, on: bool) -> None:
        self.watched = on

    def arrive(self, size: int) -> None:
        """Frames with ``size`` bytes of data."""
        while size:
            part = min(size, MAX_BODY_BYTES)
            self._arrived += data_header(part) + bytes(part)
            size -= part
        if self.watched and self.on_input is not None:
            self.on_input()


def framed_on(delivery: Delivery) -> FramedPipe:
    reason = FallbackReason(Code.SWITCHED, "a test", Code.SWITCHED, None)
    return FramedPipe(cast("Any", delivery), wake.current(), "the peer", b"", reason)


async def test_what_a_reader_has_taken_is_no_reason_not_to_read_on() -> None:
    """A message of the negotiation may be next, and a reader that has all it wanted asks for no more."""
    delivery = Delivery()
    framed = framed_on(delivery)
    await until(lambda: delivery.watched)
    delivery.arrive(300_000)
    delivery.arrive(300_000)
    assert not delivery.watched, "it must not read without limit for a user that does not"
    left = 600_000
    while left:
        left -= len(framed.try_receive(min(left, 65536)) or b"")
    await until(lambda: delivery.watched)
    told: list[bool] = []
    framed.on_readable = lambda: told.append(True)
    delivery.arrive(1)
    assert told == [True]
    assert framed.readable == 1
