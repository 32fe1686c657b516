"""`python -m tests.wheels.build`: wheels for every Python at hand and the sdist, in dist/.

The compiler is zig's, which links for a glibc of one's choice, so that the wheels run on older systems than
the one that they are built on. auditwheel says which, and gives them their name. verbs.h comes from this
machine; nothing else of its headers may be used.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.wheels.pythons import find

#: The oldest glibc that has what the software device calls (memfd_create).
GLIBC = "2.27"
LIMIT_BYTES = 3 << 20

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
WORK = ROOT / "build" / "wheels"
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


def compiler() -> dict[str, str]:
    """Variables for the build: zig's compiler, and verbs' headers without those of this machine's glibc."""
    include, cc = WORK / "include", WORK / "cc"
    shutil.rmtree(include, ignore_errors=True)
    for folder in ("infiniband", "rdma"):
        if (HEADERS / folder).is_dir():
            shutil.copytree(HEADERS / folder, include / folder)
    machine = os.uname().machine
    cc.write_text(
        f'#!/bin/sh\nexec {sys.executable} -m ziglang cc -target {machine}-linux-gnu.{GLIBC} "$@"\n'
    )
    cc.chmod(0o755)
    return {"CC": str(cc), "CFLAGS": f"-isystem {include}"}


def build(release: str, python: Path, variables: dict[str, str]) -> Path:
    """One wheel, in dist/."""
    venv, made = WORK / f"venv-{release}", WORK / f"made-{release}"
    if not (venv / "bin" / "python").exists():
        run(python, "-m", "venv", venv)
    run(
        venv / "bin" / "python",
        "-m",
        "pip",
        "install",
        "-q",
        "build",
        "scikit-build-core>=0.10",
        "cython>=3.1,<3.4",
    )
    shutil.rmtree(made, ignore_errors=True)
    folder = f"build-dir={WORK / release}"
    command = ("-m", "build", "--wheel", "--no-isolation", "-C", folder, "-o", made)
    run(venv / "bin" / "python", *command, **variables)
    (plain,) = made.glob("*.whl")
    platform = f"manylinux_{GLIBC.replace('.', '_')}_{os.uname().machine}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run(
        sys.executable,
        "-m",
        "auditwheel",
        "repair",
        "--plat",
        platform,
        "-w",
        made / "named",
        plain,
        PATH=path,
    )
    (named,) = (made / "named").glob("*.whl")
    return Path(shutil.copy(named, DIST))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.wheels.build", description="Wheels for every Python at hand, and the sdist."
    )
    parser.add_argument("pythons", nargs="*", help="interpreters [those on PATH and of pyenv]")
    pythons = find(parser.parse_args().pythons)
    for folder in (WORK, DIST):
        folder.mkdir(parents=True, exist_ok=True)
    for old in DIST.glob("aiordma-*"):
        old.unlink()
    variables = compiler()
    for release, python in sorted(pythons.items()):
        wheel = build(release, python, variables)
        size = wheel.stat().st_size
        print(f"{release}: {wheel.name}, {size / 1e6:.2f} MB", flush=True)
        if size > LIMIT_BYTES:
            raise SystemExit(f"{wheel.name} is larger than {LIMIT_BYTES} bytes")
    run(sys.executable, "-m", "build", "-q", "--sdist", "--no-isolation", "-o", DIST)
    run(sys.executable, "-m", "twine", "check", "--strict", *DIST.glob("aiordma-*"))
    print("twine: no complaint about the wheels and the sdist")


if __name__ == "__main__":
    main()
