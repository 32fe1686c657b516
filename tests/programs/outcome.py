"""What came of the tests of one run, and what two runs have to do with each other."""

from __future__ import annotations

import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

__all__ = ["Comparison", "Known", "known_exceptions", "read_junit"]

#: By test: "passed", "failed" or "skipped".
Outcomes = dict[str, str]


def read_junit(path: Path) -> Outcomes:
    """The outcomes in a file of pytest's. A test with several entries (its teardown failed) has the worst."""
    found: Outcomes = {}
    for case in ET.parse(path).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        if found.get(name) != "failed":
            found[name] = outcome
    return found


@dataclass(frozen=True)
class Known:
    """A row of `exceptions.toml`: a test that may differ, and why."""

    suite: str
    test: str
    reason: str

    def covers(self, suite: str, test: str) -> bool:
        """`test` of a row may have `*`."""
        return suite == self.suite and fnmatchcase(test, self.test.replace("[", "[[]"))


def known_exceptions() -> list[Known]:
    """All rows."""
    text = Path(__file__).with_name("exceptions.toml").read_text(encoding="utf-8")
    return [Known(**row) for row in tomllib.loads(text).get("exception", [])]


@dataclass
class Comparison:
    """One suite without aiordma and with it."""

    suite: str
    without: Outcomes
    under: Outcomes
    #: Tests that differed once and not again.
    unsteady: list[str] = field(default_factory=list)

    def differences(self) -> list[str]:
        """What passes without us and does not pass with us. A test that did not run at all counts, too."""
        return sorted(
            test
            for test, outcome in self.without.items()
            if outcome == "passed" and self.under.get(test) != "passed" and test not in self.unsteady
        )

    def unknown(self, known: list[Known]) -> list[str]:
        """Differences that no exception covers."""
        return [test for test in self.differences() if not any(row.covers(self.suite, test) for row in known)]

    def needless(self, known: list[Known]) -> list[Known]:
        """Exceptions of this suite that cover nothing any more."""
        different = self.differences() + self.unsteady
        return [
            row
            for row in known
            if row.suite == self.suite and not any(row.covers(self.suite, test) for test in different)
        ]

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """Numbers of tests by outcome, without and with."""
        return Counter(self.without.values()), Counter(self.under.values())
