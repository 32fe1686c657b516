"""The contract of a waker, on every event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from aiordma import wake
from aiordma.wake.base import SHARE_OPERATIONS
from tests.health import collected

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio", "asyncio+uvloop"], indirect=True)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair()
    a.setblocking(False)
    b.setblocking(False)
    with a, b:
        yield a, b


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await anyio.lowlevel.checkpoint()


async def poll_turn() -> None:
    """Let the loop look at its file descriptors: a round trip over a socket pair that it must notice."""
    a, b = socket.socketpair()
    with a, b:
        a.setblocking(False)
        b.send(b".")
        await anyio.wait_readable(a)
    await turns()


async def test_one_waker_per_loop() -> None:
    assert wake.current() is wake.current()
    assert wake.current().name in ("asyncio", "uvloop", "trio")


@pytest.mark.parametrize("module", ["trio", "trio.lowlevel"])
def test_a_trio_that_is_half_imported_or_old_does_not_matter_to_asyncio(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`in_trio_task()` came with trio 0.23; Debian 12 has 0.22."""

    async def main() -> str:
        return wake.current().name

    monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    if module == "trio":
        monkeypatch.delitem(sys.modules, "trio.lowlevel", raising=False)
    assert asyncio.run(main()) == "asyncio"


def test_no_loop_is_a_clear_error() -> None:
    with pytest.raises(RuntimeError, match="running event loop"):
        wake.current()


@on_asyncio
def test_loop_and_waker_die_together(anyio_backend: Any) -> None:
    async def main() -> weakref.ref[Any]:
        wake.current().at_loop_end(lambda: None)
        return weakref.ref(asyncio.get_running_loop())

    assert collected(anyio.run(main, backend=anyio_backend[0], backend_options=anyio_backend[1]))


async def test_watch_is_persistent_and_level_triggered(pair: tuple[socket.socket, socket.socket]) -> None:
    a, b = pair
    waker = wake.current()
    waiter = waker.new_waiter()
    calls = 0

    def readable() -> None:
        nonlocal calls
        calls += 1
        if calls >= 3:
            a.recv(100)
        waiter.set()

    waker.watch_fd(a.fileno(), readable)
    try:
        b.send(b"x")
        while calls < 3:
            await waiter.wait()
        await poll_turn()
        assert calls == 3
        b.send(b"y")  # nobody registered again
        while calls < 4:
            await waiter.wait()
    finally:
        waker.unwatch_fd(a.fileno())


async def test_no_call_after_unwatch(pair: tuple[socket.socket, socket.socket]) -> None:
    a, b = pair
    waker = wake.current()
    calls: list[int] = []
    b.send(b"x")
    for _ in range(3):  # unwatched before the loop looked, and after the fd became ready
        waker.watch_fd(a.fileno(), lambda: calls.append(1))
        waker.unwatch_fd(a.fileno())
        await poll_turn()
    assert not calls
    waker.unwatch_fd(a.fileno())  # idempotent


async def test_unwatch_from_the_callback(pair: tuple[socket.socket, socket.socket]) -> None:
    a, b = pair
    waker = wake.current()
    waiter = waker.new_waiter()
    calls = 0

    def readable() -> None:
        nonlocal calls
        calls += 1
        waker.unwatch_fd(a.fileno())
        waiter.set()

    waker.watch_fd(a.fileno(), readable)
    b.send(b"x")
    await waiter.wait()
    await poll_turn()
    assert calls == 1


async def test_fd_number_can_be_reused_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    waker = wake.current()
    for _ in range(20):
        reader, writer = os.pipe()
        waiter = waker.new_waiter()
        waker.watch_fd(reader, waiter.set)
        os.write(writer, b"x")
        await waiter.wait()
        waker.unwatch_fd(reader)
        os.close(reader)
        os.close(writer)
    await poll_turn()


async def test_watching_twice_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    waker = wake.current()
    fd = pair[0].fileno()
    waker.watch_fd(fd, lambda: None)
    with pytest.raises(ValueError, match="watched already"):
        waker.watch_fd(fd, lambda: None)
    with pytest.raises(ValueError, match="watched already"):
        await waker.wait_readable(fd)
    waker.unwatch_fd(fd)


