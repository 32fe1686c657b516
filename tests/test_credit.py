"""CreditWindow: order, cancellation, closing; thousands of random runs on every loop."""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma.credit import CreditWindow

from .health import settle

pytestmark = pytest.mark.anyio


def test_taking_without_waiting() -> None:
    window = CreditWindow(3)
    assert window.try_acquire(2)
    assert not window.try_acquire(2)
    assert window.try_acquire()
    assert window.try_acquire(0)
    assert (window.available, window.limit) == (0, 3)
    window.release(3)
    assert window.available == 3


def test_mistakes_are_errors() -> None:
    window = CreditWindow(2)
    with pytest.raises(ValueError, match="fewer than 0"):
        CreditWindow(-1)
    with pytest.raises(ValueError, match="3 credits can never"):
        window.try_acquire(3)
    with pytest.raises(ValueError, match="-1 credits"):
        window.try_acquire(-1)
    with pytest.raises(ValueError, match="given back"):
        window.release()
    window.try_acquire()
    with pytest.raises(ValueError, match="given back"):
        window.release(-1)
    assert window.available == 1


async def test_waits_are_served_in_order_and_nobody_overtakes() -> None:
    window = CreditWindow(4)
    order: list[str] = []

    async def take(name: str, n: int) -> None:
        await window.acquire(n)
        order.append(name)

    await window.acquire(4)
    async with anyio.create_task_group() as tg:
        for name, n in (("big", 3), ("small", 1), ("last", 2)):
            tg.start_soon(take, name, n)
            while name not in order and window.waiting < {"big": 1, "small": 2, "last": 3}[name]:
                await checkpoint()
        window.release(2)
        await settle()
        assert order == []  # 2 would do for "small", but "big" came first
        assert not window.try_acquire(1)
        window.release(1)
        await settle()
        assert order == ["big"]
        window.release(1)
        await settle()
        assert order == ["big", "small"]
        window.release(2)
    assert order == ["big", "small", "last"]
    assert window.available == 0


async def test_a_cancelled_wait_takes_nothing_and_lets_the_next_go() -> None:
    window = CreditWindow(4)
    done: list[str] = []

    async def take(name: str, n: int, scope: anyio.CancelScope) -> None:
        with scope:
            await window.acquire(n)
            done.append(name)

    await window.acquire(3)
    big, small = anyio.CancelScope(), anyio.CancelScope()
    async with anyio.create_task_group() as tg:
        tg.start_soon(take, "big", 4, big)
        while window.waiting < 1:
            await checkpoint()
        tg.start_soon(take, "small", 1, small)
        while window.waiting < 2:
            await checkpoint()
        big.cancel()
        await settle()
    assert done == ["small"]
    assert window.available == 0
    assert window.statistics().cancelled == 1


async def test_a_credit_granted_to_a_task_that_is_cancelled_comes_back() -> None:
    window = CreditWindow(1)
    await window.acquire()
    scope = anyio.CancelScope()

    async def take() -> None:
        with scope:
            await window.acquire()
            # Reached on trio, which delivers what was granted first; asyncio delivers the cancellation.
            window.release()

    async with anyio.create_task_group() as tg:
        tg.start_soon(take)
        while not window.waiting:
            await checkpoint()
        window.release()
        scope.cancel()
    assert window.available == 1


async def test_acquire_in_a_cancelled_scope_takes_nothing() -> None:
    window = CreditWindow(1)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await window.acquire()
    assert scope.cancelled_caught
    assert window.available == 1


async def test_a_hot_loop_lets_others_run() -> None:
    window = CreditWindow(1)
    others = 0

    async def count() -> None:
        nonlocal others
        while True:
            others += 1
            await checkpoint()

    async with anyio.create_task_group() as tg:
        tg.start_soon(count)
        for _ in range(2000):
            await window.acquire()
            window.release()
        tg.cancel_scope.cancel()
    assert others > 2


async def test_close_wakes_everyone_and_stays() -> None:
    window = CreditWindow(1)
    await window.acquire()
    caught: list[BaseException] = []
    error = anyio.BrokenResourceError("link lost")

    async def take() -> None:
        try:
            await window.acquire()
        except anyio.BrokenResourceError as exc:
            caught.append(exc)

    async with anyio.create_task_group() as tg:
        for _ in range(3):
            tg.start_soon(take)
        while window.waiting < 3:
            await checkpoint()
        window.close(error)
        window.close(RuntimeError("second"))
    assert caught == [error] * 3
    assert window.closed
    with pytest.raises(anyio.BrokenResourceError):
        window.try_acquire()
    with pytest.raises(anyio.BrokenResourceError):
        await window.acquire()
    window.release()


