"""Callbacks that end the program: the loop ends as a plain one does, and is whole when it runs again."""

from __future__ import annotations

from typing import Any

import pytest

from aiordma.negotiation import peer_cache

from .carriers import CARRIERS, PLAIN, Carrier
from .escaping import CALLBACKS, failing, goes_on
from .playing import LOOPS
from .stage import Stage, kind

#: There a protocol gets the first bytes from outside of get_buffer(), of which uvloop makes another error.
FIRST_BYTES = {"tcp", "plain client"}


def seen(carrier: Carrier, loop_name: str, callback: str, error: type[BaseException]) -> list[Any]:
    """What the loop has ended with, and what the protocol and the loop's handler of errors have seen."""
    base, act = CALLBACKS[callback]
    loop = LOOPS[loop_name]()
    made: list[Any] = []

    async def begin() -> None:
        stage = Stage(carrier)
        made.extend([stage, *await stage.pair()])

    async def come() -> None:
        stage = made[0]
        near, far = await stage.pair(far=failing(base, callback, error))
        made.extend([near, far])
        stage.loop.call_soon(act, near, far)
        await stage.until(lambda: far.failed)
        await stage.turns()

    async def again() -> list[Any]:
        await going
        stage, witness, other, near, far = made
        await goes_on(stage, witness, other)
        events = [event for event in far.events if not isinstance(event, list)]
        # asyncio's own transport stumbles over its empty buffer when the loop runs again.
        reported = [each for each in stage.trace.get("reported", ()) if each != "AssertionError"]
        found = [events, far.failed, far.transport.is_closing(), reported]
        near.transport.abort()
        far.transport.abort()
        await stage.until(lambda: near.ended and far.ended)
        await goes_on(stage, witness, other)
        await stage.finish()
        return found

    peer_cache.forget()
    with carrier.at_work():
        try:
            loop.run_until_complete(begin())
            going = loop.create_task(come())
            ended = None
            try:
                loop.run_until_complete(going)
            except BaseException as exc:
                ended = kind(exc)
            return [ended, *loop.run_until_complete(again())]
        finally:
            loop.close()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("callback", CALLBACKS)
def test_the_loop_ends_as_a_plain_one(callback: str, loop: str) -> None:
    for error in (KeyboardInterrupt, SystemExit):
        right = [seen(PLAIN, each, callback, error) for each in dict.fromkeys((loop, "asyncio"))]
        found = {
            carrier.name: seen(carrier, loop, callback, error)
            for carrier in CARRIERS
            if (loop, callback) != ("uvloop", "get_buffer") or carrier.name not in FIRST_BYTES
        }
        wrong = {name: trace for name, trace in found.items() if trace not in right}
        assert not wrong, f"plain: {right}"
