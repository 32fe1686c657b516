"""Large bytes objects that are reused: only when no other reference can see it."""

from __future__ import annotations

import pytest

pytest.importorskip("aiordma.datapath._bytes_pool", reason="the compiled modules are not built")

from aiordma.datapath._bytes_pool import SpareBytes

SIZE = 100_000


def test_what_was_dropped_is_used_again() -> None:
    spare = SpareBytes()
    for _ in range(5):
        assert len(spare.take(SIZE)) == SIZE
    assert (spare.made, spare.reused) == (1, 4)


def test_what_somebody_keeps_is_left_alone() -> None:
    spare = SpareBytes()
    kept = [spare.take(SIZE) for _ in range(10)]
    assert len({id(data) for data in kept}) == 10
    assert spare.reused == 0
    views = [memoryview(spare.take(SIZE)) for _ in range(10)]
    assert len({id(view.obj) for view in views}) == 10


def test_it_has_the_size_and_the_hash_of_its_content() -> None:
    spare = SpareBytes()
    hash(spare.take(SIZE))
    for size in (SIZE, SIZE - 1, SIZE // 2, SIZE):
        data = spare.take(size)
        assert len(data) == size
        assert data[size:] == b""
        assert hash(data) == hash(bytes(memoryview(data)))
        del data
    assert spare.made == 1


@pytest.mark.parametrize("size", [SIZE // 2 - 1, SIZE + 1])
def test_another_size_is_made_anew(size: int) -> None:
    spare = SpareBytes()
    spare.take(SIZE)
    spare.take(size)
    assert (spare.made, spare.reused) == (2, 0)


@pytest.mark.parametrize("size", [0, 1, 32767, (1 << 20) + 1])
def test_small_and_huge_ones_are_not_remembered(size: int) -> None:
    spare = SpareBytes()
    assert [len(spare.take(size)) for _ in range(3)] == [size] * 3
    assert (spare.made, spare.reused) == (0, 0)


def test_it_lets_go_when_nothing_was_asked_for_in_between() -> None:
    spare = SpareBytes()
    spare.take(SIZE)
    spare.age()
    spare.take(SIZE)
    assert spare.reused == 1
    spare.age()
    spare.age()
    spare.take(SIZE)
    assert (spare.made, spare.reused) == (2, 1)
