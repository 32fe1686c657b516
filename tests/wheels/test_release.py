"""What a release stands on: an index that pip installs from by name, and what must agree with a tag."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.wheels import index, release
from tests.wheels.build import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def _wheel(folder: Path, name: str, version: str, needs: str = "") -> Path:
    """One that pip takes: a module of one line."""
    made = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        archive.writestr(f"{info}/METADATA", metadata + (f"Requires-Dist: {needs}\n" if needs else ""))
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return made


def _pip(url: str, what: str, to: Path) -> subprocess.CompletedProcess[str]:
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("PIP_")
    } | index.ALONE
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--index-url",
        url,
        "--target",
        to,
        what,
    ]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_pip_installs_by_name_from_the_index_what_it_has_and_nothing_else(tmp_path: Path) -> None:
    files = [
        _wheel(tmp_path, "aio_here", "0.2.0", needs="aio-needed>=1"),
        _wheel(tmp_path, "aio_needed", "1.0"),
    ]
    with index.serve([*files, _wheel(tmp_path, "aio_here", "0.1.0")]) as url:
        done = _pip(url, "aio-here", tmp_path / "to")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "to" / "aio_here.py").read_text() == "VERSION = '0.2.0'\n"
        assert (tmp_path / "to" / "aio_needed.py").is_file()
        # It is in the registry, and so in whatever index this machine is set to.
        absent = _pip(url, "click", tmp_path / "other")
        assert absent.returncode
        assert "No matching distribution found for click" in absent.stderr


def test_pip_refuses_a_file_that_is_not_the_one_that_the_index_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _wheel(tmp_path, "aio_here", "0.2.0")
    answers = index.pages([file])
    answers[f"/files/{file.name}"] += b"more"
    monkeypatch.setattr(index, "pages", lambda files: answers)
    with index.serve([file]) as url:
        done = _pip(url, "aio-here", tmp_path / "to")
    assert done.returncode
    assert "HASHES" in done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what names the version, with a changelog of today's form."""
    (tmp_path / "aiordma").mkdir()
    for name in ("pyproject.toml", "aiordma/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0 (2026-12-01)\n\nText.\n")
    return tmp_path


FILES = ["aiordma-0.1.0-cp311-cp311-manylinux_2_27_x86_64.whl", "aiordma-0.1.0.tar.gz"]


def test_the_tree_names_one_version() -> None:
    assert len(set(release.versions(ROOT).values())) == 1


def test_a_release_has_no_complaints(tree: Path) -> None:
    assert release.complaints("v0.1.0", tree, FILES) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "what"),
    [
        ("pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"', "pyproject.toml has version 0.2.0"),
        ("aiordma/__init__.py", '= "0.1.0"', '= "0.2.0"', "aiordma/__init__.py has version 0.2.0"),
        ("CHANGELOG.md", "## 0.1.0", "## 0.2.0", "CHANGELOG.md has version 0.2.0"),
        ("CHANGELOG.md", "2026-12-01", "unreleased", "no heading `## 0.1.0 \\(YYYY-MM-DD\\)`"),
    ],
)
def test_what_does_not_agree_is_named(tree: Path, name: str, old: str, new: str, what: str) -> None:
    text = (tree / name).read_text()
    assert old in text
    (tree / name).write_text(text.replace(old, new))
    with pytest.raises(AssertionError, match=what):
        assert release.complaints("v0.1.0", tree, FILES) == []


def test_files_that_are_missing_or_of_another_version_are_named(tree: Path) -> None:
    found = release.complaints("v0.1.0", tree, ["aiordma-0.0.9-cp311-cp311-manylinux_2_27_x86_64.whl"])
    assert found == [
        "there is no aiordma-0.1.0.tar.gz",
        "aiordma-0.0.9-cp311-cp311-manylinux_2_27_x86_64.whl is of another version",
    ]


def test_a_signature_is_seen() -> None:
    tag = "object 1\ntype commit\ntag v0.1.0\n\nText.\n"
    assert not release.signed(tag)
    assert release.signed(tag + "-----BEGIN SSH SIGNATURE-----\nU1N\n-----END SSH SIGNATURE-----\n")
    assert release.signed(tag + "-----BEGIN PGP SIGNATURE-----\n")
