"""``aiordma``: the command with its subcommands."""

from __future__ import annotations

import importlib

import click

__all__ = ["main"]

#: Each has a folder of its name, whose `command.py` is imported when it is used: most start faster alone.
_COMMANDS = (
    "adm",
    "debug-bundle",
    "demo",
    "doctor",
    "fabric",
    "perf",
    "ping",
    "preload",
    "run",
    "serve-diagnostics",
    "smcr",
    "stat",
    "top",
)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        found: click.Command = getattr(importlib.import_module(f".{name}.command", __package__), name)
        return found


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aiordma")
def main() -> None:
    """RDMA for Python programs: tools around the library aiordma."""
