"""bytes filled in place."""

from __future__ import annotations

import sys

import pytest

from aiordma.datapath._fill import unfilled


def test_what_is_put_into_the_view_is_in_the_object() -> None:
    whole, view = unfilled(300_000)
    assert (type(whole), len(whole), view.format, view.readonly) == (bytes, 300_000, "B", False)
    data = bytes(range(250)) * 1200
    view[:] = data
    assert whole == data
    assert hash(whole) == hash(data)


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_must_be_positive(size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        unfilled(size)  # the empty bytes object is a shared singleton


def test_too_much() -> None:
    with pytest.raises(MemoryError):
        unfilled(sys.maxsize // 2)


def test_sizes_are_numbers() -> None:
    with pytest.raises(TypeError):
        unfilled("10")  # type: ignore[arg-type]
    whole, view = unfilled(1)  # single bytes are shared objects, too: this one must not be
    view[0] = 65
    assert whole == b"A"
    assert bytes([whole[0] + 1]) == b"B"
    assert bytes([0]) == b"\0"
