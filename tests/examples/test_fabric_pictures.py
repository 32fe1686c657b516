"""The pictures of the how-to guide for networks come from simulations that run."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING

from tests.project.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_the_committed_pictures_are_what_the_program_draws(tmp_path: Path) -> None:
    """The engine does the same on every machine."""
    command = [sys.executable, str(ROOT / "examples" / "fabric" / "pictures.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ", 0 lost" in done.stdout
    drawn = sorted(tmp_path.glob("*.svg"))
    assert len(drawn) == 5
    for picture in drawn:
        assert ElementTree.parse(picture).getroot().attrib["role"] == "img"
        assert picture.read_bytes() == (ROOT / "docs" / "howto" / picture.name).read_bytes()
