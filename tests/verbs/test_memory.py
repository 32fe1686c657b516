"""The memory pool's logic, against a registrar that keeps books instead of a device."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import mmap
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from aiordma.verbs.memory.arena import Arena, Block, Slab
from aiordma.verbs.memory.budget import MemoryLimitError, Purpose
from aiordma.verbs.memory.pool import MemoryPool
from aiordma.verbs.memory.region import MIN_BLOCK_BYTES, Region

if TYPE_CHECKING:
    from collections.abc import Callable

KIB = 1024
MIB = 1024 * KIB


class Books:
    """Registers real memory with made-up keys; refuses above ``most`` bytes in one region."""

    def __init__(self, *, remote: bool = False, most: int = 1 << 40) -> None:
        self.remote = remote
        self.most = most
        self.live: dict[int, tuple[Region, mmap.mmap]] = {}
        self.sizes: list[int] = []
        self.next_key = 1

    def register(self, length: int) -> Region:
        if length > self.most:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        memory = mmap.mmap(-1, length)
        array = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(array)
        del array
        region = Region(address, length, self.next_key, self.next_key + 1000, memory)
        self.next_key += 1
        self.live[region.lkey] = (region, memory)
        self.sizes.append(length)
        return region

    def release(self, region: Region) -> None:
        del self.live[region.lkey]

    def empty(self, address: int, length: int) -> bool:
        return False

    def withdraw(self, region: Region) -> None:
        raise AssertionError("no test here deregisters memory that is in use")

    @property
    def registered(self) -> int:
        return sum(region.length for region, _ in self.live.values())


def inside(block: Block, books: Books) -> bool:
    region, _ = books.live[block.lkey]
    return region.address <= block.address and block.address + block.length <= region.address + region.length


def test_a_block_has_the_keys_of_its_slab_and_room_for_what_was_asked() -> None:
    books = Books()
    pool = MemoryPool(slab_bytes=64 * KIB)
    block = pool.arena(books).allocate(5000)
    assert block.length == 8192
    assert inside(block, books)
    assert block.rkey == block.lkey + 1000
    assert block.address % MIN_BLOCK_BYTES == 0


def test_blocks_of_one_slab_are_reused_without_registering() -> None:
    books = Books()
    pool = MemoryPool(slab_bytes=64 * KIB)
    arena = pool.arena(books)
    for _ in range(3):
        blocks = [arena.allocate(16 * KIB) for _ in range(4)]
        assert len({block.address for block in blocks}) == 4
        for block in blocks:
            block.free()
    assert books.sizes == [64 * KIB]
    statistics = pool.statistics()
    assert statistics.allocations == 12
    assert statistics.reuses == 11
    assert statistics.used_bytes == 0
    assert statistics.used_high_water == 64 * KIB


def test_a_block_is_not_searched_for_in_slabs_that_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 500 connections there are dozens of them, and a ring is looked for with every new one."""
    arena = MemoryPool(slab_bytes=MIB).arena(Books())
    blocks = [arena.allocate(64 * KIB) for _ in range(16 * 40)]
    searched: list[Slab] = []
    take = Slab.take

    def counting(slab: Slab, order: int) -> int | None:
        searched.append(slab)
        return take(slab, order)

    monkeypatch.setattr(Slab, "take", counting)
    blocks.pop(100).free()
    assert arena.allocate(64 * KIB).address
    assert len(searched) == 1


def test_freed_neighbours_join_to_a_whole_slab_again() -> None:
    books = Books()
    arena = MemoryPool(slab_bytes=256 * KIB).arena(books)
    blocks = [arena.allocate(MIN_BLOCK_BYTES) for _ in range(64)]
    for block in blocks[::2] + blocks[1::2]:
        block.free()
    whole = arena.allocate(256 * KIB)
    assert whole.length == 256 * KIB
    assert len(books.sizes) == 1


def test_a_small_owner_starts_small_and_grows_by_doubling() -> None:
    books = Books()
    arena = MemoryPool(slab_bytes=1 * MIB).arena(books, first_slab_bytes=200 * KIB)
    for _ in range(9):
        arena.allocate(256 * KIB)
    assert books.sizes == [256 * KIB, 512 * KIB, 1 * MIB, 1 * MIB]


def test_a_block_larger_than_a_slab_gets_its_own() -> None:
    books = Books()
    arena = MemoryPool(slab_bytes=64 * KIB).arena(books)
    assert arena.allocate(300 * KIB).length == 512 * KIB
    assert books.sizes == [512 * KIB]
    arena.allocate(MIN_BLOCK_BYTES)
    assert books.sizes == [512 * KIB, 64 * KIB]


