"""Coroutines that begin at once: they must not be able to tell, whatever they do in their first step."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import weakref
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
    done: list[bool] = []

    async def main() -> None:
        done.append(asyncio.current_task() in (None, me))

    me = asyncio.current_task()
    for _ in range(100):
        assert starter.start(main(), contextvars.copy_context()) is None
    assert done == [False] * 100
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


def as_key(task: Any, kept: Any) -> bool:
    return bool(kept.setdefault("keys", {}).setdefault(task, 0))


def as_weak_key(task: Any, kept: Any) -> bool:
    table = kept.setdefault("table", weakref.WeakKeyDictionary())
    found = task in table
    table[task] = None
    kept.setdefault("cycle", []).append(table)
    return found


def as_attribute(task: Any, kept: Any) -> bool:
    found = hasattr(task, "of_this_call")
    task.of_this_call = 1
    return found


def by_name(task: Any, kept: Any) -> bool:
    names = kept.setdefault("names", set())
    found = task.get_name() in names
    names.add("".join(task.get_name()))
    return found


def by_new_name(task: Any, kept: Any) -> bool:
    found = task.get_name() == "mine"
    task.set_name("mine")
    return bool(found)


def with_callback(task: Any, kept: Any) -> bool:
    kept["calls"] = kept.get("calls", 0) + 1
    task.add_done_callback(lambda done: kept.setdefault("ended", []).append(done.done()))
    return False


def cancelled_and_not(task: Any, kept: Any) -> bool:
    found = task.cancelling() > 0 or task._must_cancel
    task.cancel()
    task.uncancel()
    return bool(found)


def in_a_cycle(task: Any, kept: Any) -> bool:
    found = any(task is other for other in kept.setdefault("tasks", []))
    kept["tasks"].append(task)
    return found


USES = [
    as_key,
    as_weak_key,
    as_attribute,
    by_name,
    by_new_name,
    with_callback,
    cancelled_and_not,
    in_a_cycle,
]


@on_asyncio
@pytest.mark.parametrize("turns", [0, 1, 3])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
async def test_each_coroutine_has_a_task_of_its_own(starter: Starter, use: Any, turns: int) -> None:
    """Whatever it leaves with its task, the next one does not find; and its end is the task's."""
    kept: dict[str, Any] = {}
    found: list[bool] = []

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        assert task in asyncio.all_tasks()
        found.append(use(task, kept))

    for _ in range(30):
        starter.start(main(), contextvars.copy_context())
        for _ in range(turns):
            await checkpoint()
    for _ in range(5):
        await checkpoint()
    assert found == [False] * 30
    if use is with_callback:
        assert kept["ended"] == [True] * 30
    kept.clear()
    # And it waits as ever.
    await run(starter, *[checkpoint] * 10)


@on_asyncio
async def test_a_task_that_nobody_looks_at_serves_the_next(starter: Starter) -> None:
    """That is what makes them cheap."""
    before = len(asyncio.all_tasks())

    async def main() -> None:
        async with asyncio.timeout(1000):  # noqa: ASYNC100  # it looks at its task, and keeps it for a while
            VARIABLE.set("inner")

    made: set[int] = set()
    for _ in range(100):
        assert starter.start(main(), contextvars.copy_context()) is None
        made.update(id(task) for task in asyncio.all_tasks())
    assert len(made) == before


@on_asyncio
async def test_plain_functions_run_as_no_task(starter: Starter) -> None:
    me = asyncio.current_task()

    def function(*args: int, **kwargs: int) -> Any:
        VARIABLE.set("inner")
        return asyncio.current_task(), args, kwargs

    VARIABLE.set("outer")
    assert starter.call(function, [1, 2], {"a": 3}, contextvars.copy_context()) == (None, (1, 2), {"a": 3})
    assert VARIABLE.get() == "outer"
    assert asyncio.current_task() is me
    with pytest.raises(ZeroDivisionError):
        starter.call(lambda: 1 // 0, [], {}, contextvars.copy_context())
    assert asyncio.current_task() is me
