"""Callbacks of datagram protocols that raise what is no `Exception`: the endpoint goes on, and where the loop
ends by it, when it runs again.

asyncio alone is the reference, for uvloop as well: the whole loop ends there by whatever is no `Exception`,
and an endpoint whose connection_made() has failed receives nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from aiordma.negotiation import peer_cache
from tests.roles import LOCAL

from .carriers import CARRIERS, PLAIN, Carrier
from .datagrams import Datagrams, both_close
from .escaping import KINDS, failing
from .playing import LOOPS
from .stage import Stage, kind

#: Of the far end, whose callbacks raise.
CALLBACKS = ("connection_made", "datagram_received", "error_received", "connection_lost")
#: Whose far end is ours. (What install() replaces leaves the loop's own endpoints as they are.)
OURS = [carrier for carrier in CARRIERS if carrier.server.ours]


async def open_near(stage: Stage) -> Any:
    """An endpoint that sends to any other."""

    def factory() -> Datagrams:
        return Datagrams(stage, "near")

    return (await stage.client.create_datagram_endpoint(factory, local_addr=(LOCAL, 0)))[1]


async def open_far(stage: Stage, near: Any, kind_of: type[Any] = Datagrams, name: str = "far") -> Any:
    """One that sends to the near one only: such a one is told that nobody is there."""

    def factory() -> Any:
        return kind_of(stage, name)

    address = near.transport.get_extra_info("sockname")
    return (await stage.server.create_datagram_endpoint(factory, remote_addr=address))[1]


async def reaches(stage: Stage, near: Any, far: Any, data: bytes) -> None:
    """A datagram to the far end."""
    near.transport.sendto(data, far.transport.get_extra_info("sockname"))
    await stage.until(lambda: ("bytes", data) in far.events)


async def refused(stage: Stage, far: Any, times: int) -> None:
    """The far end, whose peer has closed, sends until it was told so often that nobody is there."""

    def told() -> bool:
        if far.failed < times:
            # As a callback: which of two calls gets the socket's error, this one or a later read, is open.
            stage.loop.call_soon(far.transport.sendto, b"in vain")
        return bool(far.failed >= times)

    await stage.until(told)


class Play:
    """A far end whose callback raises, and endpoints beside it."""

    def __init__(self, callback: str, error: type[BaseException]) -> None:
        self.callback, self.error = callback, error
        self.stage: Any = None
        self.near: Any = None
        self.far: Any = None

    async def begin(self, carrier: Carrier) -> None:
        self.stage = Stage(carrier)
        self.witness = await open_near(self.stage)
        self.other = await open_far(self.stage, self.witness, name="other")
        self.near = await open_near(self.stage)

    async def come(self) -> None:
        """The callback comes for the first time. The loop may end meanwhile."""
        stage, near = self.stage, self.near
        self.far = far = await open_far(stage, near, failing(Datagrams, self.callback, self.error))
        if self.callback == "datagram_received":
            await reaches(stage, near, far, b"bad")
        elif self.callback == "error_received":
            await both_close(stage, near)
            await refused(stage, far, 1)
        elif self.callback == "connection_lost":
            await both_close(stage, far)
        await stage.turns()

    async def go_on(self) -> list[Any]:
        """All works as ever; what the far end and the loop's handler of errors have seen."""
        stage, near, far = self.stage, self.near, self.far
        if self.callback == "error_received":
            await refused(stage, far, 2)
        elif self.callback != "connection_lost":
            await reaches(stage, near, far, b"good")
        closing = far.transport.is_closing()
        await reaches(stage, self.witness, self.other, b"as ever")
        await stage.turns()  # what was sent in vain last is told
        await both_close(stage, near, far, self.witness, self.other)
        seen = [event for i, event in enumerate(far.events) if far.events.index(event) == i]
        await stage.finish()
        return [closing, seen, stage.trace.get("reported")]


def seen(carrier: Carrier, loop_name: str, callback: str, error: type[BaseException]) -> list[Any]:
    """What the loop has ended with, and what was seen."""
    play = Play(callback, error)
    loop = LOOPS[loop_name]()
    peer_cache.forget()

    async def again(coming: Any) -> list[Any]:
        await coming
        return await play.go_on()

    with carrier.at_work():
        try:
            loop.run_until_complete(play.begin(carrier))
            coming, ended = loop.create_task(play.come()), None
            try:
                loop.run_until_complete(coming)
            except BaseException as exc:
                ended = kind(exc)
            return [ended, *loop.run_until_complete(again(coming))]
        finally:
            loop.close()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("callback", CALLBACKS)
def test_an_endpoint_goes_on_as_a_plain_one(callback: str, loop: str) -> None:
    for error in (*KINDS, KeyboardInterrupt, SystemExit):
        right = seen(PLAIN, "asyncio", callback, error)
        found = {carrier.name: seen(carrier, loop, callback, error) for carrier in OURS}
        wrong = {name: trace for name, trace in found.items() if trace != right}
        assert not wrong, f"{error.__name__}: plain: {right}"
