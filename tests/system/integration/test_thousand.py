"""1,000 streams between two processes: one QP, every stream's bytes its own, and all of it given back."""

from __future__ import annotations

import anyio
import pytest

import aiordma
from tests.health import nothing_left
from tests.processes import PATIENCE, process
from tests.roles import LOCAL, statistics

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

STREAMS = 1000


async def test_a_thousand_streams() -> None:
    # A busy machine may need longer than the usual wait to bring a Proposal from one process to the other.
    with process("tests.roles:echo_server", ring_bytes=16384, server_first_wait_ms=60_000) as server:
        port = await server.heard()
        await aiordma.links.engine.current(aiordma.Config(ring_bytes=16384))
        async with nothing_left():
            up: list[int] = []
            all_up = anyio.Event()
            limiter = anyio.CapacityLimiter(64)

            async def client(number: int) -> None:
                async with limiter:
                    stream = await aiordma.connect(
                        LOCAL, port, config=aiordma.Config(ring_bytes=16384), mode="rdma"
                    )
                async with stream:
                    up.append(number)
                    if len(up) == STREAMS:
                        all_up.set()
                    await all_up.wait()
                    for turn in range(3):
                        message = f"stream {number}, message {turn}".encode() * 40
                        await stream.send(message)
                        answer = b""
                        while len(answer) < len(message):
                            answer += await stream.receive()
                        assert answer == message
                    await stream.send_eof()
                    with pytest.raises(anyio.EndOfStream):
                        await stream.receive()

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    for number in range(STREAMS):
                        tasks.start_soon(client, number)
                    await all_up.wait()
                    mine = await statistics()
                    server.say("statistics?")
                    theirs = await server.heard()
            for side in (mine, theirs):
                assert [link["connections"] for link in side["links"]] == [STREAMS]
                assert side["memory"]["used_bytes"] >= STREAMS * 16384
            assert mine["links"][0]["qp_num"] == theirs["links"][0]["peer_qp_num"]
        with anyio.fail_after(PATIENCE):
            while True:
                server.say("statistics?")
                theirs = await server.heard()
                if theirs["links"][0]["connections"] == 0:
                    break
        in_advance = theirs["links"][0]["ticket_ring_bytes"]
        assert theirs["memory"]["used_bytes"] - in_advance == (await statistics())["memory"]["used_bytes"]
