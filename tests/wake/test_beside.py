"""Work in a thread beside the loop: for all who wait, for nobody, and when the loop ends first."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
import trio
import uvloop

from aiordma import wake
from aiordma.wake.beside import Beside, LoopEndedError, start_thread, wait_for_threads
from tests.forking import fork
from tests.health import until
from tests.processes import FULL_PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = FULL_PATIENCE


class Gate:
    """Work that takes until it is told to go on."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.made: list[str] = []
        self.adopted: list[str] = []
        self.discarded: list[str] = []
        self.threads: list[int] = []

    def work(self) -> str:
        self.threads.append(threading.get_ident())
        self.begun.set()
        assert self.may_end.wait(SECONDS)
        self.made.append("device")
        return "device"

    def adopt(self, made: str) -> str:
        self.threads.append(threading.get_ident())
        self.adopted.append(made)
        return made.upper()

    def begin(self) -> Beside[str, str]:
        return Beside(wake.current(), self.work, self.adopt, discard=self.discarded.append)

    def has_ended(self) -> bool:
        """Whether what was made has found its end, in whichever thread."""
        return bool(self.discarded or self.adopted)


@pytest.mark.anyio
async def test_all_who_wait_get_it_and_the_loop_goes_on() -> None:
    gate, got = Gate(), []
    beside = gate.begin()

    async def wait() -> None:
        got.append(await beside.wait())

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(wait)
        await until(gate.begun.is_set, lambda: "the thread has not begun")
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert not got
        gate.may_end.set()
    assert got == ["DEVICE"] * 3
    assert await beside.wait() == "DEVICE"
    assert (gate.adopted, gate.discarded) == (["device"], [])
    there, here = gate.threads
    assert there != threading.get_ident() == here


@pytest.mark.anyio
@pytest.mark.parametrize("fails", [False, True])
async def test_what_nothing_waits_for_is_done_at_last_in_the_thread(fails: bool) -> None:
    heard, told = anyio.Event(), threading.Event()
    steps: list[tuple[str, int]] = []

    def work() -> str:
        if fails:
            raise OSError("no device")
        return "device"

    def after() -> None:
        assert told.wait(SECONDS)
        steps.append(("after", threading.get_ident()))
        waker.call_from_anywhere(heard.set)

    waker = wake.current()
    beside = Beside(waker, work, lambda made: made, after=after)
    with contextlib.suppress(OSError):
        assert await beside.wait() == "device"
    assert steps == []
    told.set()
    with anyio.fail_after(SECONDS):
        await heard.wait()
    ((_, thread),) = steps
    assert thread != threading.get_ident()


@pytest.mark.anyio
async def test_a_task_that_is_cancelled_only_stops_waiting() -> None:
    gate = Gate()
    beside = gate.begin()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beside.wait)
        await until(gate.begun.is_set, lambda: "the thread has not begun")
        tasks.cancel_scope.cancel()
    assert not gate.has_ended()
    gate.may_end.set()
    await until(gate.has_ended, lambda: "nothing was adopted")
    assert await beside.wait() == "DEVICE"
    assert gate.discarded == []


@pytest.mark.anyio
@pytest.mark.parametrize("where", ["work", "adopt"])
async def test_an_error_reaches_all_who_wait(where: str) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(24, "no descriptors left")

    ends: list[str] = []
    steps: dict[str, Callable[..., Any]] = {"work": lambda: 1, "adopt": lambda made: made, where: fail}
    beside = Beside(wake.current(), steps["work"], steps["adopt"], done=lambda: ends.append("done"))
    for _ in range(2):
        with pytest.raises(OSError, match="no descriptors left"):
            await beside.wait()
    assert ends == ["done"]


@pytest.mark.anyio
async def test_without_threads_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        beside = Beside(wake.current(), threading.get_ident, lambda made: made)
    assert await beside.wait() == threading.get_ident()


def join_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "aiordma opening":
            thread.join(SECONDS)


