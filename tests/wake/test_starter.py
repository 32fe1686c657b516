"""Coroutines that begin at once: they must not be able to tell, whatever they do in their first step."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import wake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from aiordma.wake.base import Starter

pytestmark = pytest.mark.anyio

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")


@pytest.fixture
async def starter(anyio_backend: object) -> AsyncIterator[Starter]:
    made = wake.current().new_starter()
    for _ in range(5):
        await checkpoint()
    yield made
    made.close()


on_asyncio = pytest.mark.parametrize("anyio_backend", [("asyncio", {}), ("asyncio", {"use_uvloop": True})])


async def run(starter: Starter, *mains: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start them all in one turn, and wait for their ends."""
    jobs = [starter.start(main(), contextvars.copy_context()) for main in mains]
    while any(job is not None and not job.done for job in jobs):
        await checkpoint()


@pytest.mark.parametrize("count", [1, 3, 20])
async def test_all_begin_in_order_and_end(starter: Starter, count: int) -> None:
    begun: list[int] = []
    ended: list[int] = []

    def main(i: int) -> Callable[[], Coroutine[Any, Any, None]]:
        async def body() -> None:
            begun.append(i)
            for _ in range(i % 4):
                await checkpoint()
            ended.append(i)

        return body

    await run(starter, *(main(i) for i in range(count)))
    assert sorted(ended) == list(range(count))
    assert sorted(begun) == list(range(count))


@on_asyncio
async def test_what_does_not_wait_has_ended_when_start_returns(starter: Starter) -> None:
    done: list[object] = []

    async def main() -> None:
        done.append(asyncio.current_task())

    me = asyncio.current_task()
    for _ in range(100):
        assert starter.start(main(), contextvars.copy_context()) is None
    assert len(done) == 100
    assert me not in done
    assert None not in done
    assert asyncio.current_task() is me


@on_asyncio
async def test_the_task_is_the_same_before_and_after_waiting(starter: Starter) -> None:
    tasks: list[list[object]] = []

    async def main() -> None:
        seen: list[object] = [asyncio.current_task()]
        tasks.append(seen)
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(asyncio.current_task())

    await run(starter, *[main] * 10)
    assert all(len(set(seen)) == 1 for seen in tasks)
    assert len({id(seen[0]) for seen in tasks}) == 10


async def test_every_coroutine_has_its_own_variables(starter: Starter) -> None:
    seen: list[str] = []

    async def main() -> None:
        assert VARIABLE.get() == "outer"
        VARIABLE.set("inner")
        await checkpoint()
        seen.append(VARIABLE.get())

    VARIABLE.set("outer")
    await run(starter, *[main] * 10)
    assert VARIABLE.get() == "outer"
    assert seen == ["inner"] * 10


async def test_timeouts_and_groups_of_tasks_in_the_first_step(starter: Starter) -> None:
    results: list[str] = []

    async def with_scope() -> None:
        with anyio.move_on_after(0.01):
            await anyio.sleep_forever()
        results.append("scope")

    async def with_group() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(checkpoint)
            tasks.start_soon(anyio.sleep_forever)
            tasks.cancel_scope.cancel()
        results.append("group")

    async def cancelled_at_once() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await checkpoint()
        results.append("at once")

    await run(starter, with_scope, with_group, cancelled_at_once, with_scope, with_group)
    assert sorted(results) == ["at once", "group", "group", "scope", "scope"]


@on_asyncio
async def test_asyncios_own_timeouts_and_groups(starter: Starter) -> None:
    results: list[str] = []

    async def with_timeout() -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            results.append("timeout")

    async def at_once() -> None:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            results.append("at once")

    async def failing() -> None:
        raise ZeroDivisionError

    async def with_group() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(failing())
                await asyncio.Event().wait()
        except* ZeroDivisionError:
            results.append("group")

    async def with_wait_for() -> None:
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        except TimeoutError:
            results.append("wait_for")

    await run(starter, with_timeout, at_once, with_group, with_wait_for, with_timeout, with_group)
    assert sorted(results) == ["at once", "group", "group", "timeout", "timeout", "wait_for"]


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_cancelled_after_some_turns(starter: Starter, turns: int) -> None:
    ended: list[str] = []

    async def main() -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            ended.append("cancelled")
            raise

    jobs = [starter.start(main(), contextvars.copy_context()) for _ in range(10)]
    for _ in range(turns):
        await checkpoint()
    for job in jobs:
        assert job is not None
        job.cancel()
    while not all(job is not None and job.done for job in jobs):
        await checkpoint()
    assert ended == ["cancelled"] * 10


@on_asyncio
async def test_cancelling_cancels_what_is_waited_for(starter: Starter) -> None:
    """The first one waits as an eager coroutine, the second as an ordinary task: both the same way."""
    inner: list[asyncio.Task[None]] = []

    async def main() -> None:
        task = asyncio.ensure_future(anyio.sleep_forever())
        inner.append(task)
        await task

    jobs = [starter.start(main(), contextvars.copy_context()) for _ in range(10)]
    for job in jobs:
        assert job is not None
        job.cancel()
    while not all(job is not None and job.done for job in jobs):
        await checkpoint()
    assert all(task.cancelled() for task in inner)


@on_asyncio
async def test_who_cancels_himself_harms_nobody_else(starter: Starter) -> None:
    done: list[str] = []

    async def suicidal() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        done.append("asked")

    async def innocent() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        done.append("lived")

    for _ in range(20):
        await run(starter, suicidal)
        await run(starter, innocent)
    assert done == ["asked", "lived"] * 20


@on_asyncio
async def test_nested_starts_keep_the_stack_flat(starter: Starter) -> None:
    depth: list[int] = []
    frames: list[int] = []

    async def main() -> None:
        depth.append(len(depth))
        frame, count = sys._getframe(), 0
        while frame.f_back is not None:
            frame, count = frame.f_back, count + 1
        frames.append(count)
        if len(depth) < 50:
            starter.start(main(), contextvars.copy_context())

    starter.start(main(), contextvars.copy_context())
    while len(depth) < 50:
        await checkpoint()
    assert max(frames) - min(frames) < 60


@on_asyncio
async def test_an_exception_that_escapes_is_reported(starter: Starter) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def main(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        raise ZeroDivisionError

    job = starter.start(main(1), contextvars.copy_context())
    while job is not None and not job.done:
        await checkpoint()
    del job
    gc.collect()
    assert isinstance(reported[0]["exception"], ZeroDivisionError)
    task = asyncio.current_task()
    assert starter.start(main(0), contextvars.copy_context()) is None
    assert isinstance(reported[1]["exception"], ZeroDivisionError)
    assert asyncio.current_task() is task
    await run(starter, checkpoint)


async def test_after_closing_coroutines_still_run(starter: Starter) -> None:
    starter.close()
    done: list[int] = []

    async def main() -> None:
        await checkpoint()
        done.append(1)

    await run(starter, main, main)
    assert done == [1, 1]


@on_asyncio
async def test_nothing_is_left(starter: Starter) -> None:
    async def main() -> None:
        await checkpoint()

    before = len(asyncio.all_tasks())
    for _ in range(20):
        await run(starter, *[main] * 10)
    for _ in range(5):
        await checkpoint()
    assert len(asyncio.all_tasks()) <= before
    starter.close()
    for _ in range(5):
        await checkpoint()
    assert len(asyncio.all_tasks()) < before