def test_downgrade_gives_the_next_smaller_size() -> None:
    books = Books()
    pool = MemoryPool(slab_bytes=64 * KIB, limit_bytes=192 * KIB)
    arena = pool.arena(books)
    arena.allocate(64 * KIB)
    assert arena.allocate(256 * KIB, minimum=16 * KIB).length == 128 * KIB
    assert pool.statistics().downgrades == 1
    assert pool.statistics().registered_bytes == 192 * KIB


def test_the_limit_is_hard_and_its_error_says_what_to_do() -> None:
    books = Books()
    pool = MemoryPool(slab_bytes=64 * KIB, limit_bytes=128 * KIB)
    arena = pool.arena(books)
    held = [arena.allocate(64 * KIB) for _ in range(2)]
    with pytest.raises(MemoryLimitError, match=r"16384 bytes: 131072 of 131072.*memory_limit_bytes"):
        arena.allocate(256 * KIB, minimum=16 * KIB)
    assert pool.statistics().failures == 1
    held[0].free()
    assert arena.allocate(16 * KIB).length == 16 * KIB


def test_idle_slabs_of_one_owner_make_room_for_another() -> None:
    rich, poor = Books(), Books()
    pool = MemoryPool(slab_bytes=64 * KIB, limit_bytes=64 * KIB)
    pool.arena(rich).allocate(64 * KIB).free()
    assert rich.registered == 64 * KIB
    pool.arena(poor).allocate(64 * KIB)
    assert (rich.registered, poor.registered) == (0, 64 * KIB)


def test_a_slab_shrinks_to_what_the_limit_leaves() -> None:
    books = Books()
    arena = MemoryPool(slab_bytes=1 * MIB, limit_bytes=300 * KIB).arena(books)
    arena.allocate(10 * KIB)
    assert books.sizes == [256 * KIB]


def test_a_device_that_refuses_large_regions_is_asked_for_smaller_ones() -> None:
    books = Books(most=64 * KIB)
    pool = MemoryPool(slab_bytes=1 * MIB)
    arena = pool.arena(books)
    assert arena.allocate(MIN_BLOCK_BYTES).length == MIN_BLOCK_BYTES
    assert books.sizes == [64 * KIB]
    assert arena.allocate(256 * KIB, minimum=16 * KIB).length == 64 * KIB
    with pytest.raises(MemoryLimitError, match=r"Cannot allocate memory.*ulimit -l") as caught:
        arena.allocate(256 * KIB)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_block_is_given_back_exactly_once() -> None:
    arena = MemoryPool(slab_bytes=64 * KIB).arena(Books())
    block = arena.allocate(MIN_BLOCK_BYTES)
    block.free()
    assert block.freed
    with pytest.raises(ValueError, match="freed twice"):
        block.free()
    with pytest.raises(ValueError, match="given back"):
        block.view()
    assert arena.used_bytes == 0


@pytest.mark.parametrize(("length", "minimum"), [(0, None), (-1, None), (8, 0), (8, 9)])
def test_senseless_sizes_are_refused(length: int, minimum: int | None) -> None:
    arena = MemoryPool(slab_bytes=64 * KIB).arena(Books())
    with pytest.raises(ValueError, match="minimum"):
        arena.allocate(length, minimum)


@pytest.mark.parametrize("slab_bytes", [0, 1000, 4095, 12288])
def test_slab_size_is_a_power_of_two(slab_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"slab_bytes={slab_bytes}"):
        MemoryPool(slab_bytes=slab_bytes)
    with pytest.raises(ValueError, match="limit_bytes=1"):
        MemoryPool(limit_bytes=1)


def test_memory_that_a_peer_could_write_is_zeroed_before_reuse() -> None:
    arena = MemoryPool(slab_bytes=64 * KIB).arena(Books(remote=True))
    block = arena.allocate(64 * KIB)
    block.view()[:] = b"x" * block.length
    block.free()
    again = arena.allocate(64 * KIB)
    assert bytes(again.view()) == bytes(64 * KIB)
    again.view()[:100] = b"y" * 100
    again.free(used_bytes=100)
    assert bytes(arena.allocate(64 * KIB).view()) == bytes(64 * KIB)


