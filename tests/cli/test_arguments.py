"""Arguments that several commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from aiordma.cli.arguments import DIAGNOSTICS_PORT, parse_diagnostics, parse_peer
from aiordma.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTHING: Any = None


@pytest.mark.parametrize(
    ("value", "peer"),
    [
        ("server7", ("server7", DIAGNOSTICS_PORT)),
        ("server7:80", ("server7", 80)),
        ("192.0.2.1", ("192.0.2.1", DIAGNOSTICS_PORT)),
        ("::1", ("::1", DIAGNOSTICS_PORT)),
        ("[::1]", ("::1", DIAGNOSTICS_PORT)),
        ("[fe80::1%eth0]", ("fe80::1%eth0", DIAGNOSTICS_PORT)),
        ("[::1]:80", ("::1", 80)),
        (None, None),
    ],
)
def test_a_server_of_diagnostics_has_a_port(value: str | None, peer: tuple[str, int] | None) -> None:
    assert parse_diagnostics(NOTHING, NOTHING, value) == peer


@pytest.mark.parametrize("value", ["", ":80", "server7:", "server7:x", "server7:65536", "[::1]:"])
def test_what_is_no_server(value: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_diagnostics(NOTHING, NOTHING, value)


def test_other_servers_have_no_port_of_their_own() -> None:
    with pytest.raises(click.BadParameter, match="is not HOST:PORT"):
        parse_peer(NOTHING, NOTHING, "server7")


#: Neither looked up nor refused with an `OSError`.
NAMELESS = ["a..b", "x" * 70, ".a", "a\0b", "\udcff"]


@pytest.mark.parametrize("host", NAMELESS, ids=ascii)
@pytest.mark.parametrize(
    "command",
    [
        ["ping", "{}:1"],
        ["ping", "{}"],
        ["perf", "{}"],
        ["doctor", "{}:1"],
        ["top", "--serve", "0", "--host", "{}"],
        ["serve-diagnostics", "--port", "0", "--host", "{}"],
    ],
    ids=" ".join,
)
def test_what_is_no_hosts_name(command: list[str], host: str) -> None:
    words = [each.format(host) for each in command]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert (done.exit_code, "is no host's name" in done.stderr) == (2, True)


def _times(name: str, command: click.Command) -> Iterator[tuple[str, click.Parameter]]:
    """Every option with fractions: each is a time."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            if found is not None and each != "fabric":  # of another product
                yield from _times(f"{name} {each}".strip(), found)
    for option in command.params:
        if isinstance(option.type, click.types.FloatParamType):
            yield f"{name} {option.opts[-1]}", option


TIMES = dict(_times("", main))


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e10", "-1"])
@pytest.mark.parametrize("option", TIMES.values(), ids=TIMES)
def test_what_is_no_time(option: click.Parameter, value: str) -> None:
    with pytest.raises(click.BadParameter):
        option.type.convert(value, option, None)
