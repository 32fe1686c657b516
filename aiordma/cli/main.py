"""``aiordma``: the command with its subcommands."""

from __future__ import annotations

import click

from .preload import preload

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aiordma")
def main() -> None:
    """RDMA for Python programs: tools around the library aiordma."""


main.add_command(preload)
