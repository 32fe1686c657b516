"""Pictures as SVG text: bars with their factor, and curves in panels beside each other.

One style for all: letters that are legible at half size, round numbers along the axes, the name of a curve in
its colour, lines with a name for what a value is judged by. Nothing is loaded, and no library is needed.
"""

from __future__ import annotations

import colorsys
import html
import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "BAD",
    "COLOURS",
    "GREY",
    "Bar",
    "Panel",
    "axis_text",
    "bars",
    "heat",
    "open_svg",
    "panels",
    "text",
]

#: Of curves, in this order: what it is about is blue, what it is compared with orange.
COLOURS = ("#1769aa", "#d1690b", "#1b8a5a", "#7b5aa6", "#c2347f", "#6b7b1f", "#8a6116", "#555555")
#: Of what missed its goal.
BAD = "#b3001b"
GREY = "#9aa5b1"
_NOTE = "#555"
#: Height of letters; half of it is still legible.
_SIZE = 14
#: Widths of letters as shares of their height, in a wide font, so that nothing is cut off with another one.
_WIDTHS = {
    letter: width
    for width, letters in (
        (0.32, "ijlIJ ,./:;|'"),
        (0.41, "()[]-!frt"),
        (0.56, '"*_?czsL'),
        (0.79, "&CDGHNOQU"),
        (0.98, "mwMW%+=<>@"),
    )
    for letter in letters
}
_OTHERS = 0.66
_MILLION = 1e6


def text(
    x: float, y: float, content: str, *, anchor: str = "start", fill: str = "#222", more: str = ""
) -> str:
    """One line of letters. :param anchor: ``start``, ``middle`` or ``end``. :param more: attributes."""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}"{where}{more}>{html.escape(content)}</text>'


def open_svg(width: float, height: float, label: str) -> str:
    """The first tag and a white ground."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{html.escape(label)}" '
        f'font-family="system-ui, DejaVu Sans, sans-serif" font-size="{_SIZE}">'
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>'
    )


def length(words: str) -> float:
    """How long a line of letters is at most, about."""
    return _SIZE * sum(_WIDTHS.get(letter, _OTHERS) for letter in words)


def wrapped(words: str, width: float) -> list[str]:
    """Lines that are no longer than that, where words allow it."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and length(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def axis_text(value: float) -> str:
    """``0``, ``0.25``, ``1,500``, ``20 k``, ``1.5 M``: never an exponent."""
    for least, unit in ((1e9, " G"), (_MILLION, " M"), (1e4, " k")):
        if abs(value) >= least:
            return f"{value / (1e3 if unit == ' k' else least):.4g}{unit}"
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 1e-3 else f"{value:.9f}".rstrip("0")


