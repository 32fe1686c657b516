"""The files of the source tree, for the tests that look at the project itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What set-up and builds leave behind; only looked at where git cannot say which files are ours.
MADE = {".git", ".venv", "build", "dist", "_build", "__pycache__", ".hypothesis", "results"}
MADE_SUFFIXES = (".egg-info", "_cache")


def tracked_files() -> list[Path]:
    """Every file that belongs to the project: git's list; in an unpacked sdist all not made here."""
    git = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if git.returncode == 0:
        names = [name for name in git.stdout.decode().split("\0") if name]
        return [ROOT / name for name in names if (ROOT / name).is_file()]
    found = []
    # Folders that were made here are not entered: other parts of the whole check make and remove files there.
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if not _made(name)]
        found += [Path(folder, name) for name in files if not _made(name)]
    return found


def _made(name: str) -> bool:
    return name in MADE or name.endswith(MADE_SUFFIXES)


def text_files() -> list[tuple[Path, str]]:
    """`tracked_files()` that are text, with their content."""
    found = []
    for path in tracked_files():
        try:
            found.append((path.relative_to(ROOT), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return found
