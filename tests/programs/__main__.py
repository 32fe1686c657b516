"""Runs each suite without aiordma and under `aiordma run`, and prints a table. Exit status 1: they differ.

The table is also in build/programs/outcome.json, what pytest printed in build/programs/SUITE/*.log.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from typing import Any

from .outcome import Comparison, Known, Outcomes, known_exceptions, read_junit
from .servers import proxied, server_of, streams_of_proxy
from .suite import BUILD, PYTHON, Suite, load, prepare

#: How often a test that differs is run again, each way, before it counts as different.
_REPEATS = 2
#: Seconds for one test.
_TEST_LIMIT = 60
#: More tests than these are not run again: the suite as a whole is different.
_MAX_REPEATED = 60


def run(suite: Suite, label: str, *, under: bool, only: list[str] | None = None) -> Outcomes:
    """Run pytest in the suite's environment. What did not end in time has no outcome."""
    junit, log = suite.folder / f"{label}.xml", suite.folder / f"{label}.log"
    junit.unlink(missing_ok=True)
    prefix = ["-m", "aiordma", "run", "--report"] if under and not suite.proxy else []
    proxy = proxied() if under and suite.proxy else []
    command = [
        str(suite.python), *prefix, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}",
        "--timeout", str(_TEST_LIMIT), "--timeout-method", "signal", *suite.args, *proxy,
        *(suite.tests if only is None else only),
    ]  # fmt: skip
    environ = {
        **os.environ,
        "AIORDMA_DEVICE": "soft",
        **suite.env,
        "XDG_CACHE_HOME": str(suite.folder / "cache"),
    }
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=suite.source, env=environ, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(suite.limit)
        except subprocess.TimeoutExpired:
            out.write(f"\n{label}: did not end within {suite.limit:.0f} s\n")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return read_junit(junit) if junit.exists() else {}


def rdma_connections(suite: Suite) -> int:
    """How many connections of the suite's process went by RDMA, as `--report` says, or of the proxy."""
    if suite.proxy:
        return streams_of_proxy(suite)
    text = (suite.folder / "under.log").read_text(errors="replace")
    return sum(map(int, re.findall(r"(?m)^  rdma +(\d+) ", text)))


def files_of(suite: Suite, tests: list[str]) -> list[str]:
    """What pytest gets to run just these: their files, and -k with their functions' names."""
    names = sorted({re.sub(r"\[.*", "", test.rpartition("::")[2]) for test in tests})
    return [*suite.tests, "-k", " or ".join(names)]


def compare(suite: Suite) -> Comparison:
    """Both runs; what differs is repeated, to tell a difference from a test that fails now and then."""
    found = Comparison(suite.name, run(suite, "without", under=False), run(suite, "under", under=True))
    for turn in range(_REPEATS):
        different = found.differences()
        if not different or len(different) > _MAX_REPEATED:
            break
        only = files_of(suite, different)
        again = run(suite, f"again-{turn}-under", under=True, only=only)
        plain = run(suite, f"again-{turn}-without", under=False, only=only)
        found.unsteady += [
            test for test in different if again.get(test) == "passed" or plain.get(test) == "failed"
        ]
    return found


def row_of(suite: Suite, found: Comparison, known: list[Known]) -> dict[str, Any]:
    """One suite's row of the table."""
    without, under = found.counts()
    unknown = found.unknown(known)
    return {
        "suite": suite.folder.name,
        "source": suite.origin,
        "passed without": without["passed"],
        "passed under": under["passed"],
        "failed without": without["failed"],
        "failed under": under["failed"],
        "skipped": under["skipped"],
        "by RDMA": rdma_connections(suite),
        "excepted": len(found.differences()) - len(unknown),
        "unsteady": found.unsteady,
        "different": unknown,
        "needless exceptions": [row.test for row in found.needless(known)],
    }


_COLUMNS = ["suite", "source", "passed without", "passed under", "failed without", "failed under", "skipped", "by RDMA", "excepted"]  # fmt: skip  # noqa: E501


