"""What opening a connection to a known peer costs in Python, counted and not timed."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma.config import Config
from tests import patient
from tests.health import check_echo
from tests.loops import LOOPS
from tests.negotiation.serving import serving
from tests.roles import echo
from tests.world import DEVICE

from .known import forbid_asking, known_peer

if TYPE_CHECKING:
    from types import FrameType

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[name for name in LOOPS if name != "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Not trio: there each connect gives other tasks a turn, which would be counted."""
    return LOOPS[request.param]


_PACKAGE = str(Path(aiordma.__file__).parent)
#: Functions of this package that are written in Python and called by one connect(). There were 71 when
#: this test was written, 98 before; the search for leaks came later, and so did the note of how long a
#: server that negotiates has been silent, and the name by which a server of this host knows that the
#: client will speak (seven calls; four of them were measured: 10 us of 400). Two more since links are told
#: by the address of their peer and by their secret, and three since each connect looks whether the SYN may
#: ask for SMC-R (0.2 us together, on a host that is not set up). Six more since a plain server that is known
#: by its SYN-ACK is heard of before a device is opened (a process' first connect to one: 11 ms, 0.2 ms
#: since). More want a reason, and a measurement.
_CALLS = 98


async def test_a_connect_calls_no_more_functions_than_it_needs(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("orders") is not None:
        pytest.skip("in other orders other functions are called")
    patient.as_for_users(monkeypatch)  # each variable that is set is looked up
    frames: set[FrameType] = set()  # a coroutine that goes on has the same one

    def count(frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_PACKAGE):
            frames.add(frame)

    counts: list[Counter[str]] = []
    async with serving(echo, config=Config(device=DEVICE)) as listener, known_peer(listener.port) as known:
        await known.has_grant()
        forbid_asking(monkeypatch, known.engine)
        gc.collect()  # what earlier tests left would be forgotten while this counts
        for _ in range(3):  # where a connect waits, timers of others are counted, too
            before = sys.getprofile()
            sys.setprofile(count)
            try:
                stream = await known.connect()
            finally:
                sys.setprofile(before)
            counts.append(
                Counter(f"{Path(each.f_code.co_filename).name}:{each.f_code.co_name}" for each in frames)
            )
            frames.clear()
            async with stream:
                await check_echo(stream)
            await known.has_grant()
    called = min(counts, key=Counter.total)
    assert called.total() <= _CALLS, called.most_common()
