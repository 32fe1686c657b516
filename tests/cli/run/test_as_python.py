"""What `python` runs, `aiordma run` runs, with the same output and the same end."""

from __future__ import annotations

import py_compile
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .test_command import COMMAND

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

#: What a program sees of itself.
PROGRAM = "import sys; print(sys.argv, __name__, __file__, ascii('\u00f6'))\n"
PYTHON, RUN = shlex.quote(sys.executable), shlex.join(COMMAND)


def both(place: Path, line: str) -> subprocess.CompletedProcess[bytes]:
    """Run this line of bash, where `py` is python: alone, and under `aiordma run`. There is no difference."""
    plain, ours = (
        subprocess.run(
            ["bash", "-c", f"py() {{ {python} \"$@\"; }}; {line}"],
            capture_output=True, stdin=subprocess.DEVNULL, timeout=120, check=False, cwd=place,
        )
        for python in (PYTHON, RUN)
    )  # fmt: skip
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout), ours.stderr.decode()
    assert plain.stdout
    return ours


@pytest.mark.parametrize("name", ["m.pyc", "m"])
def test_a_compiled_script(tmp_path: Path, name: str) -> None:
    (tmp_path / "m.py").write_text(PROGRAM, encoding="utf-8")
    py_compile.compile(str(tmp_path / "m.py"), str(tmp_path / name), doraise=True)
    assert both(tmp_path, f"py {name} x").returncode == 0


def test_a_source_that_begins_as_a_compiled_one(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_bytes(b"#!\r\nprint(1)\r\n")
    assert both(tmp_path, "py m.py").stdout == b"1\n"


def test_code_of_the_command_line_is_text(tmp_path: Path) -> None:
    assert both(tmp_path, "py -c $'# coding: latin-1\nprint(ascii(\"\u00f6\"))'").stdout == b"'\\xf6'\n"


def test_one_of_another_python(tmp_path: Path) -> None:
    (tmp_path / "m.pyc").write_bytes(b"\x01\x00\r\n" + bytes(40))
    done = both(tmp_path, "py m.pyc; echo $?")
    assert b"Bad magic number in .pyc file" in done.stderr


@pytest.mark.parametrize("coding", ["latin-1", "utf-8"])
def test_standard_input_in_its_own_encoding(tmp_path: Path, coding: str) -> None:
    text = f"# -*- coding: {coding} -*-\nimport sys; print(sys.argv, ascii('\u00f6'))\n"
    (tmp_path / "program.py").write_text(text, coding)
    done = both(tmp_path, "py - x < program.py")
    assert done.stdout == b"['-', 'x'] '\\xf6'\n"


def test_standard_input_that_is_closed(tmp_path: Path) -> None:
    assert both(tmp_path, "py - <&-; echo $?").returncode == 0


@pytest.mark.parametrize(
    "path", ["<(cat program.py) x", "/dev/stdin x < program.py", "/dev/stdin x < <(cat program.py)"]
)
def test_what_is_no_file(tmp_path: Path, path: str) -> None:
    (tmp_path / "program.py").write_text("import sys; print(sys.argv[1:], __name__)\n")
    assert both(tmp_path, f"py {path}").stdout == b"['x'] __main__\n"


@pytest.mark.parametrize(
    "words", ["{}/program.py x", "-c 'import sys; print(sys.argv)' x", "-m program x", "{}/app x"]
)
def test_a_working_directory_that_is_gone(tmp_path: Path, words: str) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("import sys; print(sys.argv, __file__)\n")
    (tmp_path / "program.py").write_text("import sys; print(sys.argv, __file__)\n")
    gone = "mkdir gone; cd gone; rmdir ../gone"
    place = shlex.quote(str(tmp_path))
    done = both(tmp_path, f"{gone}; export PYTHONPATH={place}; py {words.format(place)}")
    assert done.returncode == 0