def show(rows: list[dict[str, Any]]) -> str:
    """The table, and below it what is not as it should be."""
    cells = [_COLUMNS, *([str(row[name]) for name in _COLUMNS] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    for row in rows:
        lines += [f"{row['suite']}: passes without aiordma only: {test}" for test in row["different"]]
        lines += [f"{row['suite']}: differed once, not again: {test}" for test in row["unsteady"]]
        lines += [f"{row['suite']}: needs no exception: {test}" for test in row["needless exceptions"]]
    return "\n".join(lines)


def keep(rows: list[dict[str, Any]]) -> None:
    """Put the rows into the file; those of suites that did not run now stay."""
    file = BUILD / "outcome.json"
    before = json.loads(file.read_text()) if file.exists() else []
    names = {row["suite"] for row in rows}
    file.parent.mkdir(parents=True, exist_ok=True)
    all_rows = [row for row in before if row["suite"] not in names] + rows
    file.write_text(json.dumps(sorted(all_rows, key=lambda row: str(row["suite"])), indent=1) + "\n")


def chosen(words: list[str], suites: list[Suite]) -> list[Suite]:
    """What the command line asks for; it may end the program."""
    parser = argparse.ArgumentParser(
        prog="make test-programs ARGS=...",
        description="Other projects' own tests, without aiordma and under `aiordma run`, and what differs.",
        epilog="Exit status 1: a test passes without aiordma only, or a suite could not be run.",
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="these only; default: all")
    parser.add_argument("--list", action="store_true", help="list the suites and where they come from")
    parser.add_argument(
        "--source", action="append", default=[], metavar="SUITE=DIRECTORY",
        help="take this suite's tests from a copy of its source, where they cannot be fetched",
    )  # fmt: skip
    parser.add_argument(
        "--python", default=PYTHON, metavar="PROGRAM",
        help=f"the interpreter of a suite that has Python's own tests, for which aiordma is built [{PYTHON}]",
    )  # fmt: skip
    arguments = parser.parse_args(words)
    if arguments.list:
        parser.exit(message="".join(f"{suite.name:12} {suite.origin}\n" for suite in suites))
    given = dict(each.partition("=")[::2] for each in arguments.source)
    if strangers := sorted({*arguments.suites, *given} - {suite.name for suite in suites}):
        parser.error(f"no such suite: {', '.join(strangers)}; see --list")
    if missing := sorted(name for name, path in given.items() if not os.path.isdir(path)):
        parser.error(f"--source {missing[0]}={given[missing[0]]}: that is no directory")
    wanted = [suite for suite in suites if not arguments.suites or suite.name in arguments.suites]
    interpreter = shutil.which(arguments.python)
    if interpreter is None:
        parser.error(f"--python {arguments.python}: there is no such program")
    if interpreter != PYTHON and (others := [suite.name for suite in wanted if suite.deb is None]):
        parser.error(f"--python is for the tests of Python itself, and not for {', '.join(others)}")
    return [
        dataclasses.replace(suite, given=given.get(suite.name), interpreter=interpreter) for suite in wanted
    ]


def main(words: list[str]) -> int:
    """The whole table, or those suites that are named."""
    known, rows, broken = known_exceptions(), [], False
    for suite in chosen(words, load()):
        try:
            prepare(suite)
            with server_of(suite):
                found = compare(suite)
        except (RuntimeError, OSError) as error:
            print(f"{suite.name}: cannot be run: {error}", file=sys.stderr)
            broken = True
            continue
        if not any(outcome == "passed" for outcome in found.without.values()):
            print(
                f"{suite.name}: nothing passes without aiordma: {suite.folder}/without.log", file=sys.stderr
            )
            broken = True
        rows.append(row_of(suite, found, known))
        print(show(rows[-1:]), flush=True)
    keep(rows)
    print("\n" + show(rows))
    return int(broken or any(row["different"] for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
