"""``aiordma``: the command with its subcommands."""

from __future__ import annotations

import importlib

import click

#: In the order of a first use. Each has a folder of its name, whose `command.py` is imported when it is used:
#: most start faster alone, and so does the list of all.
_COMMANDS = {
    "demo": "See in a minute what aiordma does on this machine.",
    "doctor": "Find out whether RDMA works here, and to a server.",
    "run": "Run a Python program so that its connections use RDMA.",
    "stat": "Show connections: path, reason for TCP, bytes.",
    "top": "Watch connections, links and calls, with rates.",
    "adm": "Change running programs: settings, paths, fault rules.",
    "serve-diagnostics": "Answer `aiordma ping` and `aiordma perf`.",
    "ping": "Measure round trips to `aiordma serve-diagnostics`.",
    "perf": "Measure throughput and rates to it, beside TCP.",
    "debug-bundle": "Collect in one file what a report of a fault needs.",
    "preload": "Run any program of libibverbs on the software device.",
    "smcr": "Prepare a host for SMC-R with sockets of Linux.",
    "fabric": "Plan and simulate a lossless network.",
}

#: Of another product in the wheel.
_ELSEWHERE = {"fabric": "rocefabric.command.group"}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = _ELSEWHERE.get(name, f"{__package__}.{name}.command")
        found: click.Command = getattr(importlib.import_module(module), name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aiordma")
def main() -> None:
    """RDMA for Python programs: tools around the library aiordma. `aiordma COMMAND --help` has examples.

    \b
    Examples:
      aiordma doctor                                does RDMA work here?
      aiordma run uvicorn app:app                   a program as it is, on RDMA where its peer is
      aiordma stat                                  which connections use RDMA, and why others do not
    """
