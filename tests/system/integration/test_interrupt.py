"""Ctrl-C: a server with streams open on every path ends at once, says nothing of ours, and leaves nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

import aiordma
from tests.loops import LOOPS
from tests.processes import Process, process
from tests.roles import port_of

if TYPE_CHECKING:
    from tests.program import Control

HERE = "tests.system.integration.test_interrupt"
ECHO = "tests.roles:echo_server"
PUMP = "tests.roles:pumping_clients"


async def asyncio_server(control: Control) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await aiordma.start_server(serve, "127.0.0.1", 0)
    control.say(port_of(server))
    async with server:
        await server.serve_forever()


def check_end(server: Process, loop: str) -> None:
    server.kill(signal.SIGINT)
    status = server.wait()
    # Python ends itself by the signal when KeyboardInterrupt goes through, and shows where it was. From
    # trio it comes in a group of exceptions, which ends a program like any other.
    if loop == "trio":
        server.forgive()
        assert status in (1, -signal.SIGINT)
    else:
        assert status == -signal.SIGINT
    text = server.stderr()
    assert "KeyboardInterrupt" in text.splitlines()[-1] + text.splitlines()[-2]
    for word in ("Exception ignored", "never retrieved", "never awaited", "Error:", "destroyed but"):
        assert word not in text, text


ROLES = [(ECHO, loop) for loop in LOOPS] + [
    (f"{HERE}:asyncio_server", loop) for loop in LOOPS if loop != "trio"
]


@pytest.mark.parametrize(("target", "loop"), ROLES)
def test_server(target: str, loop: str) -> None:
    with process(target, loop=loop) as server:
        port = server.hear()
        with process(PUMP, port=port, streams=3) as client:
            plain = process(PUMP, port=port, env={"AIORDMA_MODE": "tcp"})
            with plain as on_tcp:
                for number in range(40):
                    client.hear()
                    if number % 2:
                        on_tcp.hear()
                client.forgive()
                on_tcp.forgive()
                check_end(server, loop)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