def ticks(most: float, count: int = 4) -> list[float]:
    """From 0 to at most ``most``: about ``count`` steps of 1, 2 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(most / count))
    step = next(power * by for by in (1, 2, 5, 10) if most / (power * by) <= count + 0.5)
    return [at * step for at in range(int(most / step + 1e-9) + 1)]


def powers(least: float, most: float) -> list[float]:
    """The powers of ten from ``least`` to ``most``."""
    return [
        10.0**at for at in range(math.ceil(math.log10(least) - 1e-9), math.floor(math.log10(most) + 1e-9) + 1)
    ]


def heat(value: float, least: float, most: float) -> str:
    """A light colour from green to red, logarithmic. Red is at least twice the least."""
    if least <= 0 or value <= least:
        share = 0.0
    else:
        share = min(1.0, math.log(value / least) / math.log(max(2.0, most / least)))
    red, green, blue = colorsys.hls_to_rgb((1 - share) / 3, 0.7, 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


# ---- bars -------------------------------------------------------------------------------------------------


class Bar(NamedTuple):
    """How many times something is as good as what it is compared with."""

    name: str
    factor: float
    #: The two numbers, with units.
    numbers: str
    #: A second line, in grey; how else it compares.
    note: str = ""


_BAR, _ROW, _NOTED = 18, 30, 22


def bars(title: str, below: str, rows: Sequence[Bar], *, one: str, foot: str = "", width: int = 760) -> str:
    """Bars from 0; a short line in each row marks 1, which is ``one``.

    :param below: what a bar is, under the title.
    :param foot: host, load and source, at the bottom.
    """
    left = 22 + max(length(row.name) for row in rows)
    width = max(width, *(math.ceil(left + length(row.note) + 12) for row in rows))
    room = [width - left - 22 - length(f"{_factor(row.factor)} {row.numbers}") for row in rows]
    scale = min(
        (width - left) / 2, *(free / row.factor for free, row in zip(room, rows, strict=True) if row.factor)
    )
    parts = [text(12, 26, title, more=' font-size="17" font-weight="600"'), text(12, 48, below, fill=_NOTE)]
    y = 60.0
    for row in rows:
        parts += _bar(row, left, y, scale)
        y += _ROW
        if row.note:
            parts.append(text(left, y + 12, row.note, fill=_NOTE))
            y += _NOTED
    parts.append(text(max(left + scale, 16 + length(one) / 2), y + 16, one, anchor="middle"))
    y += 26
    for line in wrapped(foot, width - 24) if foot else ():
        parts.append(text(12, y + 16, line, fill=_NOTE))
        y += 20
    return "\n".join([open_svg(width, y + 6, title), *parts, "</svg>"]) + "\n"


def _bar(row: Bar, left: float, y: float, scale: float) -> list[str]:
    """One row without its note; a short line marks 1."""
    colour, long = COLOURS[0] if row.factor >= 1 else BAD, row.factor * scale
    beyond = left + max(long, scale) + 8
    return [
        text(left - 10, y + 19, row.name, anchor="end"),
        f'<rect x="{left:.1f}" y="{y + 5:.1f}" width="{long:.1f}" height="{_BAR}" fill="{colour}"/>',
        f'<path d="M{left + scale:.1f} {y + 1:.1f}v{_BAR + 8}" stroke="#222" stroke-width="1.5"/>',
        f'<text x="{beyond:.1f}" y="{y + 19:.1f}" fill="#222"><tspan font-weight="600">{_factor(row.factor)}'
        f'</tspan> <tspan fill="{_NOTE}">{html.escape(row.numbers)}</tspan></text>',
    ]


def _factor(value: float) -> str:
    return f"{value:.0f}x" if value >= 20 else f"{value:.1f}x" if value >= 2 else f"{value:.2f}x"


# ---- curves in panels -----------------------------------------------------------------------------------


@dataclass
class Panel:
    """One drawing of several: curves over the same axis."""

    title: str
    #: Unit of the values, and of what they are drawn over.
    up: str
    across: str
    curves: Mapping[str, Sequence[tuple[float, float]]]
    #: Name to value: goals and limits, dashed, with their name.
    levels: Mapping[str, float] = field(default_factory=dict)
    #: Which axes are logarithmic, that across and that up; values of 0 and below are left out there.
    logarithmic: tuple[bool, bool] = (False, False)
    #: The points themselves are drawn; then of curves only those that `joined` names.
    dots: bool = False
    joined: tuple[str, ...] = ()
    #: The curves have no names; all are grey, and their middle is drawn before them.
    crowd: bool = False
    #: Before this, the ground is grey: what is not judged.
    warm_up: float = 0.0
    #: Instead of curves, where there is none.
    empty: str = "nothing to show"


_LEFT, _TOP, _BOTTOM, _RIGHT = 62, 48, 44, 16


@dataclass
class _Frame:
    """Where the values of one panel go."""

    x: float
    y: float
    width: float
    height: float
    low: tuple[float, float]
    high: tuple[float, float]
    logarithmic: tuple[bool, bool]

    def at(self, x: float, y: float) -> tuple[float, float]:
        across, up = (self._share(value, n) for n, value in enumerate((x, y)))
        return self.x + across * self.width, self.y + self.height * (1 - up)

    def _share(self, value: float, n: int) -> float:
        low, high = self.low[n], self.high[n]
        if self.logarithmic[n]:
            return math.log(max(value, low) / low) / math.log(high / low)
        return (value - low) / (high - low)


def panels(
    shown: Sequence[Panel], *, columns: int = 1, title: str = "", foot: str = "", width: int = 480
) -> str:
    """The panels beside and below each other, each ``width`` wide. :param foot: host, load and source."""
    height = 236
    top = 34 if title else 0
    rows = -(-len(shown) // columns)
    lines = wrapped(foot, columns * width - 24) if foot else []
    whole = (columns * width, top + rows * height + (20 * len(lines) + 6 if foot else 0))
    parts = [open_svg(*whole, title or shown[0].title)]
    if title:
        parts.append(text(12, 24, title, more=' font-size="17" font-weight="600"'))
    for at, panel in enumerate(shown):
        parts += _panel(panel, at % columns * width, top + at // columns * height, width, height)
    for at, line in enumerate(lines):
        parts.append(text(12, top + rows * height + 16 + 20 * at, line, fill=_NOTE))
    return "\n".join([*parts, "</svg>"])


def _range(panel: Panel) -> tuple[tuple[float, float], tuple[float, float]]:
    """The lowest and the highest of both axes."""
    points = [point for curve in panel.curves.values() for point in curve]
    across = [x for x, _ in points] or [1.0]
    up = [*(y for _, y in points), *panel.levels.values()] or [1.0]
    low, high = [0.0, 0.0], [max(across) or 1.0, max(up) * 1.06 or 1.0]
    for n, values in enumerate((across, up)):
        if panel.logarithmic[n]:
            positive = [value for value in values if value > 0] or [1.0]
            low[n] = 10.0 ** math.floor(math.log10(min(positive)) + 1e-9)
            high[n] = max(10 * low[n], 10.0 ** math.ceil(math.log10(max(positive)) - 1e-9))
    return (low[0], low[1]), (high[0], high[1])


def _panel(panel: Panel, x: float, y: float, width: float, height: float) -> list[str]:
    beside = 12 + max(map(length, panel.levels)) if panel.levels else _RIGHT
    low, high = _range(panel)
    names, lower = _legend(panel, x + 8, y + 38, width - 8)
    top = _TOP + lower
    frame = _Frame(
        x + _LEFT, y + top, width - _LEFT - beside, height - top - _BOTTOM, low, high, panel.logarithmic
    )
    parts = [text(x + 8, y + 18, panel.title, more=' font-weight="600"'), *names, *_axes(frame, panel)]
    if not any(panel.curves.values()):
        parts.append(text(x + _LEFT + 12, y + top + 24, panel.empty, fill=_NOTE))
    return [*parts, *_levels(frame, panel), *_curves(frame, panel)]


def _legend(panel: Panel, x: float, y: float, width: float) -> tuple[list[str], float]:
    """The unit and the names of the curves in their colours; how much lower the drawing begins for them."""
    words = [(panel.up, _NOTE)] if panel.up else []
    if panel.crowd:
        words.append((f"{len(panel.curves)} curves, blue: their median", COLOURS[0]))
    else:
        words += [
            (name, colour) for name, colour in zip(panel.curves, itertools.cycle(COLOURS), strict=False)
        ]
    parts, at, lower = [], x, 0.0
    for word, colour in words:
        long = length(word)
        if at > x and at + long > x + width:
            at, lower = x, lower + _SIZE + 3
        parts.append(text(at, y + lower, word, fill=colour))
        at += long + _SIZE
    return parts, lower


def _axes(frame: _Frame, panel: Panel) -> list[str]:
    right, bottom = frame.x + frame.width, frame.y + frame.height
    parts = []
    if panel.warm_up:
        grey = frame.at(panel.warm_up, 0)[0] - frame.x
        parts.append(
            f'<rect x="{frame.x:.1f}" y="{frame.y:.1f}" width="{grey:.1f}" height="{frame.height:.1f}" '
            'fill="#eee"/>'
        )
    marks = [
        powers(low, high) if of_tens else ticks(high)
        for low, high, of_tens in zip(frame.low, frame.high, frame.logarithmic, strict=True)
    ]
    for value in marks[1]:
        at = frame.at(frame.low[0], value)[1]
        parts.append(f'<path d="M{frame.x:.1f} {at:.1f}H{right:.1f}" stroke="#ddd"/>')
        parts.append(text(frame.x - 6, at + 5, axis_text(value), anchor="end"))
    last = marks[0][-1]
    for value in marks[0]:
        at = frame.at(value, frame.low[1])[0]
        parts.append(f'<path d="M{at:.1f} {bottom:.1f}v5" stroke="#999"/>')
        shown = f"{axis_text(value)} {panel.across}" if value == last else axis_text(value)
        near = right - at < length(shown) / 2
        parts.append(text(right + 8 if near else at, bottom + 21, shown, anchor="end" if near else "middle"))
    parts.append(f'<path d="M{frame.x:.1f} {bottom:.1f}H{right:.1f}" stroke="#999"/>')
    return parts


def _levels(frame: _Frame, panel: Panel) -> list[str]:
    """Dashed lines; their names at the right, apart from each other."""
    parts, lowest = [], frame.y + frame.height + _SIZE
    right = frame.x + frame.width
    for name, value in sorted(panel.levels.items(), key=lambda each: each[1]):
        y = frame.at(frame.low[0], value)[1]
        lowest = min(y + 5, lowest - _SIZE)
        parts.append(f'<path d="M{frame.x:.1f} {y:.1f}H{right:.1f}" stroke="{BAD}" stroke-dasharray="5 4"/>')
        parts.append(text(right + 5, lowest, name, fill=BAD))
    return parts


def _curves(frame: _Frame, panel: Panel) -> list[str]:
    curves = list(panel.curves.values())
    if not panel.crowd:
        drawn = []
        # The first one is what it is about: it is drawn over the others.
        named = list(zip(panel.curves.items(), itertools.cycle(COLOURS), strict=False))
        for (name, curve), colour in reversed(named):
            if not panel.dots or name in panel.joined:
                drawn += _curve(frame, curve, colour, 2.0)
            if panel.dots:
                drawn += _dots(frame, curve, colour)
        return drawn
    drawn = [each for curve in curves for each in _curve(frame, curve, "#ccc", 1.0)]
    return [*drawn, *_curve(frame, _middle(curves), COLOURS[0], 2.0)]


def _middle(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """At each place, the median of all curves."""
    found = []
    for points in zip(*curves, strict=False):
        values = sorted(value for _, value in points)
        found.append((points[0][0], values[len(values) // 2]))
    return found


def _curve(frame: _Frame, curve: Sequence[tuple[float, float]], colour: str, wide: float) -> list[str]:
    across, up = frame.logarithmic
    places = [frame.at(x, y) for x, y in curve if (x > 0 or not across) and (y > 0 or not up)]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return [f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{wide:g}"/>']


def _dots(frame: _Frame, points: Sequence[tuple[float, float]], colour: str) -> list[str]:
    places = [frame.at(x, y) for x, y in points]
    return [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
