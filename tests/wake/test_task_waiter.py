"""Waiters in the place of futures: what tasks, asyncio and anyio may do with one; when the task goes on."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import borrowed, wake
from aiordma.wake import _private
from aiordma.wake._asyncio import AsyncioWaiter
from tests.processes import FULL_PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiordma.wake._waiter import TaskWaiter, WakeUps

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio", "asyncio+uvloop"], indirect=True),
    pytest.mark.skipif(not borrowed.ENABLED, reason=f"{borrowed.VARIABLE} is off"),
]

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")


def wake_ups() -> WakeUps:
    found: WakeUps | None = wake.current()._wake_ups  # type: ignore[attr-defined]
    assert found is not None, "these loops show their queues"
    return found


class Waiting:
    """A task that waits once; what became of it."""

    def __init__(self, waiter: TaskWaiter, name: str, seen: list[str]) -> None:
        self.waiter, self.name, self.seen = waiter, name, seen
        self.task = asyncio.get_running_loop().create_task(self.main(), name=name)

    async def main(self) -> None:
        VARIABLE.set(self.name)
        await self.waiter.wait()
        assert VARIABLE.get() == self.name
        assert asyncio.current_task() is self.task
        self.seen.append(self.name)


async def in_the_loop(*steps: Callable[[], object]) -> None:
    """Run ``steps`` one after the other in one callback of the loop: no task runs meanwhile."""
    done = asyncio.get_running_loop().create_future()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for step in steps:
                step()
        except BaseException as error:
            errors.append(error)
        done.set_result(None)

    asyncio.get_running_loop().call_soon(run)
    await done
    for error in errors:
        raise error


async def waiting(count: int) -> tuple[list[TaskWaiter], list[Waiting], list[str]]:
    seen: list[str] = []
    waiters = [wake_ups().new_waiter() for _ in range(count)]
    tasks = [Waiting(waiter, f"task {n}", seen) for n, waiter in enumerate(waiters)]
    await checkpoint()
    await checkpoint()
    return waiters, tasks, seen


async def test_the_only_one_goes_on_right_behind_the_callback() -> None:
    (waiter,), (task,), seen = await waiting(1)

    def callback() -> None:
        VARIABLE.set("of the callback")
        waiter.set()
        waiter.set()
        assert seen == [], "not inside the callback"
        seen.append("callback")

    def after() -> None:
        assert VARIABLE.get() == "of the callback"
        assert asyncio.current_task() is None
        seen.append("after")

    await in_the_loop(wake_ups().watched(callback), after)
    assert seen == ["callback", "task 0", "after"]
    await task.task


async def test_several_go_on_through_the_queue_in_their_order() -> None:
    waiters, tasks, seen = await waiting(3)

    def callback() -> None:
        for waiter in waiters:
            waiter.set()

    await in_the_loop(wake_ups().watched(callback), lambda: seen.append("after"))
    await asyncio.gather(*(task.task for task in tasks))
    assert seen == ["after", "task 0", "task 1", "task 2"]


async def test_others_that_are_ready_go_first() -> None:
    (waiter,), (task,), seen = await waiting(1)
    loop = asyncio.get_running_loop()

    def callback() -> None:
        loop.call_soon(seen.append, "ready")
        waiter.set()

    await in_the_loop(wake_ups().watched(callback), lambda: seen.append("after"))
    await task.task
    assert seen == ["after", "ready", "task 0"]


async def test_outside_of_such_callbacks_it_is_the_queue() -> None:
    (waiter,), (task,), seen = await waiting(1)
    await in_the_loop(waiter.set, lambda: seen.append("after"))
    await task.task
    assert seen == ["after", "task 0"]


async def test_a_callback_that_fails_has_woken_its_task_all_the_same() -> None:
    (waiter,), (task,), seen = await waiting(1)

    def callback() -> None:
        waiter.set()
        raise LookupError("from the callback")

    with pytest.raises(LookupError):
        await in_the_loop(wake_ups().watched(callback))
    await task.task
    # And the next callback is as any.
    (waiter,), (task,), seen = await waiting(1)
    await in_the_loop(wake_ups().watched(waiter.set), lambda: seen.append("after"))
    assert seen == ["task 0", "after"]
    await task.task


async def test_a_loop_inside_a_callback() -> None:
    """Debuggers and notebooks run one. The end of its callbacks is not the end of the outer one."""
    (waiter,), (task,), seen = await waiting(1)
    inner = wake_ups().watched(waiter.set)

    def outer() -> None:
        inner()
        seen.append("outer")

    await in_the_loop(wake_ups().watched(outer))
    await task.task
    assert seen == ["outer", "task 0"]


async def test_a_task_that_ends_the_program_is_not_held_back() -> None:
    waiter = wake_ups().new_waiter()

    async def leaves() -> None:
        await waiter.wait()
        raise SystemExit(3)

    task = asyncio.get_running_loop().create_task(leaves())
    await checkpoint()
    with pytest.raises(SystemExit):
        await in_the_loop(wake_ups().watched(waiter.set))
    with pytest.raises(SystemExit):
        task.result()


# ---- cancellation ----------------------------------------------------------------------------------------


async def test_a_cancelled_task_gets_its_message_and_leaves_the_waiter_usable() -> None:
    (waiter,), (waits,), seen = await waiting(1)
    waits.task.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await waits.task
    assert seen == []
    again = Waiting(waiter, "again", seen)
    await checkpoint()
    await in_the_loop(wake_ups().watched(waiter.set))
    await again.task
    assert seen == ["again"]


async def test_cancelled_in_the_callback_that_has_woken_it() -> None:
    """As with a future that is done: the task is cancelled, and the set() is there for the next one."""
    (waiter,), (waits,), seen = await waiting(1)

    def callback() -> None:
        waiter.set()
        waits.task.cancel()

    await in_the_loop(wake_ups().watched(callback))
    with pytest.raises(asyncio.CancelledError):
        await waits.task
    assert seen == []
    with anyio.fail_after(5):
        await waiter.wait()


async def test_timeouts_and_wait_for() -> None:
    waiter = wake_ups().new_waiter()

    async def waits() -> None:
        await waiter.wait()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waits(), 0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await waiter.wait()
    with anyio.move_on_after(0.01) as scope:
        await waiter.wait()
    assert scope.cancelled_caught
    waiter.set()
    await asyncio.wait_for(waits(), FULL_PATIENCE)


async def test_two_tasks_at_one_waiter_are_a_mistake() -> None:
    waiter = wake_ups().new_waiter()
    waiter.wait()
    waiter.add_done_callback(lambda _: None, context=contextvars.copy_context())
    with pytest.raises(RuntimeError, match="two tasks"):
        waiter.add_done_callback(lambda _: None)


# ---- a coroutine that begins without a task --------------------------------------------------------------


@pytest.mark.parametrize("what", ["set", "cancel", "expire"])
async def test_over_before_its_task_was_told(what: str) -> None:
    """A coroutine in its first step has no task of its own (``wake._eager``); one adopts its wait later."""
    waiter = wake_ups().new_waiter()
    starter = wake.current().new_starter()
    for _ in range(5):
        await checkpoint()
    ended: list[object] = []

    async def main() -> None:
        try:
            ended.append(await waiter.wait_until(asyncio.get_running_loop().time() + 1000))
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    job = starter.start(main(), contextvars.copy_context())
    assert job is not None
    {"set": waiter.set, "cancel": job.cancel, "expire": waiter.expire}[what]()
    while not job.done:
        await checkpoint()
    assert ended == [{"set": True, "cancel": "cancelled", "expire": False}[what]]
    starter.close()


# ---- in asyncio's StreamReader ---------------------------------------------------------------------------


async def test_an_exception_in_place_of_a_result() -> None:
    waiter = wake_ups().new_waiter()

    async def waits() -> None:
        await waiter.wait()

    task = asyncio.get_running_loop().create_task(waits())
    await checkpoint()
    assert not waiter.cancelled()
    waiter.set_exception(ConnectionResetError("gone"))
    with pytest.raises(ConnectionResetError, match="gone"):
        await task
    waiter.clear()
    task = asyncio.get_running_loop().create_task(waits())
    await checkpoint()
    waiter.set_result(None)
    await task


# ---- beside the waiter with futures ----------------------------------------------------------------------


async def play(waiter: Any, seed: int) -> list[str]:
    """A task that waits again and again, and others that set, clear, cancel: what happened."""
    chance = random.Random(seed)
    events: list[str] = []
    loop = asyncio.get_running_loop()

    async def waits(until: bool) -> None:
        try:
            if until:
                events.append(f"until {await waiter.wait_until(loop.time() + 1000)}")
            else:
                await waiter.wait()
                events.append("passed")
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    task = loop.create_task(waits(False))
    for _ in range(60):
        step = chance.choice(["set", "set", "clear", "cancel", "turn", "turn", "turn"])
        if task.done():
            task = loop.create_task(waits(chance.random() < 0.3))
        if step == "set":
            waiter.set()
        elif step == "clear" and not task.done():
            # By the task that waits, before it waits: so it is in the package.
            await checkpoint()
            await checkpoint()
            if task.done():
                waiter.clear()
        elif step == "cancel":
            events.append(f"cancel {task.cancel()}")
        else:
            await checkpoint()
        events.append(f"{step} {task.done()}")
    task.cancel()
    await asyncio.wait([task])
    return events


@pytest.mark.parametrize("seed", range(100))
async def test_it_behaves_as_one_with_futures(seed: int) -> None:
    with_futures = await play(AsyncioWaiter(asyncio.get_running_loop()), seed)
    assert await play(wake_ups().new_waiter(), seed) == with_futures
    assert {"passed", "cancelled"} & set(with_futures)


async def test_without_a_visible_queue_there_are_futures() -> None:
    loop = asyncio.get_running_loop()
    assert _private.new_wake_ups(loop, 0, None) is None
    assert _private.new_wake_ups(loop, 0, deque()) is not None
