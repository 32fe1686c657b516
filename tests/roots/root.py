"""A root directory of a Debian release, with this tree in it, and what is run there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

#: Where the tree is inside, and what a build leaves there.
TREE = "/aiordma"
MADE = {".git", ".venv", "build", "dist"}


class Failed(Exception):
    """A command failed. Its text is what was run, and the end of what it printed."""


def tracked() -> list[str]:
    """The tree's files, relative: those of git, and new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def copy_tree(to: Path) -> None:
    """Make ``to`` the tree as it is here. What was built there stays; unchanged files keep their time."""
    wanted = set(tracked())
    for path in to.rglob("*") if to.exists() else ():
        name = path.relative_to(to)
        stale = name.suffix != ".pyc" and str(name) not in wanted and name.parts[0] not in MADE
        if stale and not path.is_dir() and not _is_made(name):
            path.unlink()
    for each in wanted:
        source, target = ROOT / each, to / each
        if not target.exists() or target.stat().st_mtime != source.stat().st_mtime:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def make_clone(tree: Path) -> None:
    """Make a copy of the tree a clone, as some of its tests want it: one commit of all that is in it."""
    git = ("git", "-C", str(tree), "-c", "user.name=tests", "-c", "user.email=tests@localhost")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "--no-verify", "-m", "the tree"], check=True)


def _is_made(name: Path) -> bool:
    return name.parts[0] == "examples" and name.suffix in {".so", ".c"}


class Root:
    """A root of a release (``"trixie"``, or ``"bookworm:arm64"``), made with the packages if it is not there.

    :raises Failed: it could not be made; the reason is on standard error.
    """

    def __init__(self, release: str, *packages: str) -> None:
        made = subprocess.run(
            [HERE / "make", release, *packages], check=False, stdout=subprocess.PIPE, text=True
        )
        if made.returncode:
            raise Failed(f"no root of {release}")
        self.path = Path(made.stdout.strip()).resolve()
        self.tree = self.path / TREE.lstrip("/")

    def run(
        self, *command: str, offline: bool = False, limit_s: float = 1800, log: str = "", **variables: str
    ) -> str:
        """What the command printed; it runs in :data:`TREE`, if that is there.

        :param offline: without the machine's network: 127.0.0.1 only.
        :param log: the name of a file beside the root that has what a long command has printed so far.
        :raises Failed: it failed, or took longer than ``limit_s`` seconds.
        """
        options = ["--offline"] if offline else []
        for name, value in variables.items():
            options += ["--env", f"{name}={value}"]
        inside = ["sh", "-c", f'cd {TREE} 2>/dev/null; exec "$@"', "sh", *command]
        enter = [str(HERE / "enter"), *options, str(self.path), *inside]
        path = Path(f"{self.path}.logs", log or "last")
        if log:
            print(f"== {self.path.name}: {path} shows how far it is", flush=True)
        with path.open("w") as output:
            process = subprocess.Popen(enter, stdout=output, stderr=subprocess.STDOUT)
            try:
                process.wait(timeout=limit_s)
            except BaseException as error:
                # Its processes are in a namespace whose first one ends with it, and ignores others.
                process.kill()
                process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                printed = path.read_text(errors="replace")[-4000:]
                raise Failed(f"{' '.join(command)} took longer than {limit_s:.0f} s\n{printed}") from None
        printed = path.read_text(errors="replace")
        if process.returncode:
            raise Failed(f"{' '.join(command)} failed\n{printed[-8000:]}")
        return printed.strip()


def need_root() -> None:
    """:raises SystemExit: not root, who alone can make and enter root directories."""
    if os.geteuid():
        raise SystemExit("root is needed to make and to enter root directories (chroot, mount): use sudo")