def test_only_the_used_part_is_zeroed() -> None:
    arena = MemoryPool(slab_bytes=64 * KIB).arena(Books(remote=True))
    block = arena.allocate(64 * KIB)
    block.view()[:] = b"x" * block.length
    block.free(used_bytes=MIN_BLOCK_BYTES)
    again = arena.allocate(64 * KIB).view()
    assert bytes(again[:MIN_BLOCK_BYTES]) == bytes(MIN_BLOCK_BYTES)
    assert again[MIN_BLOCK_BYTES] == ord("x")


def test_memory_nobody_else_can_write_is_not_zeroed() -> None:
    arena = MemoryPool(slab_bytes=64 * KIB).arena(Books(remote=False))
    block = arena.allocate(64 * KIB)
    block.view()[0] = 1
    block.free()
    assert arena.allocate(64 * KIB).view()[0] == 1


def test_trim_releases_what_stayed_idle_between_two_calls() -> None:
    books = Books()
    pool = MemoryPool(slab_bytes=64 * KIB)
    arena = pool.arena(books)
    arena.allocate(64 * KIB).free()
    assert pool.trim() == 0
    arena.allocate(64 * KIB).free()
    assert pool.trim() == 0
    assert pool.trim() == 64 * KIB
    assert books.live == {}
    assert pool.statistics().slabs_released == 1


def test_a_closed_arena_releases_each_slab_with_its_last_block() -> None:
    books = Books(remote=True)
    pool = MemoryPool(slab_bytes=64 * KIB)
    arena = pool.arena(books)
    first, second = arena.allocate(64 * KIB), arena.allocate(64 * KIB)
    arena.allocate(64 * KIB).free()
    arena.close()
    arena.close()
    assert books.registered == 128 * KIB
    with pytest.raises(ValueError, match="closed"):
        arena.allocate(1)
    first.free()
    assert books.registered == 64 * KIB
    second.free()
    assert books.live == {}
    assert pool.statistics().registered_bytes == pool.statistics().used_bytes == 0


def test_closing_the_pool_closes_its_arenas() -> None:
    books = Books()
    pool = MemoryPool(slab_bytes=64 * KIB)
    arenas = [pool.arena(books) for _ in range(3)]
    block = arenas[0].allocate(1)
    arenas[1].allocate(1).free()
    pool.close()
    assert all(arena.closed for arena in arenas)
    assert books.registered == 64 * KIB
    block.free()
    assert books.registered == 0


