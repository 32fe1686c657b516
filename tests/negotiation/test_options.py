"""Options: the keywords of the public functions, their defaults, and what is refused."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma.channels import channel
from aiordma.config import Config
from aiordma.errors import Code
from aiordma.negotiation.options import (
    ConnectKeywords,
    ConnectOptions,
    ListenKeywords,
    ListenOptions,
    PathOptions,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

CONNECT = {
    "config": None,
    "mode": None,
    "local_host": None,
    "ssl": None,
    "server_hostname": None,
    "rdma_outside_tls": False,
}
LISTEN = {
    "config": None,
    "mode": None,
    "backlog": 1024,
    "reuse_address": True,
    "reuse_port": False,
    "max_negotiations": 1024,
    "max_pending": 4096,
    "sockets": None,
    "ssl": None,
    "rdma_outside_tls": False,
}


def keywords(function: Callable[..., object]) -> dict[str, object]:
    parameters = inspect.signature(function).parameters.values()
    others = {p.name for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD}
    # The options take others to say what to write instead of them.
    assert others == ({"unknown"} if function.__name__ == "of" else set())
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("function", [aiordma.connect, aiordma.connect_datagram, ConnectOptions.of])
def test_keywords_of_connect(function: Callable[..., object]) -> None:
    assert keywords(function) == CONNECT


@pytest.mark.parametrize(
    "function", [aiordma.listen, aiordma.listen_datagram, channel.listen, ListenOptions.of]
)
def test_keywords_of_listen(function: Callable[..., object]) -> None:
    assert keywords(function) == LISTEN


def test_own_keywords_come_first() -> None:
    assert list(keywords(channel.connect)) == ["kind", *CONNECT]


@pytest.mark.parametrize(
    ("typed", "source"), [(ConnectKeywords, ConnectOptions.of), (ListenKeywords, ListenOptions.of)]
)
def test_type_checkers_see_the_same_keywords(typed: Any, source: Callable[..., object]) -> None:
    parameters = inspect.signature(source).parameters.values()
    shown = {p.name: p.annotation for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert {name: kind.__forward_arg__ for name, kind in typed.__annotations__.items()} == shown


async def test_an_unknown_keyword_is_an_error() -> None:
    with pytest.raises(TypeError, match="'retries'"):
        await aiordma.connect("127.0.0.1", 1, retries=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'local_host'"):
        await aiordma.listen("127.0.0.1", local_host="127.0.0.1")  # type: ignore[call-arg]


def test_the_mode_is_that_of_the_settings_unless_given() -> None:
    config = Config(mode="tcp")
    assert ConnectOptions.of("host", config=config).mode == "tcp"
    assert ListenOptions.of(config=config, mode="rdma").mode == "rdma"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_negotiations": -1}, "max_negotiations=-1: must be at least 0"),
        ({"max_pending": 0}, "max_pending=0: must be at least 1"),
        ({"mode": "udp"}, "mode='udp': must be one of 'auto', 'rdma', 'tcp'"),
    ],
)
async def test_invalid_options_of_listen(given: dict[str, Any], message: str) -> None:
    for listen in (aiordma.listen, aiordma.listen_datagram, channel.listen):
        with pytest.raises(ValueError, match=message):
            await listen("127.0.0.1", **given)


async def test_invalid_mode_of_connect() -> None:
    for connect in (aiordma.connect, aiordma.connect_datagram, channel.connect):
        with pytest.raises(ValueError, match="mode='udp'"):
            await connect("127.0.0.1", 1, mode="udp")  # type: ignore[arg-type]


def test_what_rules_out_rdma() -> None:
    config = Config()
    assert PathOptions(config, "auto").rdma_ruled_out is None
    assert PathOptions(config, "rdma").rdma_ruled_out is None
    assert PathOptions(config, "tcp").rdma_ruled_out is Code.DISABLED
    for allowed, code in ((False, Code.TLS_PAYLOAD_POLICY), (True, None)):
        options = ConnectOptions.of("host", config=config, mode="auto", ssl=True, rdma_outside_tls=allowed)
        assert options.tls is not None
        assert options.tls.server_hostname == "host"
        assert options.rdma_ruled_out is code
