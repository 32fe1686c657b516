"""Arguments that several commands have."""

from __future__ import annotations

import click

__all__ = ["DIAGNOSTICS_PORT", "parse_peer"]

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
