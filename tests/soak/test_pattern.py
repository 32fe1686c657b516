"""The pattern finds every kind of damage, and says what kind it is."""

from __future__ import annotations

import pytest

from .pattern import PERIOD, WrongByte, check, part


@pytest.mark.parametrize("at", [0, 1, PERIOD - 5, PERIOD, 7 * PERIOD + 12345])
@pytest.mark.parametrize("size", [0, 1, 100, PERIOD])
def test_the_pattern_is_itself(at: int, size: int) -> None:
    assert len(part(at, size)) == size
    assert check(at, part(at, size)) == at + size
    assert check(at, bytearray(part(at, size))) == at + size


def test_a_damaged_byte_is_found() -> None:
    data = bytearray(part(5000, 1000))
    data[17] ^= 1
    with pytest.raises(WrongByte, match=r"^1 of 1000 bytes at 5000 are wrong, from 5017 to 5017.*nowhere"):
        check(5000, data)


@pytest.mark.parametrize(("shift", "told"), [(64, "64 bytes ahead"), (-64, "64 bytes back")])
def test_lost_and_repeated_bytes_are_told_apart(shift: int, told: str) -> None:
    data = bytes(part(5000, 300)) + bytes(part(5300 + shift, 700))
    with pytest.raises(WrongByte, match=f"from 53.*belong {told}$"):
        check(5000, data)


def test_a_part_has_a_limit() -> None:
    with pytest.raises(ValueError, match="at most 1048583"):
        part(0, PERIOD + 1)
