"""Several pieces of memory as one."""

from __future__ import annotations

import random

import pytest

from aiordma.verbs._spans import Spans
from aiordma.verbs._window import address_of


def test_pieces_blocks_and_rows() -> None:
    assert Spans.pieces(1000, 100, [(0, 5), (10, 20), (7, 7), (20, 30)]).pairs() == [(1000, 5), (1010, 20)]
    assert Spans.blocks(0, 64, 16, [3, 0, 1]).pairs() == [(48, 16), (0, 32)]  # neighbours are one
    assert Spans.rows(5, 100, 2, 3, 10, 4).pairs() == [(7, 3), (17, 3), (27, 3), (37, 3)]
    assert Spans.one(7, 0).pairs() == []
    assert Spans.blocks(0, 64, 16, [0, 2]).nbytes == 32


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Spans.pieces(0, 100, [(0, 101)]),
        lambda: Spans.pieces(0, 100, [(-1, 5)]),
        lambda: Spans.pieces(0, 100, [(9, 5)]),
        lambda: Spans.pieces(0, 100, [(1 << 70, (1 << 70) + 1)]),
        lambda: Spans.blocks(0, 64, 16, [4]),
        lambda: Spans.blocks(0, 64, 16, [-1]),
        lambda: Spans.blocks(0, 64, 0, [0]),
        lambda: Spans.rows(0, 100, 91, 10, 10, 1),
        lambda: Spans.rows(0, 100, 0, 10, -10, 2),
    ],
    ids=range(9),
)
def test_what_is_outside(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(ValueError, match=r"not inside|at least 1"):
        wrong()


def test_cuts_copy_what_the_whole_has() -> None:
    rng = random.Random(3)
    memory = bytearray(rng.randbytes(10_000))
    base = address_of(memory)
    cuts = sorted(rng.sample(range(10_000), 40))
    pieces = [(start, stop) for start, stop in zip(cuts[::2], cuts[1::2], strict=True)]
    rng.shuffle(pieces)
    spans = Spans.pieces(base, len(memory), pieces)
    flat = b"".join(memory[start:stop] for start, stop in pieces)
    for _ in range(200):
        at = rng.randrange(len(flat))
        n = rng.randrange(len(flat) - at)
        got = bytearray(n)
        spans.gather(at, got)
        assert got == flat[at : at + n]
        cut = spans.cut(at, n)
        assert cut.nbytes == n
        again = bytearray(n)
        cut.gather(0, again)
        assert again == got
    new = rng.randbytes(len(flat))
    spans.scatter(0, new)
    assert b"".join(memory[start:stop] for start, stop in pieces) == new
    with pytest.raises(ValueError, match="not inside"):
        spans.gather(1, bytearray(len(flat)))


def test_arrays_with_steps_are_their_rows() -> None:
    data = memoryview(bytearray(range(240))).cast("B", (4, 6, 10))
    whole = Spans.buffers([data], writable=True)
    assert whole.count == 1
    assert whole.nbytes == 240
    backwards = Spans.buffers([memoryview(b"0123456789")[::-2]], writable=False)
    got = bytearray(5)
    backwards.gather(0, got)
    assert got == b"97531"


def test_buffers_are_held_until_they_are_released() -> None:
    first, second = bytearray(b"abc"), bytearray(b"defg")
    spans = Spans.buffers([first, second], writable=True)
    assert spans.nbytes == 7
    with pytest.raises(BufferError):
        first.append(0)
    spans.release()
    spans.release()
    assert spans.nbytes == 0
    first.append(0)
    second.append(0)
    with pytest.raises(BufferError, match="writable"):
        Spans.buffers([bytearray(1), b"x"], writable=True)
    with pytest.raises(TypeError):
        Spans.buffers([object()], writable=True)  # type: ignore[list-item]


def test_the_region_of_pieces_survives_a_release() -> None:
    spans = Spans.blocks(0, 64, 16, [0, 2])
    spans.release()  # it holds no buffers
    assert spans.nbytes == 32
