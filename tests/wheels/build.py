"""`python -m tests.wheels.build`: wheels and the sdist, in dist/.

The compiler is zig's, which links for a glibc of one's choice, so that the wheels run on older systems than
the one that they are built on. auditwheel says which, and gives them their name. verbs.h comes from this
machine; nothing else of its headers may be used. With --unoptimized, what Cython makes is compiled without
optimization, which is most of the time of a build: such a wheel, in build/wheels/unoptimized, is for `make
test-install` alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.wheels.pythons import HELP, find

#: The oldest glibc that has what the software device calls (memfd_create).
GLIBC = "2.27"
#: A wheel for 3.11 has 4.16 MB, of which 2.99 MB are the 80 compiled modules; some 20 KB of each are in all.
#: One that is not optimized, as each run of the checks builds it, has 4.82 MB. What adds a fifteenth shall
#: be seen.
LIMIT_BYTES = {True: 4_450_000, False: 5_150_000}

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
WORK = ROOT / "build" / "wheels"
#: Where wheels are that nobody shall be given.
UNOPTIMIZED = WORK / "unoptimized"
HEADERS = Path("/usr/include")


def run(*command: str | Path, **environment: str) -> None:
    """:raises SystemExit: it failed; its output is shown then."""
    done = subprocess.run(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, **environment}, check=False,
    )  # fmt: skip
    if done.returncode:
        print(done.stdout[-6000:])
        raise SystemExit(f"failed: {' '.join(map(str, command))}")


class Target(NamedTuple):
    """What wheels are built for."""

    machine: str
    #: Of a root directory of that machine, with its Python's headers; None: this machine.
    root: Path | None = None
    optimized: bool = True

    @property
    def tail(self) -> str:
        """Of the names of folders."""
        return (f"-{self.machine}" if self.root else "") + ("" if self.optimized else "-unoptimized")

    @property
    def dist(self) -> Path:
        """Where its wheels go."""
        return DIST if self.optimized else UNOPTIMIZED


HERE = Target(os.uname().machine)


def compiler(target: Target) -> dict[str, str]:
    """Variables for the build: zig's compiler, and verbs' headers without those of this machine's glibc."""
    include, cc = WORK / f"include{target.tail}", WORK / f"cc{target.tail}"
    shutil.rmtree(include, ignore_errors=True)
    for folder in ("infiniband", "rdma"):
        if (HEADERS / folder).is_dir():
            shutil.copytree(HEADERS / folder, include / folder)
    cc.write_text(
        f'#!/bin/sh\nexec {sys.executable} -m ziglang cc -target {target.machine}-linux-gnu.{GLIBC} "$@"\n'
    )
    cc.chmod(0o755)
    return {"CC": str(cc), "CFLAGS": f"-isystem {include}"}


def of_machine(release: str, target: Target, include: Path) -> dict[str, str]:
    """More variables, and the headers of a Debian's Python that lie in a folder of its machine.

    zig does not look there. The variables are for a Python that is not the one that builds.
    """
    folder = Path(f"{target.machine}-linux-gnu", f"python{release}")
    headers = (target.root or Path("/")) / "usr" / "include" / folder
    if headers.is_dir():
        shutil.copytree(headers, include / folder)
    if target.root is None:
        return {}
    return {
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{release.replace('.', '')}-{target.machine}-linux-gnu.so",
        "_PYTHON_HOST_PLATFORM": f"linux-{target.machine}",
        "CMAKE_ARGS": f"-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR={target.machine}",
    }


def with_tools(release: str, python: Path) -> Path:
    """A Python of the release that can build: the one that runs this program has all that it needs."""
    if python.resolve() == Path(sys.executable).resolve():
        return Path(sys.executable)
    venv = WORK / f"venv-{release}"
    if not (venv / "bin" / "python").exists():
        run(python, "-m", "venv", venv)
    tools = ("build", "scikit-build-core>=0.10", "cython>=3.1,<3.4")
    run(venv / "bin" / "python", "-m", "pip", "install", "-q", *tools)
    return venv / "bin" / "python"


def build(release: str, python: Path, target: Target = HERE) -> Path:
    """One wheel, in dist/."""
    made = WORK / f"made-{release}{target.tail}"
    builder = with_tools(release, python)
    shutil.rmtree(made, ignore_errors=True)
    variables = compiler(target)
    variables |= of_machine(release, target, WORK / f"include{target.tail}")
    settings = ["-C", f"build-dir={WORK / (release + target.tail)}"]
    if not target.optimized:
        # Without optimization, zig adds checks of undefined behaviour.
        settings += ["-C", "cmake.define.AIORDMA_OPTIMIZE=-O0;-fno-sanitize=undefined"]
    run(builder, "-m", "build", "--wheel", "--no-isolation", *settings, "-o", made, **variables)
    (plain,) = made.glob("*.whl")
    platform = f"manylinux_{GLIBC.replace('.', '_')}_{target.machine}"
    # It accepts names of this machine only, and finds out those of others.
    named_as = "auto" if target.root else platform
    options = ("--plat", named_as, "--zip-compression-level", "9", "-w", made / "named")
    repair = ("-m", "auditwheel", "repair", *options, plain)
    run(sys.executable, *repair, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (named,) = (made / "named").glob("*.whl")
    wheel = Path(shutil.copy(named, target.dist))
    if platform not in wheel.name:
        raise SystemExit(f"{wheel.name} needs more than glibc {GLIBC}")
    size = wheel.stat().st_size
    print(f"{release}: {wheel.name}, {size / 1e6:.2f} MB", flush=True)
    limit = LIMIT_BYTES[target.optimized]
    if size > limit:
        raise SystemExit(
            f"{wheel.name} has {size:,} bytes, and the limit of tests/wheels/build.py is {limit:,}:"
            " what has been added that users do not run?"
        )
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.wheels.build", description="Wheels for one Python or several, and the sdist."
    )
    parser.add_argument("pythons", nargs="*", help=HELP)
    parser.add_argument(
        "--aarch64",
        metavar="ROOT",
        type=Path,
        help="for aarch64 instead, without the sdist; ROOT has its Python's headers",
    )
    parser.add_argument(
        "--unoptimized", action="store_true", help="quickly, for a check, in build/wheels/unoptimized"
    )
    given = parser.parse_args()
    pythons = find(given.pythons)
    target = HERE if given.aarch64 is None else Target("aarch64", given.aarch64)
    target = target._replace(optimized=not given.unoptimized)
    target.dist.mkdir(parents=True, exist_ok=True)
    for old in target.dist.glob(f"aiordma-*_{target.machine}.whl"):
        old.unlink()
    for release, python in sorted(pythons.items()):
        build(release, python, target)
    if target.root is None:
        for old in target.dist.glob("aiordma-*.tar.gz"):
            old.unlink()
        run(sys.executable, "-m", "build", "-q", "--sdist", "--no-isolation", "-o", target.dist)
    run(sys.executable, "-m", "twine", "check", "--strict", *target.dist.glob("aiordma-*"))
    print("twine: no complaint about the wheels and the sdist")


if __name__ == "__main__":
    main()
