"""`python -m tests.wheels.check`: installs each wheel of dist/ into an empty environment, and uses it there.

Without system packages, compiler, clone or pyverbs: the README's program must run by RDMA, and so must the
demo and the tests of SELECTION on the installed package. pip takes aiordma and what it needs from an index on
this host, by name, as it will from the registry.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import tomllib
from pathlib import Path

from tests.wheels.build import DIST, ROOT, UNOPTIMIZED, WORK
from tests.wheels.index import ALONE, serve
from tests.wheels.pythons import HELP, find, tags

#: Blocking calls of the package show here: blockbuster does not see them in an editable install.
SELECTION = (
    "tests/streams",
    "tests/verbs",
    "tests/compat",
    "tests/rpc",
    "tests/wake",
    "tests/datagrams",
    "tests/channels",
    "tests/memory",
    "tests/negotiation",
    "tests/links",
)
LIMIT_S = 3600


def program(readme: str, port: int) -> str:
    """The first Python program of the README, on a port of its own."""
    found = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert found is not None
    return found[1].replace("7000", str(port))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def copy_of_tree(name: str, to: Path) -> None:
    """Of a file or a folder of the tree, without what was made in it."""
    if (ROOT / name).is_dir():
        made = shutil.ignore_patterns("_build", "*.so", "__pycache__")
        shutil.copytree(ROOT / name, to / name, ignore=made)
    else:
        shutil.copy(ROOT / name, to / name)


class Environment:
    """An empty virtual environment, and a folder with the tests but without the package's sources."""

    def __init__(self, release: str, python: Path) -> None:
        self.folder = WORK / f"empty-{release}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.bin = self.folder / "venv" / "bin"
        subprocess.run([python, "-m", "venv", self.folder / "venv"], check=True)

    def run(self, *command: str | Path, **more: str) -> str:
        """:raises SystemExit: it failed; its output is shown then."""
        variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIORDMA_", "SOFTDEV_", "PYTHON"))
        }
        if more.keys() >= ALONE.keys():
            variables = {name: value for name, value in variables.items() if not name.startswith("PIP_")}
        # No compiler; the tests call openssl and others.
        variables |= {
            "PATH": f"{self.bin}:/usr/sbin:/usr/bin:/sbin:/bin",
            "CC": "/bin/false",
            "AIORDMA_VERBS": "own",
        } | more
        done = subprocess.run(
            command, cwd=self.folder, env=variables, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            print(done.stdout[-6000:])
            raise SystemExit(f"failed: {' '.join(map(str, command))}")
        return done.stdout.strip()

    def install(self, wheel: Path, *, compiler: bool) -> None:
        """What the README says, with the index on this host: it has the sdist, too, which pip must not take.

        :param compiler: not all that aiordma needs has wheels for this Python: they may be built.
        """
        needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        only = () if compiler else ("--only-binary", ":all:")
        fetch = ("wheel", "-q", *only, "-w", self.folder / "needs", *needs)
        self.run(self.bin / "pip", *fetch, CC="cc" if compiler else "/bin/false")
        files = [wheel, *wheel.parent.glob("aiordma-*.tar.gz"), *(self.folder / "needs").iterdir()]
        with serve(files) as url:
            self.run(self.bin / "pip", "install", "-q", "--index-url", url, "aiordma", **ALONE)

    def readme(self, wheel: Path, **more: str) -> str:
        """The last line that the README's program prints.

        :raises SystemExit: it did not use RDMA.
        """
        printed = self.run(self.bin / "python", "program.py", **more)
        if "by rdma" not in printed:
            raise SystemExit(f"{wheel.name}: the README's program printed {printed!r}")
        return printed.splitlines()[-1]

    def tests(self) -> str:
        """The summary of the tests of SELECTION, which run on the installed package."""
        self.run(self.bin / "pip", "install", "-q", "-r", ROOT / "requirements-dev.txt")
        for name in ("tests", "examples", "docs", "pyproject.toml", "README.md"):
            copy_of_tree(name, self.folder)
        # Free-threaded Python says that it switches the GIL on, and the tests take a warning for an error.
        options = ("-q", "-n", "2", "--one-loop", "-W", "ignore:The global interpreter lock:RuntimeWarning")
        last = self.run(self.bin / "python", "-m", "pytest", *options, *SELECTION)
        return last.splitlines()[-1]


def check(wheel: Path, release: str, python: Path, *, tests: bool) -> None:
    here = Environment(release, python)
    here.install(wheel, compiler=release.endswith("t"))
    version = here.run(here.bin / "aiordma", "--version")
    (here.folder / "program.py").write_text(program((ROOT / "README.md").read_text(), free_port()))
    printed = here.readme(wheel)
    doctor = here.run(here.bin / "aiordma", "doctor").splitlines()[-1]
    print(f"{release}: {version}; the README's program: {printed}; {doctor}", flush=True)
    # As in a clone, where the README has it installed: a folder of this name, which cannot be imported.
    (clone := here.folder / "aiordma").mkdir()
    (clone / "__init__.py").write_text("raise ImportError('this is not what is installed')")
    shown = here.run(here.bin / "aiordma", "demo", "--seconds", "0.05").splitlines()
    shutil.rmtree(clone)
    print(f"{release}: aiordma demo: {len(shown)} lines, and at the end: {shown[-1].strip()}", flush=True)
    if release.endswith("t"):
        print(f"{release}: without the GIL: {here.readme(wheel, PYTHON_GIL='0')}", flush=True)
    if tests:
        print(f"{release}: {here.tests()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.wheels.check", description="Tries each wheel in an empty environment."
    )
    parser.add_argument("pythons", nargs="*", help=HELP)
    parser.add_argument("--no-tests", action="store_true", help="only the README's program and the doctor")
    parser.add_argument(
        "--unoptimized", action="store_true", help="the wheels of build/wheels/unoptimized instead of dist's"
    )
    given = parser.parse_args()
    dist = UNOPTIMIZED if given.unoptimized else DIST
    checked = 0
    for release, python in sorted(find(given.pythons).items()):
        for wheel in dist.glob(f"aiordma-*-{tags(release)}-*_{os.uname().machine}.whl"):
            check(wheel, release, python, tests=not given.no_tests)
            checked += 1
    if not checked:
        raise SystemExit(
            f"{dist.relative_to(ROOT)}/ has no wheel for such a Python: build it first, with the same PYTHONS"
        )


if __name__ == "__main__":
    main()
