"""The tree works on every machine: it names no directory of one, and no package registry's host."""

from __future__ import annotations

import re

from . import layers
from .tree import ROOT, text_files

# Split so that this file does not find itself.
MACHINE_PATHS = re.compile(r"(?<![\w.$}~-])/(?:wor" + r"k|hom" + r"e/\w+|roo" + r"t|User" + r"s)/")
REGISTRY_HOSTS = re.compile(
    r"pypi\." + r"org|pythonhos" + r"ted|deb\.deb" + r"ian|security\.deb" + r"ian|anaconda\." + r"org"
)


def _findings(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_the_patterns_find_what_they_are_for() -> None:
    assert MACHINE_PATHS.search("cd /wor" + "k/main")
    assert MACHINE_PATHS.search('open("/hom' + 'e/me/x")')
    assert not MACHINE_PATHS.search("build/work" + "/x")
    assert REGISTRY_HOSTS.search("https://pypi." + "org/simple")


def test_no_path_of_a_machine() -> None:
    assert _findings(MACHINE_PATHS) == []


def test_no_registry_host() -> None:
    assert _findings(REGISTRY_HOSTS) == []


def test_the_tree_was_looked_at() -> None:
    names = {str(path) for path, _ in text_files()}
    assert {"pyproject.toml", "Makefile", "aiordma/__init__.py"} <= names


def test_tests_mirror_the_packages() -> None:
    """A folder of tests names the package it tests, unless it tests several, or what is no package."""
    others = {"system", "programs", "project", "contracts", "examples", "shadow"}
    others |= {"vm", "soak", "wheels", "roots", "retry", "card"}
    packages = {path.parent.name for path in (ROOT / "aiordma").glob("*/__init__.py")}
    beside = {"softdev", "rocefabric", "pytest_softdev"}
    packages |= beside
    modules = {path.stem for path in (ROOT / "aiordma").glob("*.py")}
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")}
    assert folders - others <= packages | modules
    inner = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").glob("*/*/__init__.py")}
    for folder in inner:
        if folder.parts[0] not in others:
            package = (ROOT if folder.parts[0] in beside else ROOT / "aiordma") / folder
            assert package.is_dir() or package.with_suffix(".py").is_file(), folder


def readme_map() -> list[str]:
    """The lines of the README's map of the tree."""
    found = re.search(
        r"## Where things are\n.*?```text\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S
    )
    assert found is not None
    return found[1].splitlines()


def test_the_readme_has_a_map_in_ten_lines() -> None:
    lines = readme_map()
    assert len(lines) <= 10
    for line in lines:
        folders = re.match(r" *((?:[\w-]+/ ?)+)", line)
        assert folders is not None, line
        place = ROOT / "aiordma" if line.startswith(" ") else ROOT
        assert [name for name in folders[1].split() if not (place / name).is_dir()] == [], line


def test_a_folder_of_the_map_imports_from_lines_above() -> None:
    """And each package has its line."""
    inside = [line for line in readme_map() if line.startswith(" ")]
    line_of = {name: at for at, line in enumerate(inside) for name in re.findall(r"(\w+)/", line)}
    packages = {name for name in layers.NEEDS if (ROOT / "aiordma" / name).is_dir()}
    assert packages - line_of.keys() == set()
    edges = [(one, other) for one, needs in layers.NEEDS.items() for other in needs.split()]
    known = {(one, other) for one, other in edges if {one, other} <= line_of.keys()}
    assert {(one, other) for one, other in known if line_of[one] < line_of[other]} == set()
