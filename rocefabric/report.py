"""What the planner says: numbers with formula and source, checks, tables, and remarks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Check", "Number", "Report", "Section", "Source", "Table", "Verdict"]


class Source(StrEnum):
    """Where a formula comes from."""

    ARTICLE = "UCloud, High performance RoCE network design"
    FITTED = "fitted to the article's numbers"
    PAPER = "Zhu and others, SIGCOMM 2015"
    FIXED_POINT = "Zhu and others, CoNEXT 2016"
    LOOPS = "Hu and others, HotNets 2016"
    STANDARD = "standard (IEEE 802.1Q, RoCEv2)"
    OURS = "ours"
    FILE = "the network's file"


class Verdict(StrEnum):
    """Outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "BROKEN"


@dataclass(frozen=True)
class Number:
    """One result: `name` = `value` `unit`, by `formula` with the numbers put in."""

    name: str
    value: float
    unit: str
    formula: str
    source: Source


@dataclass(frozen=True)
class Check:
    """Whether something holds; `text` has the numbers that show it."""

    name: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Table:
    """Several numbers that only make sense side by side."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass
class Section:
    """One part of the plan."""

    title: str
    numbers: list[Number] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    #: Circles of ports that wait for each other, each as names around it.
    cycles: list[tuple[str, ...]] = field(default_factory=list)
    #: File name to content: settings for devices.
    files: dict[str, str] = field(default_factory=dict)

    def check(self, name: str, holds: bool, text: str, *, otherwise: Verdict = Verdict.BROKEN) -> None:
        """Add a check."""
        self.checks.append(Check(name, Verdict.OK if holds else otherwise, text))

    def number(self, name: str, value: float, unit: str, formula: str, source: Source) -> None:
        """Add a result."""
        self.numbers.append(Number(name, value, unit, formula, source))


@dataclass
class Report:
    """All sections, and the settings that the simulator takes over."""

    title: str
    sections: list[Section]

    @property
    def verdict(self) -> Verdict:
        """The worst of all checks."""
        all_of_them = {check.verdict for section in self.sections for check in section.checks}
        worst = (Verdict.BROKEN, Verdict.WARNING)
        return next((verdict for verdict in worst if verdict in all_of_them), Verdict.OK)

    def files(self) -> dict[str, str]:
        """File name to content: settings for devices."""
        return {name: text for section in self.sections for name, text in section.files.items()}
