"""What a round trip of asyncio's streams costs in Python, counted and not timed."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma.config import Config
from tests.loops import LOOPS
from tests.world import DEVICE

if TYPE_CHECKING:
    import asyncio
    from types import FrameType

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[name for name in LOOPS if name != "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return LOOPS[request.param]


_PACKAGE = str(Path(aiordma.__file__).parent)
_TRIPS = 100
#: Calls of functions of this package that are written in Python, of both ends, for one round trip of 64 B.
#: They were 35: twelve asked whether a backlog is empty, moved nothing, or slept in a coroutine of their own,
#: which was 13,800 of 76,600 instructions. A coroutine that goes on after a wait counts as called again.
_CALLS = 23


async def test_a_round_trip_calls_no_more_functions_than_it_needs(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("orders") is not None:
        pytest.skip("in other orders other functions are called")
    called: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_PACKAGE):
            called[f"{Path(code.co_filename).name}:{code.co_name}"] += 1

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(64):
            writer.write(data)
        writer.close()

    config = Config(device=DEVICE)
    server: Any = await aiordma.start_server(echo, "127.0.0.1", 0, config=config)
    reader, writer = await aiordma.open_connection(*server.sockets[0].getsockname(), config=config)
    for trip in range(_TRIPS + 10):
        if trip == 10:
            before = sys.getprofile()
            sys.setprofile(count)
        writer.write(bytes(64))
        await reader.readexactly(64)
    sys.setprofile(before)
    assert writer.transport.get_extra_info("aiordma.path") == "rdma"
    writer.close()
    await writer.wait_closed()
    server.close()
    # Less than one for each: a timer, or what is still to be set up.
    assert called.total() // _TRIPS <= _CALLS, called.most_common()
