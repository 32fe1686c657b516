"""The Pythons of this machine that wheels are made for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

#: The releases with wheels. A "t" is free-threaded.
RELEASES = ("3.11", "3.12", "3.13", "3.14", "3.15", "3.13t", "3.14t")

#: What the arguments of both programs mean.
HELP = "interpreters, or 'all': those on PATH, of pyenv and of `make pythons` [/usr/bin/python3]"

#: Made by tests/roots/python.
BUILT = Path(__file__).parents[2] / "build" / "pythons"

_TELL = """
import sys, sysconfig
threaded = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print("%d.%d" % sys.version_info[:2] + threaded, sysconfig.get_path("include"))
"""


def find(named: list[str]) -> dict[str, Path]:
    """A Python for each release, by release: those ``named``, or the system's.

    ``["all"]``: what PATH, pyenv and `make pythons` have.

    Only such as can build extension modules count.

    :raises SystemExit: a named one cannot.
    """
    found: dict[str, Path] = {}
    every = named == ["all"]
    for candidate in _candidates() if every else map(Path, named or ["/usr/bin/python3"]):
        release = _release(candidate)
        if release is None and not every:
            raise SystemExit(
                f"{candidate} cannot build a wheel: it is no Python 3.11 to 3.15 with its headers"
            )
        if release is not None:
            found.setdefault(release, candidate)
    return found


def tags(release: str) -> str:
    """Python and ABI in a wheel's name.

    >>> tags("3.14t")
    'cp314-cp314t'
    """
    python = f"cp{release.rstrip('t').replace('.', '')}"
    return f"{python}-{python}t" if release.endswith("t") else f"{python}-{python}"


def _candidates() -> list[Path]:
    on_path = [shutil.which(f"python{release}") for release in RELEASES]
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    installed = sorted(root.glob("versions/*/bin/python3"), reverse=True)
    return [*(Path(path) for path in on_path if path), *installed, *sorted(BUILT.glob("*/bin/python3"))]


def _release(python: Path) -> str | None:
    try:
        done = subprocess.run([python, "-c", _TELL], capture_output=True, text=True, check=False)
    except OSError:
        return None
    release, _, include = done.stdout.strip().partition(" ")
    usable = done.returncode == 0 and release in RELEASES and Path(include, "Python.h").is_file()
    return release if usable else None
