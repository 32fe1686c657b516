"""``pytest --cpu N``: the processor time of each folder, and of the N tests that take most of it.

What a test computes counts, and what the processes did that it started and waited for. Elapsed time would
tell how long a test waits, and how busy the machine is.
"""

from __future__ import annotations

import resource
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = "processor seconds"


def used() -> float:
    """The seconds that this process and those that it has waited for have computed."""
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in each)


class Cost:
    """A plugin of pytest. A fixture of a module or of the session belongs to the test that asked for it
    first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._before = used()
        self._tests = Counter[str]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self._before = used()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        now = used()
        # Each phase's report repeats the properties of the item: this one is of the report alone.
        report.user_properties = [*report.user_properties, (_NAME, now - self._before)]
        self._before = now
        return report  # type: ignore[no-any-return]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """In each worker of pytest-xdist, and in the process that prints the summary."""
        for name, value in report.user_properties:
            if name == _NAME:
                self._tests[report.nodeid] += float(value)  # type: ignore[assignment, arg-type]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        folders = Counter[str]()
        numbers = Counter[str]()
        for test, seconds in self._tests.items():
            folder = "/".join(test.partition("::")[0].split("/")[:-1])
            folders[folder] += seconds
            numbers[folder] += 1
        terminalreporter.section(f"processor time: {sum(folders.values()):.1f} s")
        for folder, seconds in folders.most_common():
            terminalreporter.write_line(f"{seconds:8.2f} s {numbers[folder]:6} tests  {folder}")
        terminalreporter.section(f"the {self._most} tests with the most processor time")
        for test, seconds in self._tests.most_common(self._most):
            terminalreporter.write_line(f"{seconds:8.2f} s  {test}")