def _end_asyncio(begin: Callable[[], Any], factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        begin()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


def _close_asyncio(begin: Callable[[], Any], factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        begin()

    loop = factory()
    loop.run_until_complete(main())
    loop.close()


def _end_trio(begin: Callable[[], Any], _factory: Any) -> None:
    async def main() -> None:
        begin()
        await trio.lowlevel.checkpoint()

    trio.run(main)


ENDS = [
    (_end_asyncio, asyncio.new_event_loop),
    (_end_asyncio, uvloop.new_event_loop),
    (_close_asyncio, asyncio.new_event_loop),
    (_close_asyncio, uvloop.new_event_loop),
    (_end_trio, None),
]


@pytest.mark.parametrize(("end", "factory"), ENDS)
def test_a_loop_that_ends_during_the_work_leaves_nothing(end: Callable[..., None], factory: Any) -> None:
    gate, kept = Gate(), []
    end(lambda: kept.append(gate.begin()), factory)
    assert gate.begun.wait(SECONDS)
    assert not gate.has_ended()
    gate.may_end.set()
    join_threads()
    assert (gate.discarded, gate.adopted) == (["device"], [])


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_that_ends_before_it_hears_of_the_result_discards_it(factory: Any) -> None:
    """The work is done while the loop does not run; then the loop is closed."""
    gate, kept = Gate(), []

    async def main() -> None:
        kept.append(gate.begin())

    loop = factory()
    loop.run_until_complete(main())
    gate.may_end.set()
    join_threads()
    assert gate.made == ["device"]
    assert not gate.has_ended()
    loop.close()
    assert (gate.discarded, gate.adopted) == (["device"], [])


@pytest.mark.anyio
async def test_a_loop_that_ends_in_order_does_not_discard_in_its_own_thread() -> None:
    """What an endpoint had in the file system stayed: its removal blocks, which is an error in a loop that
    somebody watches."""
    may_end, threads = threading.Event(), []
    beside = Beside(
        wake.current(),
        lambda: may_end.wait(SECONDS),
        lambda made: made,
        discard=lambda _made: threads.append(threading.get_ident()),
    )
    beside._made.append(True)  # the thread stands still right before it says so
    beside.loop_ended()
    may_end.set()
    await anyio.to_thread.run_sync(join_threads)
    assert len(threads) == 2
    assert threading.get_ident() not in threads


def test_a_loop_that_is_dropped_before_it_hears_of_the_result_discards_it() -> None:
    """The weak reference by which the loop's end would be told is cleared first."""
    gate = Gate()

    async def begin() -> None:
        wake.current().locals["work"] = gate.begin()  # garbage together with the loop

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    gate.may_end.set()
    wait_for_threads()
    assert gate.made == ["device"]
    gc.collect()  # the loop comes before its sockets then
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del loop
        gc.collect()
    assert (gate.adopted, gate.discarded) == ([], ["device"])


def test_who_waits_while_the_loop_ends_hears_of_it() -> None:
    """asyncio lets a task run on after the loop's generators were closed."""
    gate, heard = Gate(), []

    async def main() -> None:
        beside = gate.begin()

        async def wait() -> None:
            with pytest.raises(LoopEndedError):
                await beside.wait()
            heard.append("ended")

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        await asyncio.get_running_loop().shutdown_asyncgens()
        gate.may_end.set()
        await asyncio.wait_for(task, SECONDS)
        await asyncio.to_thread(join_threads)
        assert gate.discarded == ["device"]

    asyncio.run(main())
    assert heard == ["ended"]


def test_nothing_is_left_of_a_thread() -> None:
    """CPython's tests wait for seconds, and complain, while there is an object of one."""
    threads: list[weakref.ref[threading.Thread]] = []
    start_thread(lambda: threads.append(weakref.ref(threading.current_thread())))
    wait_for_threads()
    until = time.monotonic() + SECONDS
    while threads[0]() is not None and time.monotonic() < until:
        time.sleep(0.001)  # it has done its work, and is about to be gone
    assert threads[0]() is None


def test_threads_take_short_turns_meanwhile() -> None:
    before = sys.getswitchinterval()
    go, heard = threading.Event(), []

    def work() -> None:
        assert go.wait(SECONDS)
        heard.append(sys.getswitchinterval())

    for _ in range(2):
        start_thread(work)
    go.set()
    wait_for_threads()
    assert heard == [0.0005] * 2
    assert sys.getswitchinterval() == before


def test_turns_that_the_program_sets_meanwhile_stay() -> None:
    before = sys.getswitchinterval()
    try:
        start_thread(lambda: sys.setswitchinterval(0.002))
        wait_for_threads()
        assert sys.getswitchinterval() == 0.002
        sys.setswitchinterval(0.00025)
        heard: list[float] = []
        start_thread(lambda: heard.append(sys.getswitchinterval()))
        wait_for_threads()
        assert heard == [0.00025] == [sys.getswitchinterval()]
    finally:
        sys.setswitchinterval(before)


def test_a_fork_waits_for_the_thread() -> None:
    """The child has no such thread, and must not have its locks."""
    lock, locked = threading.Lock(), threading.Event()

    def work() -> None:
        with lock:
            locked.set()
            threading.Event().wait(0.3)

    async def main() -> int:
        beside = Beside(wake.current(), work, lambda made: made)
        assert locked.wait(SECONDS)
        child = fork()
        if child == 0:
            os._exit(0 if lock.acquire(timeout=SECONDS) else 1)
        await beside.wait()
        return child

    _, status = os.waitpid(asyncio.run(main()), 0)
    assert os.waitstatus_to_exitcode(status) == 0
