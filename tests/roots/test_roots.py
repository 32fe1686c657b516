"""What `make test-distros` and `make test-arm` stand on; the roots themselves take minutes, and root."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.roots import distros, root
from tests.roots.root import HERE, ROOT, copy_tree, make_clone

if TYPE_CHECKING:
    from pathlib import Path


def test_the_copy_of_the_tree_follows_it_and_keeps_what_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "package").mkdir(parents=True)
    (here / "package" / "one.py").write_text("1")
    (here / "package" / "two.py").write_text("2")
    monkeypatch.setattr(root, "ROOT", here)
    monkeypatch.setattr(root, "tracked", lambda: ["package/one.py", "package/two.py"])
    copy_tree(there)
    built = there / ".venv" / "bin" / "python"
    built.parent.mkdir(parents=True)
    built.touch()
    make_clone(there)
    (here / "package" / "two.py").write_text("changed")
    monkeypatch.setattr(root, "tracked", lambda: ["package/two.py"])
    copy_tree(there)
    assert (there / "package" / "two.py").read_text() == "changed"
    assert not (there / "package" / "one.py").exists()
    assert built.exists()
    assert (there / ".git" / "HEAD").exists()
    monkeypatch.setattr(root, "tracked", lambda: ["package/one.py", "package/two.py"])
    copy_tree(there)
    copied = (there / "package" / "one.py").stat()
    assert copied.st_mtime == (here / "package" / "one.py").stat().st_mtime, "a build would run again"
    copy_tree(there)
    assert (there / "package" / "one.py").stat().st_ino == copied.st_ino


def test_the_copy_is_a_clone(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("/build/\n")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "made").touch()
    (tmp_path / "one.py").write_text("1")
    for content in ("1", "2"):
        (tmp_path / "one.py").write_text(content)
        make_clone(tmp_path)
        make_clone(tmp_path)
    git = ("git", "-C", str(tmp_path))
    listed = subprocess.run([*git, "ls-files"], capture_output=True, text=True, check=True).stdout
    assert listed.split() == [".gitignore", "one.py"]
    last = subprocess.run([*git, "show", "HEAD:one.py"], capture_output=True, text=True, check=True).stdout
    assert last == "2"


def test_an_environment_of_another_python_is_made_anew(tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    distros.forget_another(venv, "/usr/bin/python3")
    venv.mkdir()
    (venv / "pyvenv.cfg").write_text("command = /usr/bin/python3 -m venv --system-site-packages /t/.venv\n")
    distros.forget_another(venv, "/usr/bin/python3")
    assert venv.exists()
    distros.forget_another(venv, "/usr/bin/python3.15")
    assert not venv.exists()


def test_the_tree_is_what_git_has() -> None:
    names = root.tracked()
    assert {"Makefile", "tests/roots/enter", "aiordma/CMakeLists.txt"} <= set(names)
    assert not [name for name in names if name.startswith(("build/", ".venv/"))]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (["make"], "no suite given, such as bookworm or bookworm:arm64"),
        (["enter", "--no-such-option", "x", "true"], "unknown option --no-such-option"),
        (["enter", "/nonexistent", "true"], "/nonexistent is no root directory"),
        (["python", "2.7"], "no source is known for Python 2.7"),
        (["namespace", "riscv64", "true"], "no emulator is known for riscv64"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_the_scripts_say_what_is_wrong(command: list[str], answer: str) -> None:
    done = subprocess.run(
        [HERE / command[0], *command[1:]], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode
    assert answer in done.stderr


def test_the_selection_exists() -> None:
    assert [name for name in distros.SELECTION if not (ROOT / name).exists()] == []
