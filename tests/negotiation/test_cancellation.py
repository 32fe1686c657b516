"""A negotiation cancelled at any of its awaits, on either side, leaves nothing behind and harms nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from aiordma.config import Config
from aiordma.errors import Code
from aiordma.proto.clc import Decline
from aiordma.streams.connector import connect
from aiordma.streams.listener import listen
from tests.health import descriptors, until
from tests.virtual import in_virtual_time

from .fake import Engine, Trouble
from .serving import LOCAL, check_echo, serving
from .test_hostile import PROPOSAL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.anyio

CLIENT_STEPS = ["find", "propose", "accepted", "established"]
SERVER_STEPS = ["answer", "confirmed"]


def hang_at(engine: Engine, step: str) -> anyio.Event:
    """The next time that the engine gets to ``step`` it stays there; the event tells that it is there."""
    reached = anyio.Event()

    async def hang() -> None:
        engine.trouble = Trouble()
        reached.set()
        await anyio.sleep_forever()

    engine.trouble = Trouble(**{step: hang})
    return reached


@pytest.mark.parametrize("step", CLIENT_STEPS)
async def test_client_cancelled_at_a_step_of_its_engine(engine: Engine, step: str) -> None:
    async with serving() as listener:
        async with await connect(LOCAL, listener.port):  # everything is loaded and known now
            pass
        await until(lambda: not listener.statistics().undecided)
        before = len(descriptors())
        reached = hang_at(engine, step)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connect, LOCAL, listener.port)
            with anyio.fail_after(5):
                await reached.wait()
            tasks.cancel_scope.cancel()
        if (
            step != "established"
        ):  # then the fake server's end is up, and its pipe cannot see the TCP connection
            await until(lambda: len(descriptors()) <= before)
            await until(lambda: not listener.statistics().undecided + listener.statistics().negotiating)
        async with await connect(LOCAL, listener.port) as friend:
            assert friend.path == "rdma"
            await check_echo(friend)


@pytest.mark.parametrize("step", SERVER_STEPS)
async def test_listener_closed_at_a_step_of_its_engine(engine: Engine, step: str) -> None:
    listener = await listen(LOCAL)
    reached = hang_at(engine, step)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(expect_failure, listener.port)
        with anyio.fail_after(5):
            await reached.wait()
        await listener.aclose()
    await until(lambda: not listener._jobs)


async def expect_failure(port: int) -> None:
    # Before the Accept the server looks like one that does not negotiate; then nobody listens any more.
    with pytest.raises(OSError, match=r"."):
        await connect(LOCAL, port)


async def cancel_after_turns(turns: int, call: Callable[[], Awaitable[object]]) -> bool:
    """Run ``call`` and cancel it after some turns of the loop; whether it ended before that."""
    ended = False

    async def run() -> None:
        nonlocal ended
        result = await call()
        ended = True
        await result.aclose()  # type: ignore[attr-defined]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    return ended


@pytest.mark.parametrize("first_contact", [True, False])
async def test_client_cancelled_in_every_turn_of_the_loop(engine: Engine, first_contact: bool) -> None:
    engine.first_contact = first_contact
    async with serving() as listener:
        async with await connect(LOCAL, listener.port):
            pass
        completed = 0
        for turns in range(60):
            completed += await cancel_after_turns(turns, lambda: connect(LOCAL, listener.port))
        assert completed
        async with await connect(LOCAL, listener.port) as friend:
            await check_echo(friend)
        # A pipe that one end of the fake has made and the other has not taken belongs to nobody.
        engine.halves.clear()


async def test_nothing_is_left_of_many_connections(engine: Engine) -> None:
    async with serving() as listener:

        async def once() -> None:
            async with await connect(LOCAL, listener.port) as stream:
                await stream.send(b"x")
                await stream.receive()

        await once()
        await until(lambda: not listener.statistics().undecided)
        before = len(descriptors())
        for _ in range(50):
            await once()
        await until(lambda: len(descriptors()) <= before)
        assert not listener._jobs
        assert not engine.halves


@in_virtual_time
async def test_listener_closed_while_a_client_on_a_shared_link_decides(engine: Engine) -> None:
    """The server waits for its decision; the socket is closed only when the loop watches it no more."""
    engine.first_contact = False
    broken: list[str] = []
    listener = await listen(LOCAL, config=Config(negotiate_timeout_ms=200))
    async with await anyio.connect_tcp(LOCAL, listener.port) as client:
        await client.send(PROPOSAL)
        await client.receive()  # the Accept
        [contact] = engine.offers
        contact.break_link = broken.append  # type: ignore[method-assign, assignment]
        await listener.aclose()
        await until(lambda: not listener._jobs)
    assert broken == ["the client of a new connection did not answer in time"]
    # The next sockets get the number of the closed one.
    async with serving() as again:
        for _ in range(3):
            async with await connect(LOCAL, again.port) as stream:
                await check_echo(stream)


async def test_a_client_that_declines_harms_no_shared_link(engine: Engine) -> None:
    """Also where the server serves nothing but RDMA, and so fails."""
    engine.first_contact = False
    broken: list[str] = []
    async with serving(mode="rdma") as listener:
        async with await anyio.connect_tcp(LOCAL, listener.port) as client:
            await client.send(PROPOSAL)
            await client.receive()  # the Accept
            [contact] = engine.offers
            contact.break_link = broken.append  # type: ignore[method-assign, assignment]
            await client.send(Decline(diagnosis=Code.OUT_OF_MEMORY).encode())
            await until(lambda: listener.statistics().failed == 1)
        assert contact.done
        assert broken == []
