"""What each connection of a program under `aiordma run` does not pay for again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

import aiordma
from aiordma.config import Config
from aiordma.launch import loading
from tests.roles import LOCAL

LOOPS: dict[str, Any] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("loop_name", LOOPS)
def test_settings_are_checked_once_and_not_for_each_connection(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To check all of them takes as long as to connect by TCP."""
    aiordma.install()
    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        assert runner.run(_checked_by_five_connections(monkeypatch)) == []


async def _checked_by_five_connections(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, LOCAL, 0)
    port = server.sockets[0].getsockname()[1]
    checked: list[Config] = []
    check = Config.__post_init__

    def counting(config: Config) -> None:
        checked.append(config)
        check(config)

    ends = [await loop.create_connection(asyncio.Protocol, LOCAL, port)]
    monkeypatch.setattr(Config, "__post_init__", counting)
    ends += [await loop.create_connection(asyncio.Protocol, LOCAL, port) for _ in range(5)]
    for transport, _ in ends:
        transport.abort()
    server.close()
    return checked


def test_settings_of_a_changed_environment_are_those_of_the_next_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AIORDMA_HEAD_START_MS", raising=False)
    monkeypatch.delenv("AIORDMA_RING_BYTES", raising=False)
    before = loading.config_of_run(), loading.config_of_accepted()
    monkeypatch.setenv("AIORDMA_RING_BYTES", "131072")
    after = loading.config_of_run(), loading.config_of_accepted()
    assert {config.ring_bytes for config in after} == {131072}
    assert all(config.ring_bytes != 131072 for config in before)
    assert [config.server_first_wait_ms for config in after] == [
        config.server_first_wait_ms for config in before
    ]
    assert after[1].server_first_wait_ms < after[0].server_first_wait_ms
