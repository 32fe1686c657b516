"""Frozen records behave as frozen dataclasses do."""

from __future__ import annotations

from typing import ClassVar

import pytest

from aiordma.proto.frozen import Frozen


class Point(Frozen):
    kind: ClassVar[str] = "point"

    x: int
    y: int = 2


class Named(Point, kw_only=True):
    name: str = ""


class Nothing(Frozen):
    pass


def test_fields_are_given_by_position_or_name() -> None:
    assert Point(1) == Point(x=1, y=2) == Point(1, 2)
    assert Point(1, 3) != Point(1)
    point = Named(x=1, name="a")
    assert (point.x, point.y, point.name, point.kind) == (1, 2, "a", "point")
    assert Nothing() == Nothing()


@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), ((), {"y": 1}), ((1, 2, 3), {}), ((1,), {"x": 1}), ((1,), {"z": 1}), ((1,), {"kind": "line"})],
)
def test_wrong_arguments_are_refused(values: tuple[int, ...], named: dict[str, int]) -> None:
    with pytest.raises(TypeError, match=r"Point\(\) takes x, \[y\]"):
        Point(*values, **named)
    with pytest.raises(TypeError, match="takes nothing"):
        Nothing(1)
    with pytest.raises(TypeError):
        Named(1, name="by name only")


def test_nothing_of_it_can_be_changed() -> None:
    point = Point(1)
    for name in ("x", "y", "z"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(point, name, 5)
        with pytest.raises(AttributeError, match="cannot be changed"):
            delattr(point, name)
    assert point == Point(1, 2)


def test_a_copy_may_have_other_values() -> None:
    point = Named(x=1, name="a")
    assert point.changed(y=5) == Named(x=1, y=5, name="a")
    assert point == Named(x=1, name="a")
    with pytest.raises(TypeError):
        point.changed(z=5)


def test_equality_looks_at_the_class_and_at_all_fields() -> None:
    assert Named(x=1) != Point(1)
    assert Point(1) != (1, 2)
    assert len({Point(1), Point(1, 2), Point(2), Named(x=1), Nothing()}) == 4


def test_it_is_shown_by_its_fields() -> None:
    assert repr(Named(x=1, name="a")) == "Named(x=1, y=2, name='a')"


def test_patterns_name_fields_by_position() -> None:
    match Point(1, 3):
        case Point(1, y):
            assert y == 3
        case _:
            raise AssertionError
