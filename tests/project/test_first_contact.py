"""What `connect()` passes on its way to a server that it does not know: it may become less, and not more."""

from __future__ import annotations

import subprocess
import sys

from .tree import ROOT

#: Files of the rooms through which a contact is made.
MOST = 25


def test_the_first_contact_passes_few_files_and_does_not_climb() -> None:
    command = [sys.executable, "-m", "tests.project.first_contact"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert run.returncode == 0, run.stderr
    *_, files, climbs = run.stdout.splitlines()
    _, of_rooms = (int(word) for word in files.split() if word.isdecimal())
    assert of_rooms <= MOST, run.stdout
    assert climbs.startswith("0 climbs"), run.stdout
