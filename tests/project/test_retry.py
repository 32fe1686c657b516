"""The second try of a failed test: what makes a run green, and what does not."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.retry import known

from .tree import ROOT

TODAY = datetime.date(2026, 11, 28)
ENTRY = """
[[flaky]]
test = "test_it.py::test_once"
commit = "0123456"
cause = "written to be so"
since = 2026-11-28
expires = 2026-12-12
"""

#: Fails the first time it runs, and passes from then on; with hypothesis, and a second one that always fails.
FLAKY = """
import pathlib
def first():
    mark = pathlib.Path(__file__).with_suffix(".ran")
    ran = mark.exists()
    mark.touch()
    return not ran
"""
ONCE = "def test_once():\n    assert not first()\n"
DRAWN = "@hypothesis.given(hypothesis.strategies.just(1))\ndef test_drawn(x):\n    assert not first()\n"


def test_the_list_is_well_formed() -> None:
    for name in known.read():
        assert (ROOT / name.partition("::")[0]).is_file(), name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("written to be so", " "),
        ('commit = "0123456"', ""),
        ("2026-12-12", "2026-12-13"),
        ("since = 2026-11-28", 'since = "today"'),
    ],
)
def test_an_entry_that_claims_too_much(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "flaky.toml"
    path.write_text(ENTRY)
    assert set(known.read(path)) == {"test_it.py::test_once"}
    path.write_text(ENTRY.replace(old, new))
    with pytest.raises(known.ListError):
        known.read(path)


def test_unknown_and_expired_ones_are_red(tmp_path: Path) -> None:
    path = tmp_path / "flaky.toml"
    path.write_text(ENTRY)
    entries = known.read(path)
    assert known.objection("test_it.py::test_once[asyncio]", entries, TODAY) is None
    assert known.objection("test_it.py::test_other", entries, TODAY) is not None
    assert known.objection("test_it.py::test_once", entries, datetime.date(2026, 12, 13)) is not None


def run(tmp_path: Path, source: str, entries: str = "", *options: str) -> tuple[int, str]:
    """A run of one module, with a list of its own."""
    (tmp_path / "test_it.py").write_text("import hypothesis\n" + FLAKY + source)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    listed = tmp_path / "flaky.toml"
    listed.write_text(entries.replace("2026-12-12", "9999-01-01"))
    program = (
        "import datetime, pathlib, sys, tests.retry.known as known\n"
        "known.LONGEST = datetime.timedelta.max; read = known.read\n"
        f"known.read = lambda: read(pathlib.Path({str(listed)!r}))\n"
        "from tests.retry.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "-q", "-p", "no:cacheprovider", *options, "test_it.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "AIORDMA_TEST_SLOWER": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_a_known_flaky_test_is_named_and_green(tmp_path: Path, options: tuple[str, ...]) -> None:
    status, output = run(tmp_path, ONCE, ENTRY, *options)
    assert output.splitlines()[-1] == "FLAKY: test_it.py::test_once"
    assert status == 0, output


def test_an_unknown_flaky_test_is_named_and_red(tmp_path: Path) -> None:
    status, output = run(tmp_path, ONCE)
    assert output.splitlines()[-1].startswith("FLAKY: test_it.py::test_once (")
    assert status == 1


def test_what_fails_twice_is_red(tmp_path: Path) -> None:
    status, output = run(tmp_path, "def test_once():\n    assert False\n", ENTRY)
    assert output.splitlines()[-1] == "FAILED TWICE: test_it.py::test_once"
    assert status == 1


@pytest.mark.parametrize(
    "source",
    [
        DRAWN,
        "import nothing_of_this_name\n",
        "".join(f"def test_{n}():\n    assert False\n" for n in range(4)),
    ],
    ids=["hypothesis", "collection", "four"],
)
def test_what_is_never_tried_again(tmp_path: Path, source: str) -> None:
    status, output = run(tmp_path, source, ENTRY.replace("test_once", "test_drawn"))
    assert "once more" not in output
    assert status != 0
