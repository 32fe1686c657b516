"""`python -m tests.retry`: pytest with the same arguments; then each test that failed once more, by itself.

A test that passes the second time is printed as FLAKY. The run is green only if the list of known ones has it
and no more than :data:`MOST` failed: a test that load can fail is a fault, of the test or of the library.
What hypothesis found has an input that fails, so it is never tried again.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys

import pytest

from . import known

#: More failures than this are not what a busy machine does now and then.
MOST = 3
#: The second try has time limits this many times longer.
SLOWER = 5


class Failed:
    """Remembers which tests failed, in the process that gets the reports of all workers."""

    def __init__(self) -> None:
        #: The names of tests that may be tried again.
        self.tests: list[str] = []
        #: Failures that stand: no test (a module that cannot be imported), or hypothesis' own.
        self.final: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.final.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed or report.nodeid in self.tests or report.nodeid in self.final:
            return
        (self.final if "hypothesis" in report.keywords else self.tests).append(report.nodeid)


def _passes_alone(nodeid: str) -> bool:
    slower = SLOWER * float(os.environ.get("AIORDMA_TEST_SLOWER", "1"))
    print(f"=== once more, alone, with {slower:g} times the time: {nodeid}", flush=True)
    again = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", nodeid],
        env=os.environ | {"AIORDMA_TEST_SLOWER": str(slower)},
        check=False,
    )
    return again.returncode == 0


def main(arguments: list[str]) -> int:
    """:returns: pytest's exit status; 0 too if every failure is a known flaky test."""
    entries = known.read()
    failed = Failed()
    status = int(pytest.main(arguments, plugins=[failed]))
    if status != pytest.ExitCode.TESTS_FAILED or failed.final or not failed.tests:
        return status
    if len(failed.tests) > MOST:
        print(f"{len(failed.tests)} tests failed: more than {MOST} are not tried again.")
        return status
    verdicts = []
    green = True
    for nodeid in failed.tests:
        if not _passes_alone(nodeid):
            verdicts.append(f"FAILED TWICE: {nodeid}")
            green = False
            continue
        objection = known.objection(nodeid, entries, datetime.datetime.now(datetime.UTC).date())
        green = green and objection is None
        verdicts.append(f"FLAKY: {nodeid}" + (f" ({objection})" if objection else ""))
    print(*verdicts, sep="\n", flush=True)
    return 0 if green else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
