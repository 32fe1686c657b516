"""What commands show and write where the locale is not UTF-8: names that it has no characters for are no
failure."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.rocefabric.networks import STAR
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

NAME = "\u6570\u636e"
PROGRAM = """
import aiordma, anyio, sys

async def main():
    async with await aiordma.listen("127.0.0.1") as listener:
        async with await aiordma.connect("127.0.0.1", listener.port):
            print("ready", flush=True)
            await anyio.to_thread.run_sync(sys.stdin.read)

anyio.run(main)
"""
#: A terminal of Western Europe, and the locale C without Python's own help.
LOCALES = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
}


@pytest.fixture(params=LOCALES)
def locale(request: pytest.FixtureRequest) -> dict[str, str]:
    return {**os.environ, "AIORDMA_DEVICE": DEVICE, **LOCALES[request.param]}


@pytest.fixture(scope="module")
def pid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("names") / f"{NAME}.py"
    path.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "AIORDMA_DEVICE": DEVICE},
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        yield started.pid
        assert started.stdin is not None
        started.stdin.close()
        assert started.wait() == 0


def run(locale: dict[str, str], *command: str) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [sys.executable, *command], env=locale, capture_output=True, timeout=60, check=False
    )
    assert b"Traceback" not in done.stderr, done.stderr
    return done


def has_name(out: bytes) -> bool:
    """For ASCII, click takes UTF-8 in some places."""
    return b"??" in out or NAME.encode() in out


@pytest.mark.parametrize("entry", ["aiordma", "xr"])
@pytest.mark.parametrize(
    "words", [["stat", "--all"], ["top", "-n", "1"], ["adm", "list"]], ids=lambda w: w[0]
)
def test_names_of_programs(locale: dict[str, str], pid: int, entry: str, words: list[str]) -> None:
    name, *rest = words
    its = [*rest, "--pid", str(pid)] if name != "adm" else ["--pid", str(pid), *rest]
    script = f"from aiordma.cli.{name}.command import {name}; {name}()"
    done = run(locale, *(["-m", "aiordma", name] if entry == "aiordma" else ["-c", script]), *its)
    assert (done.returncode, done.stderr) == (0, b"")
    assert has_name(done.stdout)


def test_names_of_networks(locale: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "star.toml"
    path.write_text(STAR.format(hosts=4, more="").replace("one switch", NAME), encoding="utf-8")
    done = run(locale, "-m", "aiordma", "fabric", "plan", str(path))
    assert (done.returncode, has_name(done.stdout)) == (0, True)


def test_a_page_is_utf_8(locale: dict[str, str], tmp_path: Path) -> None:
    hosts, page = tmp_path / "hosts", tmp_path / "mesh.html"
    hosts.write_text("127.0.0.1:1\n127.0.0.1:2\n")
    words = ["ping", "--mesh", str(hosts), "-n", "1", "--html"]
    assert run(locale, "-m", "aiordma", *words, str(page)).returncode == 1  # nobody is there
    assert "\u00b5s" in page.read_text(encoding="utf-8")
    shown = run(locale, "-m", "aiordma", *words, "-").stdout.decode()
    assert page.read_text(encoding="utf-8").partition("<p>")[0] in shown


def test_a_program_s_own_output_stays_as_it_is(locale: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys; print(sys.stdout.errors)")
    assert run(locale, "-m", "aiordma", "run", str(tmp_path / "program.py")).stdout == b"strict\n"
