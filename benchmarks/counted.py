"""What a round trip and a call cost, counted: instructions by callgrind, system calls by strace.

    python -m benchmarks.counted            # as `make count-trips`
    python -m benchmarks.counted --rows streams,unix --seconds 1

Counts do not depend on what else the machine does. Each row is a process of `countable.py`, run three times:
under callgrind, under strace, and by itself for its CPU time. (Few virtual machines count cycles.)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .countable import ROWS
from .machine import describe
from .markdown import table

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks-counted-results.md"
LIMIT = 300.0

#: Whose instructions, by what is in the name of the file they are in; the first that fits.
PARTS = {
    "device": ("libsoftdev",),
    "aiordma": ("/aiordma/",),
    "uvloop": ("/uvloop/",),
    "Python": ("/bin/python", "libpython", "/lib-dynload/"),
    "C library": ("libc.so", "libc-2", "libm.so", "ld-linux", "libpthread"),
}
OTHERS = "others"


def part_of(file: str) -> str:
    return next((part for part, words in PARTS.items() if any(word in file for word in words)), OTHERS)


def instructions(lines: Iterator[str]) -> Counter[str]:
    """Instructions by part, from a file of callgrind's: what each function executes itself."""
    files: dict[str, str] = {}
    found: Counter[str] = Counter()
    file, of_callee = "", False
    for line in lines:
        if match := re.match(r"c?ob=\((\d+)\)(?: (.*))?$", line):
            # A name comes once, with its number.
            if match[2] is not None:
                files[match[1]] = match[2]
            if line.startswith("ob="):
                file = files[match[1]]
        elif line.startswith("calls="):
            of_callee = True  # the next line has the cost of what was called
        elif re.match(r"[+*\-\d]", line):
            if not of_callee:
                found[part_of(file)] += int(line.split()[1])
            of_callee = False
    return found


def system_calls(lines: Iterator[str]) -> Counter[str]:
    """Calls by name, from what `strace -c` prints."""
    found: Counter[str] = Counter()
    for line in lines:
        words = line.split()
        if len(words) >= 5 and re.fullmatch(r"[\d.]+", words[0]) and words[-1] != "total":
            found[words[-1]] = int(words[3])
    return found


@contextlib.contextmanager
def _program(row: str, seconds: float, tool: list[str]) -> Iterator[subprocess.Popen[str]]:
    slow = ["--slow"] if tool else []
    command = [*tool, sys.executable, "-m", "benchmarks.countable", row, str(seconds), *slow]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield process
            process.wait(LIMIT)
        finally:
            process.kill()


def _said(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the program has ended (its last words are above)")
    return json.loads(line)


def _go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _instrument(process: subprocess.Popen[str], state: str) -> None:
    subprocess.run(
        ["callgrind_control", "-i", state, str(process.pid)], stdout=subprocess.DEVNULL, check=True
    )


def by_callgrind(row: str, seconds: float) -> dict[str, float]:
    """Instructions of an operation, by part. Raises OSError, RuntimeError or CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        tool = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        with _program(row, seconds, tool) as process:
            _said(process)
            _instrument(process, "on")
            _go_on(process)
            count = _said(process)["count"]
            _instrument(process, "off")
            _go_on(process)
        with out.open(encoding="utf-8") as lines:
            found = instructions(lines)
    return {part: found[part] / count for part in (*PARTS, OTHERS)}


def by_strace(row: str, seconds: float) -> dict[str, float]:
    """System calls of an operation, by name, if a hundred operations make one. Raises as above."""
    with tempfile.TemporaryDirectory() as folder, _program(row, seconds, []) as process:
        _said(process)
        out = Path(folder) / "out"
        tracer = subprocess.Popen(
            ["strace", "-f", "-c", "-o", str(out), "-p", str(process.pid)], stderr=subprocess.PIPE, text=True
        )
        assert tracer.stderr is not None
        tracer.stderr.readline()  # it is attached
        _go_on(process)
        count = _said(process)["count"]
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()
        _go_on(process)
        found = system_calls(iter(out.read_text(encoding="utf-8").splitlines()))
    return {name: calls / count for name, calls in found.most_common() if calls >= count / 100}


def alone(row: str, seconds: float) -> tuple[float, float]:
    """Microseconds of an operation: the process', and the kernel's for it."""
    with _program(row, seconds, []) as process:
        _said(process)
        _go_on(process)
        found = _said(process)
        _go_on(process)
    return found["user_us"], found["kernel_us"]


def measure(row: str, seconds: float) -> list[str]:
    counted, calls, (user, kernel) = by_callgrind(row, seconds), by_strace(row, seconds), alone(row, seconds)
    named = ", ".join(f"{number:.3g} {name}" for name, number in calls.items())
    return [
        ROWS[row].title,
        *(f"{counted[part]:,.0f}" for part in (*PARTS, OTHERS)),
        f"{sum(counted.values()):,.0f}",
        f"{sum(calls.values()):.3g}" + (f" ({named})" if named else ""),
        f"{user:.2f} + {kernel:.2f}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make count-trips ARGS=...", description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS)}")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run (2)")
    options = parser.parse_args()
    rows = options.rows.split(",")
    header = ["64 B, both ends", *PARTS, OTHERS, "instructions", "system calls", "CPU, us: own + kernel's"]
    machine = describe()
    text = (
        f"Revision {machine['revision']}, {machine['cpu']}, Python {machine['python']},"
        f" kernel {machine['kernel']}, load before: {machine['load_before']:.1f}.\n\n"
    )
    found = []
    for row in rows:
        print(f"counting {row}", file=sys.stderr, flush=True)
        found.append(measure(row, options.seconds))
    text += table(header, found)
    print(text)
    if rows == [*ROWS]:
        PAGE.write_text(text, encoding="utf-8")
        print(f"table: {PAGE.relative_to(ROOT)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
