"""The examples in the commands' help."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import click
import pytest

from aiordma.cli.main import main

ROOT = Path(__file__).parents[2]
CONTEXT = click.Context(main, info_name="aiordma", **main.context_settings)
COMMANDS = {name: main.get_command(CONTEXT, name) for name in main.list_commands(CONTEXT)}


def examples(command: click.Command) -> list[str]:
    text = (command.help or "").partition("Examples:")[2]
    found = re.findall(r"^ +(?:export \w+=\$\(|\w+=\S+ )?(aiordma .*?)(?:\)?  .*)?$", text, re.MULTILINE)
    return [each.partition(" | ")[0].rstrip(")") for each in found]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that has the tree's examples, and what a reader has of their own."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name in ("leaf1.json", "leaf2.json", "network.toml"):
        (tmp_path / name).touch()
    (tmp_path / "after").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("name", COMMANDS)
def test_they_are_valid(name: str) -> None:
    command = COMMANDS[name]
    assert command is not None
    found = examples(command)
    assert len(found) >= 3
    for line in found:
        program, own, *arguments = shlex.split(line)
        assert (program, own) == ("aiordma", name)
        with command.make_context(name, arguments, parent=CONTEXT) as context:
            if isinstance(command, click.Group):
                inner, subcommand, rest = command.resolve_command(context, arguments_of(context))
                assert subcommand is not None
                subcommand.make_context(inner, rest, parent=context).close()


def arguments_of(context: click.Context) -> list[str]:
    """What a group leaves to its subcommand; click before 8.2 has another name for it."""
    name = "_protected_args" if hasattr(context, "_protected_args") else "protected_args"
    return [*getattr(context, name), *context.args]


def test_all_commands_are_listed() -> None:
    assert set(COMMANDS) >= {"adm", "doctor", "preload", "stat"}
    shown = main.get_help(CONTEXT)
    assert all(re.search(rf"^  {name} ", shown, re.MULTILINE) for name in COMMANDS)
    assert main.get_command(CONTEXT, "nonsense") is None


def each_command() -> list[tuple[str, click.Command]]:
    """Every command and every subcommand, with its whole name."""
    found = []
    for name, command in COMMANDS.items():
        assert command is not None
        inner = command.commands if isinstance(command, click.Group) else {}
        found += [(name, command), *((f"{name} {each}", sub) for each, sub in inner.items())]
    return found


@pytest.mark.parametrize(("name", "command"), each_command(), ids=lambda value: value)
def test_each_help_has_an_example_and_explains_its_options(name: str, command: click.Command) -> None:
    # Before Python 3.13, each line of a docstring is indented as it is in the source.
    text = inspect.cleandoc(command.help or "")
    assert re.search(rf"^ +.*\baiordma {name}\b", text.replace("--pid 4711 ", ""), re.MULTILINE)
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert [each.name for each in options if not each.help] == []


def test_the_list_of_commands_is_whole_and_begins_with_examples() -> None:
    shown = main.get_help(CONTEXT)
    assert "..." not in shown.partition("Commands:")[2]
    for line in examples(main):
        _, name, *_ = shlex.split(line)
        assert name in COMMANDS
    assert len(examples(main)) >= 3
