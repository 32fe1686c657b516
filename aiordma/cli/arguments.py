"""Arguments that several commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["DIAGNOSTICS_PORT", "parse_peer", "with_options"]

#: Where ``aiordma serve-diagnostics`` listens unless it is told otherwise.
DIAGNOSTICS_PORT = 7118


def parse_peer(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, int] | None:
    """``HOST:PORT``, with brackets around an IPv6 address."""
    if value is None:
        return None
    host, colon, port = value.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 65536):
        raise click.BadParameter(f"{value!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def with_options(options: Sequence[Callable[..., Any]]) -> Callable[[Any], Any]:
    """A decorator for a command with many of them, in the order of its help."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