async def test_limit_can_change() -> None:
    window = CreditWindow(1)
    await window.acquire()
    async with anyio.create_task_group() as tg:
        tg.start_soon(window.acquire)
        while not window.waiting:
            await checkpoint()
        with pytest.raises(ValueError, match="waits for 1"):
            window.set_limit(0)
        window.set_limit(2)
    window.set_limit(1)
    assert window.available == -1
    assert not window.try_acquire(0)
    window.release(2)
    assert window.available == 1


async def test_statistics() -> None:
    window = CreditWindow(5)
    await window.acquire(5)
    window.release(5)
    await window.acquire(2)
    stats = window.statistics()
    assert stats == (5, 3, 0, 7, 0, 0, 5, 0)


async def run_once(seed: int) -> None:
    """Tasks that take, hold, are cancelled; the window may be closed. Every credit is accounted for."""
    rng = random.Random(seed)
    limit = rng.randint(1, 6)
    window = CreditWindow(limit)
    held = 0
    asked: list[int] = []  # tasks in the order in which they began to wait
    served: list[int] = []
    gone: set[int] = set()
    error = anyio.ClosedResourceError()
    scopes: list[anyio.CancelScope] = []

    async def task(number: int, n: int, hold: int, scope: anyio.CancelScope) -> None:
        nonlocal held
        with scope:
            asked.append(number)
            try:
                await window.acquire(n)
            except anyio.ClosedResourceError:
                gone.add(number)
                return
            except BaseException:
                gone.add(number)
                raise
            held += n
            assert held <= limit
            served.append(number)
            try:
                for _ in range(hold):
                    await checkpoint()
            finally:
                held -= n
                window.release(n)

    async with anyio.create_task_group() as tg:
        for number in range(rng.randint(1, 12)):
            scope = anyio.CancelScope()
            scopes.append(scope)
            tg.start_soon(task, number, rng.randint(0, limit), rng.randint(0, 4), scope)
            for _ in range(rng.randint(0, 2)):
                await checkpoint()
            if rng.random() < 0.4:
                rng.choice(scopes).cancel()
        if rng.random() < 0.15:
            window.close(error)
    assert held == 0
    assert window.waiting == 0
    assert window.available == limit
    assert set(served) | gone == set(asked)


@pytest.mark.parametrize("block", range(5))
async def test_random_runs(block: int) -> None:
    for seed in range(block * 400, block * 400 + 400):
        await run_once(seed)


async def test_order_of_service_is_order_of_asking() -> None:
    """Equal demands, random holds, some cancelled: the rest is served in the order of asking."""
    for seed in range(200):
        rng = random.Random(seed)
        window = CreditWindow(rng.randint(1, 3))
        asked: list[int] = []
        served: list[int] = []
        gone: set[int] = set()
        rngs: Any = [rng.randint(0, 3) for _ in range(15)]

        async def task(
            number: int,
            scope: anyio.CancelScope,
            window: CreditWindow = window,
            asked: list[int] = asked,
            served: list[int] = served,
            gone: set[int] = gone,
            holds: Any = rngs,
        ) -> None:
            with scope:
                asked.append(number)
                try:
                    await window.acquire()
                except BaseException:
                    gone.add(number)
                    raise
                served.append(number)
                try:
                    for _ in range(holds[number]):
                        await checkpoint()
                finally:
                    window.release()

        async with anyio.create_task_group() as tg:
            scopes = [anyio.CancelScope() for _ in range(15)]
            for number, scope in enumerate(scopes):
                tg.start_soon(task, number, scope)
            for _ in range(3):
                await checkpoint()
                rng.choice(scopes).cancel()
        assert sorted(served) == sorted(n for n in asked if n not in gone)
        # A task that was served may note it a turn later than its successor; it may not be overtaken by more.
        position = {n: i for i, n in enumerate(n for n in asked if n not in gone)}
        assert all(abs(i - position[n]) <= window.limit for i, n in enumerate(served))


@pytest.mark.parametrize("n", [2**63, 2**64, -1, -(2**63) - 1])
async def test_numbers_that_no_window_has(n: int) -> None:
    window = CreditWindow(2)
    with pytest.raises(ValueError, match="can never be had"):
        window.try_acquire(n)
    with pytest.raises(ValueError, match="can never be had"):
        await window.acquire(n)
    with pytest.raises(ValueError, match="can never be had"):
        window.request(n, anyio.Event())
    with pytest.raises(ValueError, match="given back"):
        window.release(n)
    for use in (window.set_limit, CreditWindow):
        with pytest.raises(ValueError, match="fewer than 0" if n < 0 else "more than"):
            use(n)
    assert (window.limit, window.available) == (2, 2)