async def test_another_callback_takes_the_place_of_the_first(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    a, b = pair
    waker = wake.current()
    waiter = waker.new_waiter()
    first: list[int] = []
    second: list[int] = []

    def readable() -> None:
        second.append(1)
        waiter.set()

    waker.watch_fd(a.fileno(), lambda: first.append(1), instead=True)  # there was none
    await poll_turn()
    b.send(b"x")  # the loop has not seen it yet
    waker.watch_fd(a.fileno(), readable, instead=True)
    try:
        await waiter.wait()
    finally:
        waker.unwatch_fd(a.fileno())
    told = len(second)
    b.send(b"y")
    await poll_turn()
    assert not first
    assert len(second) == told


def test_failing_callback_harms_nobody(
    pair: tuple[socket.socket, socket.socket], anyio_backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = pair

    async def main() -> None:
        waker = wake.current()
        waiter = waker.new_waiter()

        def broken() -> None:
            a.recv(1)
            waiter.set()
            raise LookupError("from the callback")

        waker.watch_fd(a.fileno(), broken)
        for _ in range(2):
            b.send(b"x")
            await waiter.wait()
            await turns()
        waker.unwatch_fd(a.fileno())

    anyio.run(main, backend=anyio_backend[0], backend_options=anyio_backend[1])
    assert "from the callback" in caplog.text


async def test_wait_readable_and_writable(pair: tuple[socket.socket, socket.socket]) -> None:
    a, b = pair
    waker = wake.current()
    await waker.wait_writable(a.fileno())
    with anyio.move_on_after(0):
        await waker.wait_readable(a.fileno())
        pytest.fail("there was nothing to read")
    b.send(b"x")
    await waker.wait_readable(a.fileno())
    assert a.recv(10) == b"x"
    b.close()
    await waker.wait_readable(a.fileno())
    assert a.recv(10) == b""


async def test_set_before_wait_is_kept_and_taken_once() -> None:
    waiter = wake.current().new_waiter()
    waiter.set()
    waiter.set()
    with anyio.fail_after(5):
        await waiter.wait()
    with anyio.move_on_after(0):
        await waiter.wait()
        pytest.fail("one set() let two waits pass")
    waiter.set()
    waiter.clear()
    with anyio.move_on_after(0):
        await waiter.wait()
        pytest.fail("clear() did not clear")


async def test_set_wakes_the_waiting_task_again_and_again() -> None:
    waiter = wake.current().new_waiter()
    passed = 0

    async def waits() -> None:
        nonlocal passed
        for _ in range(100):
            await waiter.wait()
            passed += 1

    async with anyio.create_task_group() as tg:
        tg.start_soon(waits)
        for n in range(100):
            await turns(3)
            assert passed == n
            waiter.set()
            waiter.set()
    assert passed == 100


@pytest.mark.parametrize("until", [False, True])
async def test_a_second_task_at_a_waiter_is_refused(until: bool) -> None:
    """It would take the place of the first one, which then nothing wakes."""
    waiter = wake.current().new_waiter()
    passed = False

    async def waits() -> None:
        nonlocal passed
        await waiter.wait()
        passed = True

    async with anyio.create_task_group() as tg:
        tg.start_soon(waits)
        await turns()
        with anyio.fail_after(5), pytest.raises(RuntimeError, match="two tasks"):
            await (waiter.wait_until(wake.current().now() + 1000) if until else waiter.wait())
        await turns()
        assert not passed
        waiter.set()
    assert passed


@pytest.mark.parametrize("order", ["set, cancel", "cancel, set"])
async def test_set_is_not_lost_to_a_cancelled_wait(order: str) -> None:
    """A wake-up and a cancellation in the same turn: the wait either returned or left the set() behind."""
    waiter = wake.current().new_waiter()
    returned = False

    async def waits(scope: anyio.CancelScope) -> None:
        nonlocal returned
        with scope:
            await waiter.wait()
            returned = True

    async with anyio.create_task_group() as tg:
        scope = anyio.CancelScope()
        tg.start_soon(waits, scope)
        await turns()
        if order == "set, cancel":
            waiter.set()
            scope.cancel()
        else:
            scope.cancel()
            waiter.set()
    if not returned:
        with anyio.fail_after(5):
            await waiter.wait()


async def test_call_soon_runs_in_order_and_in_a_later_turn() -> None:
    waker = wake.current()
    seen: list[int] = []
    waiter = waker.new_waiter()

    def second() -> None:
        seen.append(2)
        waker.call_soon(fourth)

    def fourth() -> None:
        seen.append(4)
        waiter.set()

    waker.call_soon(lambda: seen.append(1))
    waker.call_soon(second)
    waker.call_soon(lambda: seen.append(3))
    assert seen == []
    await waiter.wait()
    assert seen == [1, 2, 3, 4]


async def test_call_soon_from_call_soon_lets_tasks_run() -> None:
    waker = wake.current()
    calls = 0
    stop = False

    def again() -> None:
        nonlocal calls
        calls += 1
        if not stop:
            waker.call_soon(again)

    waker.call_soon(again)
    await turns(20)
    stop = True
    assert 5 <= calls <= 60
    await turns()


async def test_call_at_orders_and_cancels() -> None:
    waker = wake.current()
    seen: list[str] = []
    waiter = waker.new_waiter()

    def late() -> None:
        seen.append("late")
        waiter.set()

    now = waker.now()
    waker.call_at(now + 0.02, late)
    waker.call_at(now + 0.01, lambda: seen.append("early"))
    waker.call_at(now + 0.001, lambda: seen.append("cancelled")).cancel()
    await waiter.wait()
    assert waker.now() >= now + 0.019  # uvloop counts milliseconds
    assert seen == ["early", "late"]


async def test_busy() -> None:
    waker = wake.current()
    await turns()
    assert waker.busy() is False
    waker.call_soon(lambda: None)
    assert waker.busy() is True
    await turns()
    assert waker.busy() is False


async def test_spawned_job_runs_and_its_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    waker = wake.current()
    waiter = waker.new_waiter()

    async def fails() -> None:
        waiter.set()
        raise LookupError("from the job")

    job = waker.spawn(fails)
    await waiter.wait()
    while not job.done:
        await anyio.lowlevel.checkpoint()
    assert "from the job" in caplog.text


async def test_spawned_job_is_cancelled() -> None:
    waker = wake.current()
    ended = waker.new_waiter()

    async def forever() -> None:
        try:
            await waker.new_waiter().wait()
        finally:
            ended.set()

    job = waker.spawn(forever)
    await turns()
    job.cancel()
    job.cancel()
    await ended.wait()
    await turns()
    assert job.done


def test_at_loop_end(anyio_backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def fails() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        waker = wake.current()
        waker.at_loop_end(lambda: seen.append("first registered"))
        waker.at_loop_end(fails)
        waker.at_loop_end(lambda: seen.append("last registered"))
        await turns()
        seen.append("main ends")

    anyio.run(main, backend=anyio_backend[0], backend_options=anyio_backend[1])
    assert seen == ["main ends", "last registered", "first registered"]
    assert "ZeroDivisionError" in caplog.text


async def test_cancel_check_sees_a_cancelled_scope() -> None:
    waker = wake.current()
    await waker.cancel_check()
    assert not waker.cancel_requested()
    with anyio.CancelScope() as outer, anyio.CancelScope():
        outer.cancel()
        assert waker.cancel_requested()
        with anyio.CancelScope(shield=True):
            assert not waker.cancel_requested()
            await waker.cancel_check()
        await waker.cancel_check()
        pytest.fail("the cancellation was not noticed")
    assert outer.cancelled_caught
    assert not waker.cancel_requested()


async def test_cancel_check_tells_tasks_apart() -> None:
    waker = wake.current()
    answers: list[bool] = []

    async def asks(is_cancelled: bool) -> None:
        with anyio.CancelScope() as scope:
            if is_cancelled:
                scope.cancel()
            answers.append(waker.cancel_requested())
            await waker.cancel_check()

    # Each task begins where the one before it lay in memory, more often than not.
    for is_cancelled in (False, True) * 20:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asks, is_cancelled)
    assert answers == [False, True] * 20
    assert not waker.cancel_requested()


@on_asyncio
async def test_cancel_check_sees_a_cancelled_asyncio_task() -> None:
    waker = wake.current()
    reached = False

    async def cancels_itself() -> None:
        nonlocal reached
        task = asyncio.current_task()
        assert task is not None
        assert not waker.cancel_requested()
        task.cancel()
        assert waker.cancel_requested()
        await waker.cancel_check()
        reached = True

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(cancels_itself())
    assert not reached


async def test_checkpoint_gives_a_turn_and_begins_a_new_share() -> None:
    waker = wake.current()
    ran = False

    def run() -> None:
        nonlocal ran
        ran = True

    waker.share = 0
    waker.call_soon(run)
    await waker.checkpoint()
    await waker.checkpoint()
    assert ran
    assert waker.share == (0 if waker.name == "trio" else SHARE_OPERATIONS)


def test_busy_is_unknown_when_the_loop_hides_its_queue() -> None:
    from aiordma.wake._asyncio import AsyncioWaker

    class Hidden(asyncio.SelectorEventLoop):
        """Its queue fills only later, so nothing found can prove itself."""

        def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
            handle = super().call_soon(callback, *args, context=context)
            self._ready.appendleft(self._ready.pop())  # type: ignore[attr-defined]
            self._ready.append(None)  # type: ignore[attr-defined]
            return handle

    loop = Hidden()
    try:
        assert AsyncioWaker(loop).busy() is None
    finally:
        loop.close()
