"""Orders of events that are drawn from a seed: what they change and what not, and streams in some of them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from random import Random
from typing import Any

import anyio
import pytest
import trio

from aiordma.wake import outbox
from tests import orders
from tests.streams.pairs import rdma_pair
from tests.world import DEVICE

from .scenarios import SCENARIOS

SEEDS = range(int(os.environ.get("AIORDMA_TEST_SEEDS", "20")))

pytestmark = pytest.mark.skipif(DEVICE != "soft", reason="a device of the kernel has an order of its own")


def on_asyncio(seed: int, main: Callable[[], Awaitable[Any]]) -> Any:
    orders.begin_test(seed, "asyncio")
    with asyncio.Runner(loop_factory=orders.InAnyOrder) as runner:
        return runner.run(main())  # type: ignore[arg-type]


@pytest.fixture
def on_trio(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)

    def run(seed: int, main: Callable[[], Awaitable[Any]]) -> Any:
        orders.begin_test(seed, "trio")
        return trio.run(main)

    return run


async def tasks_and_callbacks() -> tuple[list[int], list[int]]:
    """In which order five tasks, and five callbacks, have run four times."""
    tasks: list[int] = []
    callbacks: list[int] = []

    async def one(number: int) -> None:
        for _ in range(4):
            await asyncio.sleep(0)
            tasks.append(number)
            asyncio.get_running_loop().call_soon(callbacks.append, len(tasks))

    await asyncio.gather(*map(one, range(5)))
    await asyncio.sleep(0)
    return tasks, callbacks


def test_tasks_run_in_any_order_and_callbacks_in_their_own() -> None:
    seen = [on_asyncio(seed, tasks_and_callbacks) for seed in SEEDS]
    assert len({tuple(tasks) for tasks, _ in seen}) == len(seen)
    assert {tuple(callbacks) for _, callbacks in seen} == {tuple(range(1, 21))}


def test_a_seed_gives_the_same_order_again() -> None:
    for seed in SEEDS:
        assert on_asyncio(seed, tasks_and_callbacks) == on_asyncio(seed, tasks_and_callbacks)


async def tasks_of_trio() -> list[int]:
    """In which order five tasks have run four times."""
    tasks: list[int] = []

    async def one(number: int) -> None:
        for _ in range(4):
            await trio.lowlevel.checkpoint()
            tasks.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(one, number)
    return tasks


def test_a_seed_gives_the_same_order_again_on_trio(on_trio: Callable[..., Any]) -> None:
    seen = [on_trio(seed, tasks_of_trio) for seed in SEEDS]
    assert len(set(map(tuple, seen))) > 1
    assert seen == [on_trio(seed, tasks_of_trio) for seed in SEEDS]


async def descriptors() -> list[int]:
    """In which order five sockets are seen that can be read at the same time."""
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    with ExitStack() as opened:
        for number in range(5):
            ours, theirs = map(opened.enter_context, socket.socketpair())
            theirs.send(b"x")
            loop.add_reader(ours, read, ours, number, seen)
            opened.callback(loop.remove_reader, ours)
        while len(seen) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0)
    return seen


def read(ours: socket.socket, number: int, seen: list[int]) -> None:
    ours.recv(1)
    seen.append(number)


def test_descriptors_are_seen_in_any_order_and_in_the_same_with_the_same_seed() -> None:
    seen = [on_asyncio(seed, descriptors) for seed in SEEDS]
    assert all(sorted(each) == list(range(5)) for each in seen)
    assert len(set(map(tuple, seen))) > 1
    assert seen == [on_asyncio(seed, descriptors) for seed in SEEDS]


async def one_filler_and_one_taker() -> None:
    """A program with a fault: the taker relies on its turn after the filler's, as on a plain loop."""
    shelf: list[str] = []

    async def fills() -> None:
        await asyncio.sleep(0)
        shelf.append("bread")

    async def takes() -> None:
        await asyncio.sleep(0)
        shelf.pop()

    await asyncio.gather(fills(), takes())


