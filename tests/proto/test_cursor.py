"""Ring windows: wrap, full and empty, forged cursors, and when the reader must tell the writer."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from .cores import CORES


def test_cursor_arithmetic(core: Any) -> None:
    cursor = core.cursor.Cursor
    assert str(cursor.at(65536 * 3 + 17, 65536)) == "0003:00000011"
    assert cursor.at(10, 16).advanced(7) == cursor(1, 1, 16)
    assert cursor(0, 3, 16).distance_from(cursor(0xFFFF, 15, 16)) == 4
    assert cursor(5, 5, 16).distance_from(cursor(5, 5, 16)) == 0


@pytest.mark.parametrize("size", [0, -1, 3, 48, (1 << 31) + 1, 1 << 32])
def test_sizes_that_are_refused(core: Any, size: int) -> None:
    for window in (core.cursor.TxWindow, core.cursor.RxWindow):
        with pytest.raises(ValueError, match="power of two"):
            window(size)
    with pytest.raises(ValueError, match="update_limit"):
        core.cursor.RxWindow(16, 16)


def test_full_and_empty_are_different(core: Any) -> None:
    tx, rx = core.cursor.TxWindow(16), core.cursor.RxWindow(16)
    assert (tx.free(), tx.contiguous(), rx.available(), rx.contiguous()) == (16, 16, 0, 0)
    assert tx.produce(16) == 0
    assert (tx.wrap(), tx.count()) == (1, 0)
    assert (tx.free(), tx.contiguous(), tx.used()) == (0, 0, 16)
    assert tx.produce(1) == -1
    assert rx.peer_produced(1, 0) == 16
    assert (rx.available(), rx.contiguous()) == (16, 16)
    assert rx.consume(17) == -1
    assert rx.consume(16) == 0
    assert tx.peer_consumed(1, 0) == 16
    assert tx.free() == 16


def test_largest_ring(core: Any) -> None:
    tx, rx = core.cursor.TxWindow(1 << 31), core.cursor.RxWindow(1 << 31)
    assert tx.free() == tx.contiguous() == 1 << 31
    assert tx.produce(1 << 31) == 0
    assert tx.used() == 1 << 31
    assert rx.peer_produced(1, 0) == 1 << 31
    assert rx.available() == rx.contiguous() == 1 << 31


def test_contiguous_stops_at_the_end_of_the_ring(core: Any) -> None:
    tx, rx = core.cursor.TxWindow(16), core.cursor.RxWindow(16)
    tx.produce(12)
    rx.peer_produced(0, 12)
    rx.consume(10)
    rx.mark_told()
    tx.peer_consumed(0, 10)
    assert (tx.offset(), tx.free(), tx.contiguous()) == (12, 14, 4)
    tx.produce(9)
    assert rx.peer_produced(1, 5) == 9
    assert (rx.offset(), rx.available(), rx.contiguous()) == (10, 11, 6)


@given(
    size_log=st.integers(0, 8),
    start=st.integers(0, 1 << 26),
    unread=st.integers(0, 256),
    untold=st.integers(0, 256),
    wrap=st.integers(0, 65535),
    count=st.integers(0, (1 << 32) - 1),
    near=st.booleans(),
)
@settings(max_examples=400)
def test_forged_cursors(
    size_log: int, start: int, unread: int, untold: int, wrap: int, count: int, near: bool
) -> None:
    """Exactly the cursors that an honest peer could have are taken, at any place of the 16-bit wrap."""
    size = 1 << size_log
    unread %= size + 1
    untold %= size - unread + 1
    for core in CORES.values():
        tx, rx = core.cursor.TxWindow(size), core.cursor.RxWindow(size)
        # Bring both ends to `start` consumed and told bytes, as an honest peer would.
        for _ in range(start % (3 * size + 1)):
            tx.produce(1)
            rx.peer_produced(tx.wrap(), tx.count())
            rx.consume(1)
            rx.mark_told()
            tx.peer_consumed(rx.wrap(), rx.count())
        base = tx.prod
        tx.produce(unread + untold)
        rx.peer_produced(tx.wrap(), tx.count())
        rx.consume(untold)
        w, c = (((base // size) + wrap % 4 - 1) & 0xFFFF, count % (size + 2)) if near else (wrap, count)

        legal = {base + i for i in range(unread + untold + 1)}
        hits = [t for t in legal if ((t // size) & 0xFFFF, t % size) == (w, c)]
        assert tx.peer_consumed(w, c) == (hits[0] - base if hits else -1)
        assert tx.cons == (hits[0] if hits else base)

        legal = {tx.prod + i for i in range(base + size - tx.prod + 1)}
        hits = [t for t in legal if ((t // size) & 0xFFFF, t % size) == (w, c)]
        assert rx.peer_produced(w, c) == (hits[0] - tx.prod if hits else -1)
        assert 0 <= rx.available() <= size


def test_wrap_field_wraps(core: Any) -> None:
    tx, rx = core.cursor.TxWindow(4), core.cursor.RxWindow(4)
    for _ in range(65536 + 5):
        assert tx.produce(4) == 0
        assert rx.peer_produced(tx.wrap(), tx.count()) == 4
        assert rx.consume(4) == 0
        rx.mark_told()
        assert tx.peer_consumed(rx.wrap(), rx.count()) == 4
    assert tx.wrap() == 5
    assert tx.prod == 4 * (65536 + 5)


def reader(core: Any, *, size: int = 65536, unread: int, consumed: int) -> Any:
    rx = core.cursor.RxWindow(size)
    total = unread + consumed
    assert rx.peer_produced(total // size, total % size) == total
    assert rx.consume(consumed) == 0
    return rx


def test_update_rule(core: Any) -> None:
    limit = 6553
    assert core.cursor.RxWindow(65536).update_limit == limit
    assert core.cursor.RxWindow(1024).update_limit == 256
    assert reader(core, unread=0, consumed=0).update_due() == 0
    # Little was read: no message, whatever the room.
    assert reader(core, unread=65536 - limit, consumed=limit).update_due() == 0
    # More than the limit was read, and the sender sees less than a quarter of the ring.
    assert reader(core, unread=49152, consumed=limit + 1).update_due() == 1
    # The same, but the sender still sees room enough.
    assert reader(core, unread=32768, consumed=limit + 1).update_due() == 0
    assert reader(core, unread=100, consumed=limit + 1).update_due() == 0
    rx = reader(core, unread=100, consumed=limit + 1)
    rx.peer_blocked = 1
    assert rx.update_due() == 1
    # A blocked writer is told the last bytes, too.
    rx = reader(core, unread=0, consumed=5)
    assert rx.update_due() == 0
    rx.peer_blocked = 1
    assert rx.update_due() == 1
    rx.mark_told()
    assert rx.update_due() == 0
    # A request is answered once, even when there is nothing new.
    rx.requested = 1
    assert rx.update_due() == 1
    rx.mark_told()
    assert rx.update_due() == 0


def test_a_ring_that_cannot_be_is_refused(core: Any) -> None:
    tx, rx = core.cursor.TxWindow(16), core.cursor.RxWindow(16)
    tx.produce(9)
    assert [tx.resize(size) for size in (8, 0, 24)] == [-1, -1, -1]
    assert tx.resize(32) == 0
    assert tx.free() == 23
    assert rx.peer_produced(tx.wrap(), tx.count()) == 9
    assert [rx.resize(position, 32) for position in (8, 17)] == [-1, -1]
    assert [rx.resize(9, size) for size in (8, 0, 24)] == [-2, -2, -2]
    assert (rx.prod, rx.size) == (9, 16)
    assert rx.resize(12, 32) == 3
    assert (rx.prod, rx.size, rx.update_limit) == (12, 32, 8)


def test_blocked_writer_tells_only_what_the_reader_cannot_see(core: Any) -> None:
    tx = core.cursor.TxWindow(16)
    tx.produce(16)
    assert tx.mark_blocked() == 0  # full: the reader knows
    tx = core.cursor.TxWindow(16)
    tx.produce(10)
    assert tx.mark_blocked() == 1
    assert tx.blocked == 1
    assert tx.peer_consumed(0, 4) == 4
    assert tx.blocked == 0


class Ring(RuleBasedStateMachine):
    """A ring of real bytes between the windows, messages in flight in both directions. The reader may replace
    the ring by one of another size: it asks, the writer pauses, and goes on in the ring that it is given."""

    core: Any

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(1)
        #: where the writer writes, and where the reader reads
        self.there = self.here = bytearray(64)
        self.tx = self.core.cursor.TxWindow(64)
        self.rx = self.core.cursor.RxWindow(64)
        self.sent = bytearray()
        self.received = bytearray()
        self.to_reader: list[tuple[int, int] | int] = []
        self.to_writer: list[tuple[int, int] | bytearray | None] = []
        self.paused = False
        #: the size of the ring that was asked for
        self.wanted = 0

    @rule(n=st.integers(0, 300))
    def write(self, n: int) -> None:
        if self.paused:
            return
        data = self.rng.randbytes(min(n, self.tx.free()))
        left = data
        while left:
            chunk = left[: self.tx.contiguous()]
            assert chunk
            at = self.tx.offset()
            size = len(self.there)
            self.there[at : at + len(chunk)] = chunk
            assert len(self.there) == size
            assert self.tx.produce(len(chunk)) == 0
            left = left[len(chunk) :]
        self.sent += data
        self.to_reader.append((self.tx.wrap(), self.tx.count()))

    @rule(n=st.integers(0, 300))
    def read(self, n: int) -> None:
        n = min(n, self.rx.available())
        while n:
            take = min(n, self.rx.contiguous())
            at = self.rx.offset()
            self.received += self.here[at : at + take]
            assert self.rx.consume(take) == 0
            n -= take

    @rule()
    def tell(self) -> None:
        self.rx.mark_told()
        self.to_writer.append((self.rx.wrap(), self.rx.count()))

    @rule(shift=st.integers(2, 9))
    def ask_for_another_size(self, shift: int) -> None:
        if not self.wanted:
            self.wanted = 1 << shift
            self.to_writer.append(None)

    def replace(self, position: int) -> None:
        size, self.wanted = self.wanted, 0
        if position - self.rx.told > size:
            self.tell()
        unread = self.rx.prod
        if self.rx.resize(position, size) >= 0:
            ring = bytearray(size)
            assert position >= unread
            for at in range(self.rx.cons, position):
                ring[at % size] = self.here[at % len(self.here)]
            self.here = ring
        self.to_writer.append(self.here)

    @precondition(lambda self: self.to_reader)
    @rule()
    def deliver_to_reader(self) -> None:
        message = self.to_reader.pop(0)
        if isinstance(message, int):
            self.replace(message)
        else:
            assert self.rx.peer_produced(*message) >= 0

    @precondition(lambda self: self.to_writer)
    @rule()
    def deliver_to_writer(self) -> None:
        message = self.to_writer.pop(0)
        if message is None:
            assert not self.paused
            self.paused = True
            self.to_reader.append(self.tx.prod)
        elif isinstance(message, bytearray):
            assert self.paused
            assert self.tx.resize(len(message)) == 0
            self.paused, self.there = False, message
        else:
            assert self.tx.peer_consumed(*message) >= 0

    @invariant()
    def counts_agree(self) -> None:
        assert self.received == self.sent[: len(self.received)]
        assert self.tx.cons <= self.rx.cons <= self.rx.prod <= self.tx.prod
        assert self.tx.cons <= self.rx.told <= self.rx.cons
        assert self.tx.used() <= len(self.there) == self.tx.size
        assert self.rx.available() <= len(self.here) == self.rx.size
        assert self.tx.free() + self.tx.used() == self.tx.size


@pytest.mark.parametrize("name", sorted(CORES))
def test_ring_state_machine(name: str) -> None:
    machine = type(f"Ring_{name}", (Ring,), {"core": CORES[name]})
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=60))
