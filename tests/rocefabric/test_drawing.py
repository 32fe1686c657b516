"""Pictures: round numbers along axes, nothing cut off, colours with a meaning, and the committed ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from benchmarks import congestion, picture
from rocefabric import charts, drawing
from tests.project.tree import tracked_files

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

SVG = "{http://www.w3.org/2000/svg}"
PICTURES = [
    path for path in tracked_files() if path.suffix == ".svg" and path.read_text().count("font-family") == 1
]


def texts(svg: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{SVG}text"))


def ends(element: ElementTree.Element, size: float = 14) -> tuple[float, float]:
    """Where a text begins and ends, roughly."""
    size = float(element.get("font-size", size))
    length = drawing.length("".join(element.itertext())) * size / 14
    at = float(element.attrib["x"])
    return {
        "start": (at, at + length),
        "middle": (at - length / 2, at + length / 2),
        "end": (at - length, at),
    }[element.get("text-anchor", "start")]


@pytest.mark.parametrize("most", [0.00003, 0.003, 0.9, 1, 3.7, 10, 99, 183, 1922, 51_490, 2.5e9])
def test_ticks_are_round_and_short(most: float) -> None:
    found = drawing.ticks(most)
    assert 2 <= len(found) <= 6
    assert found[-1] <= most * 1.000001
    for tick in found:
        shown = drawing.axis_text(tick)
        assert re.fullmatch(r"[0-9][0-9.,]*( [kMG])?", shown), shown
        assert len(shown) <= 8


def test_red_is_at_least_twice_the_best() -> None:
    green, red = drawing.heat(10, 10, 10), drawing.heat(20, 10, 20)
    assert green == drawing.heat(10, 10, 1000)
    assert red == drawing.heat(1000, 10, 1000)
    # A difference of 5 % stays near green, although it is the largest there is.
    assert drawing.heat(10.5, 10, 10.5) == drawing.heat(10.5, 10, 20) != red


@pytest.mark.parametrize("most", [3, 51_490, 2.5e9])
def test_nothing_is_cut_off(most: float) -> None:
    svg = charts.lines("a title", "cells", 10, [[0, most, most / 2]] * 3, {"Kmin": 1, "Kmax": 2})
    width, height = (float(ElementTree.fromstring(svg).attrib[name]) for name in ("width", "height"))
    for each in texts(svg):
        first, last = ends(each)
        assert first >= 0
        assert last <= width
        assert 10 <= float(each.attrib["y"]) <= height


def test_a_long_line_below_is_broken() -> None:
    words = "Both ends on one host, with a name that is longer than the picture is wide. " * 3
    for svg in (
        drawing.bars("t", "u", [drawing.Bar("a", 2, "2 / 4")], one="TCP", foot=words),
        drawing.panels([drawing.Panel("t", "MB", "s", {"": [(0, 1), (1, 2)]})], foot=words),
    ):
        whole = ElementTree.fromstring(svg)
        assert words.strip() in " ".join(each.text or "" for each in texts(svg))
        for each in texts(svg):
            assert ends(each)[1] <= float(whole.attrib["width"])
            assert float(each.attrib["y"]) <= float(whole.attrib["height"])


def test_names_of_levels_do_not_cover_each_other() -> None:
    svg = charts.lines("t", "cells", 10, [[0, 50_000]], {"Kmin": 12, "Kmax": 40})
    heights = [float(each.attrib["y"]) for each in texts(svg) if each.text in ("Kmin", "Kmax")]
    assert abs(heights[0] - heights[1]) >= 12


def test_bars_have_their_factor_and_numbers() -> None:
    rows = [drawing.Bar("a", 30.3, "2 / 61 us", "but awake 2x"), drawing.Bar("b", 0.8, "5 / 4 GB/s")]
    svg = drawing.bars("t", "u", rows, one="TCP", foot="host, load")
    shown = ["".join(each.itertext()) for each in texts(svg)]
    assert shown == [
        "t",
        "u",
        "a",
        "30x 2 / 61 us",
        "but awake 2x",
        "b",
        "0.80x 5 / 4 GB/s",
        "TCP",
        "host, load",
    ]
    long, short = (
        float(each.attrib["width"]) for each in list(ElementTree.fromstring(svg).iter(f"{SVG}rect"))[1:]
    )
    assert long / short == pytest.approx(30.3 / 0.8, rel=0.02)
    assert drawing.BAD in svg
    width = float(ElementTree.fromstring(svg).attrib["width"])
    assert all(0 <= ends(each)[0] and ends(each)[1] <= width for each in texts(svg))


def test_many_curves_are_a_crowd_with_its_median() -> None:
    svg = charts.lines("t", "Gb/s", 10, [[1, 1], [2, 2], [30, 30]])
    assert "3 curves, blue: their median" in svg
    blue = [
        each
        for each in ElementTree.fromstring(svg).iter(f"{SVG}polyline")
        if drawing.COLOURS[0] in each.attrib.values()
    ]
    assert len(blue) == 1


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_nothing_of_the_committed_pictures_is_cut_off(path: Path) -> None:
    svg = path.read_text()
    width = float(ElementTree.fromstring(svg).attrib["width"])
    for each in texts(svg):
        first, last = ends(each)
        if "textLength" in each.attrib:  # a screen's letters, which are as wide as that says
            last = first + float(each.attrib["textLength"])
        assert first >= 0, each.text
        assert last <= width, each.text


@pytest.mark.parametrize("module", [picture, congestion])
def test_the_committed_pictures_are_what_the_programs_draw(module: ModuleType) -> None:
    """From the committed results: no number of a picture is older than they are."""
    assert module.DRAWING.read_text() == module.picture()
