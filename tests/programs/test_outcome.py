"""What `make test-programs` makes of two runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from .__main__ import chosen
from .outcome import Comparison, Known, known_exceptions, read_junit
from .suite import load

if TYPE_CHECKING:
    from pathlib import Path

JUNIT = """<testsuites><testsuite>
<testcase classname="a" name="good"/>
<testcase classname="a" name="bad"><failure/></testcase>
<testcase classname="a" name="broken"/>
<testcase classname="a" name="broken"><error/></testcase>
<testcase classname="a" name="left_out"><skipped/></testcase>
</testsuite></testsuites>"""


def test_outcomes_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    assert read_junit(tmp_path / "junit.xml") == {
        "a::good": "passed",
        "a::bad": "failed",
        "a::broken": "failed",
        "a::left_out": "skipped",
    }


def test_a_difference_is_what_passes_without_only() -> None:
    without = dict.fromkeys(("same", "fails", "skips", "vanishes", "moody"), "passed") | {"always": "failed"}
    under = {"same": "passed", "fails": "failed", "skips": "skipped", "moody": "failed", "always": "failed"}
    found = Comparison("x", without, under, unsteady=["moody"])
    assert found.differences() == ["fails", "skips", "vanishes"]
    known = [Known("x", "f*", "why"), Known("y", "skips", "another suite"), Known("x", "same", "why")]
    assert found.unknown(known) == ["skips", "vanishes"]
    assert found.needless(known) == [known[2]]


def test_brackets_of_parameters_are_no_pattern() -> None:
    assert Known("x", "a::test[b]", "why").covers("x", "a::test[b]")
    assert Known("x", "a::test[*]", "why").covers("x", "a::test[b]")
    assert not Known("x", "a::test[b]", "why").covers("x", "a::testb")


def test_python_s_own_tests_are_those_of_the_interpreter() -> None:
    (suite,) = chosen(["cpython", "--python", sys.executable], load())
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert suite.origin == f"libpython{version}-testsuite"
    assert suite.folder.name == f"cpython-{version}"
    assert suite.pin != chosen(["cpython"], load())[0].pin


@pytest.mark.parametrize("words", [["uvicorn", "--python", sys.executable], ["--python", "no-such-python"]])
def test_an_interpreter_that_is_of_no_use_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        chosen(words, load())


def test_the_files_of_the_set() -> None:
    suites = {suite.name: suite for suite in load()}
    for suite in suites.values():
        assert [suite.sdist, suite.deb, suite.source_of].count(None) == 2, suite.name
    assert all("==" in suite.sdist for suite in suites.values() if suite.sdist is not None)
    for row in known_exceptions():
        assert row.suite in suites
        assert len(row.reason) > 20
