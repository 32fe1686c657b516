"""Wrong bytes, errors and hangs get into the ledger, and from there into reports."""

from __future__ import annotations

from functools import partial
from random import Random

import anyio
import pytest

import aiordma

from . import datagrams, ledger, streams
from .ledger import Hang, Ledger
from .pattern import WrongByte

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the stacks of a hang: they come from a file, which a test must not read in the loop."""
    monkeypatch.setattr(ledger, "waiting", lambda: "stacks")


async def test_a_hang_is_reported_and_cancelled() -> None:
    book = Ledger(patience=0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(book.watch)
        with pytest.raises(Hang), book.piece("streams"):
            await anyio.sleep_forever()
        tasks.cancel_scope.cancel()
    report = book.report()
    assert report["done"] == {}
    assert report["faults"] == ["streams: hang: not done after 0.01 s\nstacks"]
    # The work that was cancelled ends with this, possibly in groups. It has been reported.
    book.fault("streams", ExceptionGroup("", [Hang("streams")]))
    assert book.report()["faults"] == []


async def test_work_counts_if_it_ends_well() -> None:
    book = Ledger(patience=30)
    with book.piece("calls") as piece:
        piece.size = 7
    with pytest.raises(ValueError, match="bad"), book.piece("calls"):
        raise ValueError("bad")
    assert (book.done["calls"], book.moved) == (1, 7)


async def test_many_faults_are_cut() -> None:
    book = Ledger(patience=30)
    for _ in range(100):
        book.fault("calls", "x" * 100_000)
    faults = book.report()["faults"]
    assert len(faults) == ledger.MOST_FAULTS
    assert max(map(len, faults)) < ledger.MOST_TEXT + 100


async def test_a_wrong_byte_on_a_stream_is_found() -> None:
    book = Ledger(patience=30)
    async with (
        await aiordma.listen(streams.LOCAL, 0) as listener,
        anyio.create_task_group() as tasks,
        streams.connected(book, listener.port) as stream,
    ):
        tasks.start_soon(partial(streams.answer, ledger=book), await listener.accept())
        exchange = streams.Exchange(stream, streams.Order.random(Random(1), b"e"), Random(1))
        await exchange.begin()
        await exchange.both(300_000)
        await stream.send(b"not a part of the pattern")
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await exchange.receive(25)
    (fault,) = book.report()["faults"]
    assert "WrongByte: 25 of 25 bytes" in fault
    assert "nowhere in the pattern" in fault


async def test_an_exchanged_message_is_found() -> None:
    message = datagrams.message(7, 100, 50, False)
    assert not datagrams.opened(message, 7)
    with pytest.raises(WrongByte, match="message 7 of 63 bytes where 8 was due"):
        datagrams.opened(message, 8)
    with pytest.raises(WrongByte, match="1 of 50 bytes at 100 are wrong"):
        datagrams.opened(message[:-1] + bytes([message[-1] ^ 1]), 7)
