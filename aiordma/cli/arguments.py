"""Arguments that several commands have."""

from __future__ import annotations

import contextlib
import ipaddress
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Where ``aiordma serve-diagnostics`` listens unless it is told otherwise.
DIAGNOSTICS_PORT = 7118


class Time(click.FloatRange):
    """A time, in whatever unit. Nothing can wait for what is no number (``nan`` is within every range of
    click's), nor for longer than :attr:`MOST`.
    """

    MOST = 1e9

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not found <= self.MOST:
            self.fail(f"{value} is not a time: it is a number, and at most {self.MOST:g}", param, ctx)
        return found


def parse_peer(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, int] | None:
    """``HOST:PORT``, with brackets around an IPv6 address."""
    if value is None:
        return None
    return _host_and_port(value, value)


def parse_diagnostics(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, int] | None:
    """The same, or ``HOST`` alone for the port where ``aiordma serve-diagnostics`` listens."""
    if value is None:
        return None
    is_address = value.count(":") > 1 and not value.startswith("[")
    if value.startswith("[") and value.endswith("]"):
        value, is_address = value[1:-1], True
    if is_address:
        with contextlib.suppress(ValueError):
            ipaddress.IPv6Address(value.partition("%")[0])
            return value, DIAGNOSTICS_PORT
    return _host_and_port(value, value if ":" in value else f"{value}:{DIAGNOSTICS_PORT}")


def _host_and_port(value: str, whole: str) -> tuple[str, int]:
    host, colon, port = whole.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 65536):
        raise click.BadParameter(f"{value!r} is not HOST:PORT")
    return _named(host.strip("[]")), int(port)


def parse_host(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """``HOST``, to listen on."""
    return _named(value)


def _named(host: str) -> str:
    from ..addresses import is_nameable  # not for --help

    if not is_nameable(host):
        raise click.BadParameter(f"{host!r} is no host's name")
    return host


def with_options(options: Sequence[Callable[..., Any]]) -> Callable[[Any], Any]:
    """A decorator for a command with many of them, in the order of its help."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
