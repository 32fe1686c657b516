"""The table of transitions is what lives do: no other change of state, and each row occurs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.proto.life.machine import TRANSITIONS

from . import world
from .programs import ROW, play, program

if TYPE_CHECKING:
    import pytest

#: Seeds of programs that meet most rows, and of those that meet the others.
FIRST = range(1200)
RARE = (1208, 1575, 2691, 3097, 3568, 5509, 6861, 7214, 7368, 8587, 16307, 21017, 22027, 36399, 36855, 44604)


def test_each_row_occurs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "SEEN", set())
    for seed in (*FIRST, *RARE):
        play(program(seed))
    play(ROW)
    rows = {(before, by, after) for (before, by), ends in TRANSITIONS.items() for after in ends}
    assert rows - world.SEEN == set()
