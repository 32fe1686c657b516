"""`python -m tests.roots.distros`: installs aiordma on other Debian releases, and runs tests there by RDMA.

Each release has a root directory of its own, made by mmdebstrap from nothing but `make`: what the README says
is done there, as a newcomer would, with the distribution's own Python and pyverbs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from typing import TYPE_CHECKING

from tests.roots.root import ROOT, Failed, Root, copy_tree, make_clone, need_root
from tests.wheels.check import program

if TYPE_CHECKING:
    from pathlib import Path

#: By age: the oldest that is supported, the current one, and the next.
RELEASES = ("bookworm", "trixie", "forky")
SELECTION = ("tests/streams", "tests/verbs", "tests/compat", "tests/rpc", "tests/links")
VERSIONS = """\
import platform, sys
from importlib import metadata
print(f"Python {platform.python_version()}, glibc {platform.libc_ver()[1]}, anyio", metadata.version("anyio"))
"""


def check(release: str, selection: list[str], workers: str, version: str) -> str:
    """The summary of the tests.

    :param version: as for :func:`wheels`. Another Python than the release's own has no pyverbs.
    :raises Failed: something failed.
    """
    root = Root(release, "git", *packages_of(version))
    copy_tree(root.tree)
    make_clone(root.tree)
    began = time.monotonic()
    interpreter = f"/usr/bin/python{version}"
    forget_another(root.tree / ".venv", interpreter)
    root.run("make", "install", f"PYTHON={interpreter}", limit_s=3600)
    took = time.monotonic() - began
    python = ".venv/bin/python"
    # Debian's pyverbs is built for the release's own Python only.
    pyverbs, binding = ("import pyverbs\n", {}) if version == "3" else ("", {"AIORDMA_VERBS": "own"})
    print(f"{release}: {root.run(python, '-c', pyverbs + VERSIONS)}; make install: {took:.0f} s", flush=True)
    (root.path / "tmp" / "program.py").write_text(program((ROOT / "README.md").read_text(), 7000))
    printed = root.run(python, "/tmp/program.py", offline=True)
    if "by rdma" not in printed:
        raise Failed(f"the README's program printed {printed!r}")
    print(f"{release}: the README's program: {printed}", flush=True)
    # As `make test` does: each on one of its event loops.
    how = ("-n", workers, "--dist", "loadgroup", "--one-loop", "-m", "not long")
    tests = ("-m", "pytest", "-q", *how, *selection)
    output = root.run(python, *tests, offline=True, limit_s=3600, log="tests", **binding)
    return output.splitlines()[-1].strip("= ")


def own_tests(release: str, version: str) -> str:
    """CPython's own asyncio tests, without aiordma and under `aiordma run`, as a table.

    :param version: as for :func:`wheels`.
    :raises Failed: a test passes without aiordma only.
    """
    root = Root(release, "git", *packages_of(version))
    copy_tree(root.tree)
    make_clone(root.tree)
    interpreter = f"/usr/bin/python{version}"
    forget_another(root.tree / ".venv", interpreter)
    root.run("make", "install", f"PYTHON={interpreter}", limit_s=3600)
    command = ("-m", "tests.programs", "cpython", "--python", interpreter)
    return root.run(".venv/bin/python", *command, limit_s=3600, log="programs").rpartition("\n\n")[2]


def packages_of(version: str) -> list[str]:
    """What a release's Python needs for a venv and a build; its own comes with `make install`."""
    return [] if version == "3" else [f"python{version}-dev", f"python{version}-venv"]


def forget_another(venv: Path, interpreter: str) -> None:
    """Remove the environment that an earlier run has left, if it is one of another Python."""
    made = venv / "pyvenv.cfg"
    if made.exists() and f"command = {interpreter} -m venv " not in made.read_text():
        shutil.rmtree(venv)


def wheels(release: str, version: str) -> str:
    """Build and try a wheel for a Python of the release, where this machine has none, and bring it to dist/.

    :param version: such as "3.15"; "3": the release's own.
    """
    root = Root(release, *packages_of(version))
    copy_tree(root.tree)
    python = f"PYTHONS=/usr/bin/python{version}"
    root.run("make", "wheels", python, limit_s=3600)
    printed = root.run("make", "test-wheels", python, limit_s=3600)
    for wheel in (root.tree / "dist").glob("*.whl"):
        (ROOT / "dist").mkdir(exist_ok=True)
        shutil.copy2(wheel, ROOT / "dist")
    return "\n".join(line for line in printed.splitlines() if line.startswith("3."))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.roots.distros",
        description="Installs aiordma on other Debian releases, and runs tests there by RDMA.",
    )
    parser.add_argument("releases", nargs="*", help=f"releases of Debian [{' '.join(RELEASES)}]")
    parser.add_argument("--tests", nargs="+", default=list(SELECTION), help="what pytest runs")
    parser.add_argument("--workers", default="2", help="tests at a time [2]")
    parser.add_argument(
        "--wheels", action="store_true", help="build and try a wheel for the release's Python instead"
    )
    parser.add_argument(
        "--programs",
        action="store_true",
        help="run Python's own asyncio tests under `aiordma run` instead",
    )
    parser.add_argument("--python", default="3", help="another Python of the release, as 3.15")
    given = parser.parse_args()
    need_root()
    failed = []
    for release in given.releases or RELEASES:
        try:
            if given.wheels:
                done = wheels(release, given.python)
            elif given.programs:
                done = own_tests(release, given.python)
            else:
                done = check(release, given.tests, given.workers, given.python)
            print(f"{release}: {done}", flush=True)
        except Failed as error:
            print(f"{release}: {error}", flush=True)
            failed.append(release)
    if failed:
        sys.exit(f"failed on {', '.join(failed)}")


if __name__ == "__main__":
    main()
