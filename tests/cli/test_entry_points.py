"""The commands by the names that are installed, and what a shell completes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from aiordma.cli import entry
from aiordma.cli.main import main

_SCRIPTS: dict[str, str] = tomllib.loads(
    (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
)["project"]["scripts"]


def command_of(script: str) -> Any:
    module, _, name = _SCRIPTS[script].partition(":")
    found = getattr(importlib.import_module(module), name)
    return found


def test_the_names_of_the_paper_are_subcommands() -> None:
    assert command_of("aiordma") is entry.main
    context = click.Context(main)
    short = {name: command_of(name) for name in _SCRIPTS if name != "aiordma"}
    assert set(short) == {"xr-adm", "xr-perf", "xr-ping", "xr-stat", "xr-top"}
    for name, command in short.items():
        assert main.get_command(context, name.removeprefix("xr-")) is command


@pytest.mark.parametrize(
    ("script", "line", "expected"),
    [
        ("aiordma", "aiordma to", {"top"}),
        ("aiordma", "aiordma pi", {"ping"}),
        ("aiordma", "aiordma stat --w", {"--watch"}),
        ("xr-stat", "xr-stat --kind s", {"stream"}),
        ("xr-perf", "xr-perf --plo", {"--plot"}),
    ],
)
def test_a_shell_completes(script: str, line: str, expected: set[str]) -> None:
    """As bash asks for it, by the variable that the reference names."""
    module, _, name = _SCRIPTS[script].partition(":")
    variable = f"_{script.upper().replace('-', '_')}_COMPLETE"
    words = line.split(" ")
    program = f"from {module} import {name}; {name}(prog_name={script!r})"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, variable: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    assert {each.partition(",")[2] for each in done.stdout.splitlines()} == expected


@pytest.mark.parametrize(
    "arguments",
    [["stat", "--schema"], ["doctor", "--help"], ["fabric", "plan", "clos64.toml", "-o", "/dev/full"]],
    ids=lambda words: words[0],
)
def test_a_full_disk_is_said_in_one_line(arguments: list[str]) -> None:
    """It was a traceback."""
    folder = Path(__file__).parents[2] / "examples" / "fabric"
    command = [sys.executable, "-m", "aiordma", *arguments]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.stderr == "Error: the output cannot be written: No space left on device\n"
    assert done.returncode == 1
