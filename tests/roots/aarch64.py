"""`python -m tests.roots.aarch64`: the software device and a wheel on aarch64, emulated by QEMU's user mode.

The C tests are cross-compiled, and run several times. A wheel is cross-built, and installed into a root of
Debian for arm64, where the README's program must run by RDMA. The emulator keeps the order of memory
accesses of the processor that it runs on: it finds what is wrong with sizes, alignments, atomic
instructions and system calls, but not every barrier that is missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.roots.root import HERE, ROOT, Failed, Root, need_root
from tests.wheels.check import program

if TYPE_CHECKING:
    from pathlib import Path

#: The emulated processor, on a busy machine, compared with this one.
SLOWER = 10
RELEASE, PYTHON = "bookworm:arm64", "3.11"
BUILD = ROOT / "build" / "softdev-aarch64"


def run(*command: str | Path, **environment: str) -> str:
    """:raises Failed: it failed."""
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, text=True, check=False, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))} failed\n{done.stdout[-8000:]}")
    return done.stdout


def c_tests(root: Root, rounds: int, names: str) -> None:
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={HERE / 'aarch64.cmake'}"
    options = (toolchain, f"-DCMAKE_SYSROOT={root.path}", f"-DSOFTDEV_TEST_SLOWER={SLOWER}")
    run("cmake", "-S", "softdev", "-B", BUILD, "-G", "Ninja", "--log-level=WARNING", *options)
    run("cmake", "--build", BUILD, "--", "--quiet")
    tests = ("ctest", "--test-dir", BUILD, "--output-on-failure", "--no-tests=error", "-j", "2", "-R", names)
    for number in range(rounds):
        # The programs are loaded by this machine's kernel, their libraries by the emulator, from the root.
        printed = run(HERE / "namespace", "arm64", *tests, QEMU_LD_PREFIX=str(root.path))
        (summary,) = (line for line in printed.splitlines() if "tests passed" in line)
        print(f"aarch64: C tests, round {number + 1}: {summary}", flush=True)


def wheel(root: Root, tools: Path) -> None:
    run(tools, "-m", "tests.wheels.build", "--aarch64", root.path, f"/usr/bin/python{PYTHON}")
    (made,) = (ROOT / "dist").glob("aiordma-*_aarch64.whl")
    (root.path / "tmp" / made.name).write_bytes(made.read_bytes())
    (root.path / "tmp" / "program.py").write_text(program((ROOT / "README.md").read_text(), 7000))
    if not (root.path / "venv" / "bin" / "pip").exists():
        root.run("python3", "-m", "venv", "/venv")
    installed = ("install", "-q", "--force-reinstall", "--only-binary", ":all:", f"/tmp/{made.name}")
    root.run("/venv/bin/pip", *installed)
    printed = root.run("/venv/bin/python", "/tmp/program.py", offline=True)
    if "by rdma" not in printed:
        raise Failed(f"the README's program printed {printed!r}")
    doctor = root.run("/venv/bin/aiordma", "doctor", offline=True).splitlines()[-1]
    print(f"aarch64: {made.name}, {made.stat().st_size / 1e6:.2f} MB; the README's program: {printed}")
    print(f"aarch64: {doctor}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.roots.aarch64", description="The software device and a wheel on aarch64."
    )
    parser.add_argument("--rounds", type=int, default=3, help="of the C tests [3]")
    parser.add_argument("--tests", default=".", help="the C tests whose names match [all]")
    parser.add_argument("--no-wheel", action="store_true", help="the C tests only")
    given = parser.parse_args()
    need_root()
    try:
        root = Root(RELEASE, "python3-venv", "python3-dev", "libibverbs-dev", "librdmacm-dev")
        c_tests(root, given.rounds, given.tests)
        if not given.no_wheel:
            wheel(root, ROOT / "build" / "wheels" / "tools" / "bin" / "python")
    except Failed as error:
        sys.exit(f"aarch64: {error}")


if __name__ == "__main__":
    main()
