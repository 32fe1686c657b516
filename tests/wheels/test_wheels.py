"""What `make wheels` and `make test-wheels` stand on; the wheels themselves take minutes."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.wheels import pythons
from tests.wheels.build import ROOT
from tests.wheels.check import SELECTION, program

THIS = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_the_program_of_the_readme_gets_a_port_of_its_own() -> None:
    text = program((ROOT / "README.md").read_text(encoding="utf-8"), 4711)
    ast.parse(text)
    assert text.count("4711") == 2
    assert "7000" not in text
    assert "stream.path" in text


def test_only_pythons_that_can_build_are_found() -> None:
    assert pythons.find([sys.executable]) == {THIS: Path(sys.executable)}
    with pytest.raises(SystemExit, match="/bin/true cannot build a wheel"):
        pythons.find(["/bin/true"])
    with pytest.raises(SystemExit, match="cannot build a wheel"):
        pythons.find(["python3.0"])


def test_without_names_it_is_the_systems_python() -> None:
    (release,) = pythons.find([])
    assert pythons.find(["/usr/bin/python3"]) == {release: Path("/usr/bin/python3")}
    assert release in pythons.find(["all"])


def test_the_readmes_way_to_install_is_checked() -> None:
    """The commands that the README names, and the whole check that runs it."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^\$ make wheels .*\n\$ pip install dist/aiordma-\*\.whl ", readme, re.MULTILINE)
    parts = re.search(r"parts=\((.*)\)", (ROOT / ".ci/run").read_text(encoding="utf-8"))
    assert parts is not None
    assert "test-install" in parts[1].split()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^test-install: .*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    assert re.findall(r"-m tests[.]wheels[.](\w+) --unoptimized ", recipe[1]) == ["build", "check"]


def test_the_selection_exists() -> None:
    assert [name for name in SELECTION if not (ROOT / name).exists()] == []


def test_tags_tell_free_threaded_from_others() -> None:
    assert [pythons.tags(release) for release in ("3.11", "3.14", "3.14t")] == [
        "cp311-cp311",
        "cp314-cp314",
        "cp314-cp314t",
    ]