class PoolMachine(RuleBasedStateMachine):
    """Two owners under one limit: no overlap, nothing lost, the limit kept, books that agree."""

    def __init__(self) -> None:
        super().__init__()
        self.books = [Books(remote=True), Books(remote=False)]
        self.pool = MemoryPool(slab_bytes=64 * KIB, limit_bytes=200 * KIB)
        self.arenas: list[Arena] = [
            self.pool.arena(self.books[0], first_slab_bytes=16 * KIB),
            self.pool.arena(self.books[1]),
        ]
        self.held: dict[int, Block] = {}

    blocks = Bundle("blocks")

    @rule(target=blocks, owner=st.integers(0, 1), length=st.integers(1, 150 * KIB), share=st.integers(1, 8))
    def allocate(self, owner: int, length: int, share: int) -> Block | None:
        minimum = max(1, length // share)
        try:
            block = self.arenas[owner].allocate(length, minimum)
        except MemoryLimitError:
            # Only for want of memory: what is registered plus the smallest slab for it is too much.
            need = max(MIN_BLOCK_BYTES, 1 << (minimum - 1).bit_length())
            assert self.pool.statistics().registered_bytes + need > self.pool.limit_bytes
            return None
        assert block.length >= minimum
        assert inside(block, self.books[owner])
        if owner == 0:
            assert not any(block.view())
            block.view()[:: max(1, block.length - 1)] = b"x" * len(block.view()[:: max(1, block.length - 1)])
        self.held[block.address] = block
        return block

    @rule(block=consumes(blocks))
    def free(self, block: Block | None) -> None:
        if block is not None:
            del self.held[block.address]
            block.free()

    @rule(now=st.booleans())
    def trim(self, now: bool) -> None:
        self.pool.trim(now=now)

    @rule(owner=st.integers(0, 1))
    def replace_arena(self, owner: int) -> None:
        self.arenas[owner].close()
        self.arenas[owner] = self.pool.arena(self.books[owner])

    @invariant()
    def blocks_do_not_overlap(self) -> None:
        spans = sorted((block.address, block.length) for block in self.held.values())
        for (address, length), (following, _) in itertools.pairwise(spans):
            assert address + length <= following

    @invariant()
    def books_agree(self) -> None:
        statistics = self.pool.statistics()
        assert statistics.registered_bytes == sum(books.registered for books in self.books)
        assert statistics.used_bytes == sum(block.length for block in self.held.values())
        assert statistics.registered_bytes <= statistics.limit_bytes
        assert statistics.slabs == sum(len(books.live) for books in self.books)

    def teardown(self) -> None:
        for block in self.held.values():
            block.free()
        self.pool.close()
        assert not any(books.live for books in self.books)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class Sender:
    """Waits for memory for messages, and takes what it gets."""

    def __init__(self, pool: MemoryPool, arena: Arena, length: int, purpose: Purpose) -> None:
        self.pool, self.arena, self.length, self.purpose = pool, arena, length, purpose
        self.blocks: list[Block] = []
        self.calls = 0

    def attempt(self) -> None:
        if not self.pool.queue.must_wait(self.purpose):
            try:
                self.blocks.append(self.arena.allocate(self.length))
                return
            except MemoryLimitError:
                pass
        self.pool.queue.wait(self, self.purpose)

    def on_memory(self) -> None:
        self.calls += 1
        self.attempt()


class Loop:
    """What is to be called soon."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


def test_connections_leave_a_quarter_to_messages() -> None:
    pool = MemoryPool(slab_bytes=64 * KIB, limit_bytes=1 * MIB)
    rings, sources = pool.arena(Books()), pool.arena(Books(), purpose=Purpose.SOURCES)
    pool.budget.begin_messages()
    held = [rings.allocate(64 * KIB) for _ in range(12)]
    with pytest.raises(MemoryLimitError, match=r"786432 by connections.*262144 are kept for messages"):
        rings.allocate(MIN_BLOCK_BYTES)
    assert pool.budget.longest_source == 64 * KIB
    block = sources.allocate(pool.budget.longest_source)
    with pytest.raises(MemoryLimitError, match="AIORDMA_MEMORY_LIMIT_BYTES"):
        sources.allocate(256 * KIB)
    block.free()
    pool.budget.end_messages()
    rings.allocate(64 * KIB)
    with pytest.raises(MemoryLimitError, match="for messages"):
        pool.budget.begin_messages()
    held.pop().free()
    pool.budget.begin_messages()


def test_nothing_is_kept_for_messages_where_nobody_sends_them() -> None:
    pool = MemoryPool(slab_bytes=64 * KIB, limit_bytes=1 * MIB)
    rings = pool.arena(Books())
    for _ in range(16):
        rings.allocate(64 * KIB)


def test_slabs_with_little_in_use_do_not_keep_messages_waiting() -> None:
    """A thousand owners of a slab each, as with a thousand clients: what counts is registered, not in use."""
    pool = MemoryPool(slab_bytes=64 * KIB, limit_bytes=1 * MIB)
    pool.budget.begin_messages()
    for _ in range(40):
        with contextlib.suppress(MemoryLimitError):
            pool.arena(Books(), first_slab_bytes=64 * KIB).allocate(MIN_BLOCK_BYTES)
    assert pool.statistics().used_bytes < 1 * MIB // 2
    sources = [pool.arena(Books(), purpose=Purpose.SOURCES) for _ in range(40)]
    for source in sources:
        source.allocate(pool.budget.longest_source).free()


def test_idle_slabs_of_others_make_room_one_by_one() -> None:
    books = [Books() for _ in range(4)]
    pool = MemoryPool(slab_bytes=64 * KIB, limit_bytes=256 * KIB)
    for owner in books:
        pool.arena(owner).allocate(64 * KIB).free()
    pool.arena(Books()).allocate(64 * KIB)
    assert [owner.registered for owner in books] == [0, 64 * KIB, 64 * KIB, 64 * KIB]


def test_what_waits_has_its_turn_and_a_thousand_do_not_ask_each_time() -> None:
    loop = Loop()
    pool = MemoryPool(slab_bytes=64 * KIB, limit_bytes=256 * KIB, call_soon=loop.call_soon)
    senders = [
        Sender(pool, pool.arena(Books(), purpose=Purpose.SOURCES), 64 * KIB, Purpose.SOURCES)
        for _ in range(100)
    ]
    for sender in senders:
        sender.attempt()
    loop.turn()
    assert [len(sender.blocks) for sender in senders] == [1] * 3 + [0] * 97
    for number in range(3, 100):
        senders[number - 3].blocks.pop().free()
        loop.turn()
        assert len(senders[number].blocks) == 1
    assert max(sender.calls for sender in senders) <= 5
    assert not loop.due


def test_one_that_gave_up_does_not_keep_others_waiting() -> None:
    loop = Loop()
    pool = MemoryPool(slab_bytes=64 * KIB, limit_bytes=256 * KIB, call_soon=loop.call_soon)
    arena = pool.arena(Books(), purpose=Purpose.SOURCES)
    held = [arena.allocate(64 * KIB) for _ in range(3)]
    gone, other = (Sender(pool, arena, 64 * KIB, Purpose.SOURCES) for _ in range(2))
    gone.attempt()
    gone.attempt = lambda: None  # type: ignore[method-assign]
    for block in held:
        block.free()
    other.attempt()
    loop.turn()
    assert len(other.blocks) == 1


def test_pulls_do_not_wait_behind_announcements() -> None:
    """Sources may have no more; sinks have the rest, or two ends would wait for each other."""
    loop = Loop()
    pool = MemoryPool(slab_bytes=64 * KIB, limit_bytes=256 * KIB, call_soon=loop.call_soon)
    sources, sinks = (pool.arena(Books(), purpose=purpose) for purpose in (Purpose.SOURCES, Purpose.SINKS))
    held = [sources.allocate(64 * KIB) for _ in range(3)]
    waiting = Sender(pool, sources, 64 * KIB, Purpose.SOURCES)
    waiting.attempt()
    pulls = [Sender(pool, sinks, 64 * KIB, Purpose.SINKS) for _ in range(2)]
    for pull in pulls:
        pull.attempt()
    assert [len(pull.blocks) for pull in pulls] == [1, 0]
    pulls[0].blocks.pop().free()
    loop.turn()
    assert len(pulls[1].blocks) == 1
    assert not waiting.blocks
    for block in held[:2]:
        block.free()
    loop.turn()
    assert len(waiting.blocks) == 1


class Both:
    """Waits for a share, and then asks for a sink, as a channel does."""

    def __init__(self, pool: MemoryPool, sink: Sender) -> None:
        self.pool, self.sink, self.calls = pool, sink, 0

    def on_memory(self) -> None:
        self.calls += 1
        self.pool.queue.must_wait(self.sink.purpose)
        self.pool.queue.wait(self, Purpose.COPIES)


def test_who_waits_for_a_share_keeps_no_pull_waiting_and_the_loop_rests() -> None:
    loop = Loop()
    pool = MemoryPool(slab_bytes=64 * KIB, limit_bytes=256 * KIB, call_soon=loop.call_soon)
    sinks = pool.arena(Books(), purpose=Purpose.SINKS)
    pulls = [Sender(pool, sinks, 64 * KIB, Purpose.SINKS) for _ in range(5)]
    copier = Both(pool, pulls[0])
    pool.queue.wait(copier, Purpose.COPIES)
    for pull in pulls:
        pull.attempt()
    assert [len(pull.blocks) for pull in pulls] == [1, 1, 1, 1, 0]
    pool.queue.on_freed()
    loop.turn()
    assert copier.calls == 1
    assert not loop.due
    pulls[0].blocks.pop().free()
    loop.turn()
    assert len(pulls[4].blocks) == 1


def test_what_is_parked_is_closed_before_connections_are_refused() -> None:
    pool = MemoryPool(slab_bytes=64 * KIB, limit_bytes=128 * KIB)
    arena = pool.arena(Books())
    parked = [arena.allocate(64 * KIB), arena.allocate(64 * KIB)]

    def close_one() -> bool:
        if parked:
            parked.pop().free()
            return True
        return False

    pool.budget.reclaim = close_one
    arena.allocate(64 * KIB, minimum=MIN_BLOCK_BYTES)
    assert len(parked) == 1


def test_a_higher_limit_lets_what_waits_go_on() -> None:
    loop = Loop()
    pool = MemoryPool(slab_bytes=64 * KIB, limit_bytes=64 * KIB, call_soon=loop.call_soon)
    sinks = pool.arena(Books(), purpose=Purpose.SINKS)
    sinks.allocate(64 * KIB)
    waiting = Sender(pool, sinks, 64 * KIB, Purpose.SINKS)
    waiting.attempt()
    pool.set_limit(128 * KIB)
    loop.turn()
    assert len(waiting.blocks) == 1
