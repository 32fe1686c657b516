"""``aiordma``: the command with its subcommands."""

from __future__ import annotations

import importlib

import click

__all__ = ["main"]

#: Subcommands and their modules, which are imported when they are used: most start faster alone.
_COMMANDS = {
    "adm": "adm",
    "debug-bundle": "bundle",
    "demo": "demo.command",
    "doctor": "doctor",
    "fabric": "fabric",
    "perf": "perf",
    "ping": "ping",
    "preload": "preload",
    "run": "run",
    "serve-diagnostics": "serve",
    "stat": "stat",
    "top": "top",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f".{_COMMANDS[cmd_name]}", __package__)
        found: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return found


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aiordma")
def main() -> None:
    """RDMA for Python programs: tools around the library aiordma."""