def test_a_fault_that_only_another_order_shows_is_found() -> None:
    for _ in SEEDS:
        asyncio.run(one_filler_and_one_taker())
    assert (found := seeds_that_find()), "none of the twenty orders shows it"
    assert found == seeds_that_find()


def seeds_that_find() -> list[int]:
    found = []
    for seed in SEEDS:
        try:
            on_asyncio(seed, one_filler_and_one_taker)
        except IndexError:
            found.append(seed)
    return found


def test_no_task_comes_before_a_callback_that_was_there_before() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(50):
            seen: list[str] = []
            first, second = loop.create_future(), loop.create_future()

            async def waits(future: asyncio.Future[None]) -> None:
                await future
                seen.append("task")  # noqa: B023  (it ends in this turn)

            waiting = [asyncio.ensure_future(waits(each)) for each in (first, second)]
            while not all(each._callbacks for each in (first, second)):  # noqa: ASYNC110
                await asyncio.sleep(0)
            first.set_result(None)
            loop.call_soon(seen.append, "callback")
            second.set_result(None)
            await asyncio.gather(*waiting)
            assert seen != ["task", "task", "callback"]

    for seed in SEEDS:
        on_asyncio(seed, main)


# ---- streams


async def both_ways() -> None:
    """Bytes that are sent in three ways at the same time, in both directions, up to the end."""
    one, other = await rdma_pair()
    async with one, other, anyio.create_task_group() as tasks:
        for number, (sender, receiver) in enumerate(((one, other), (other, one))):
            tasks.start_soon(sends, sender, Random(number))
            tasks.start_soon(arrives, receiver, Random(number))


def pieces(random: Random) -> list[bytes]:
    return [random.randbytes(random.choice((1, 30, 5000, 40_000))) for _ in range(40)]


async def sends(stream: Any, random: Random) -> None:
    for at, piece in enumerate(pieces(random)):
        if at % 3:
            stream.send_soon(piece)
        else:
            await stream.send(piece)
        if at % 3 == 1:
            await stream.flush()
    await stream.send_eof()


async def arrives(stream: Any, random: Random) -> None:
    got = bytearray()
    async for part in stream:
        got += part
    whole = got == b"".join(pieces(random))
    assert whole  # pytest would take minutes to show the difference


def test_streams_in_twenty_orders_on_asyncio() -> None:
    for seed in SEEDS:
        on_asyncio(seed, both_ways)


def test_streams_in_twenty_orders_on_trio(on_trio: Callable[..., Any]) -> None:
    for seed in SEEDS:
        on_trio(seed, both_ways)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[each.__name__ for each in SCENARIOS])
def test_what_happens_at_the_same_time_on_asyncio(scenario: Callable[[Random], Awaitable[None]]) -> None:
    for seed in SEEDS:
        on_asyncio(seed, lambda seed=seed: scenario(Random(seed)))  # type: ignore[misc]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[each.__name__ for each in SCENARIOS])
def test_what_happens_at_the_same_time_on_trio(
    scenario: Callable[[Random], Awaitable[None]], on_trio: Callable[..., Any]
) -> None:
    for seed in SEEDS:
        on_trio(seed, lambda seed=seed: scenario(Random(seed)))


async def both_ways_or_stalled() -> None:
    # What was sent twice may leave its receiver waiting: that is found, too. It is no deadline that ends what
    # hangs, so no `fail_after`, which gives a busy machine more time.
    async with asyncio.timeout(5):
        await both_ways()


def test_a_race_that_was_mended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room comes while a send polls for it, and both send the same (``Outbox.push_by``). The mend is taken
    out here. One order in ten shows it; how long a send polls is up to the machine, so others are tried."""
    monkeypatch.setattr(outbox.Outbox, "push_by", lambda self, send: self._move(send))
    with pytest.raises((AssertionError, ExceptionGroup, TimeoutError)):  # noqa: PT012
        for seed in range(200):
            on_asyncio(seed, both_ways_or_stalled)
