"""The first device of an event loop: opened in a thread, once, whatever becomes of who asked for it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
import uvloop

import aiordma
from aiordma.config import Config
from aiordma.errors import Code, NegotiationError, VerbsError
from aiordma.links import engine as engines
from aiordma.links import first_device
from tests.health import check_echo, descriptors, until
from tests.negotiation.serving import serving
from tests.processes import FULL_PATIENCE
from tests.roles import LOCAL, echo
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SOFT = Config(device=DEVICE)
SECONDS = FULL_PATIENCE


class Gate:
    """Stands before the end of each opening, in its thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.opened: list[first_device.FirstDevice] = []
        self.threads: list[threading.Thread] = []
        self._open = first_device.open_first
        monkeypatch.setattr(first_device, "open_first", self._open_and_wait)

    def _open_and_wait(self, config: Config) -> first_device.FirstDevice:
        self.threads.append(threading.current_thread())
        first = self._open(config)
        self.opened.append(first)
        self.begun.set()
        assert self.may_end.wait(SECONDS)
        return first

    async def has_begun(self) -> None:
        await until(self.begun.is_set, lambda: "no device is opened")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.mark.anyio
async def test_the_loop_goes_on_and_all_get_the_same_engine(gate: Gate) -> None:
    found: list[engines.Engine] = []

    async def ask() -> None:
        found.append(await engines.current(SOFT))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ask)
        await gate.has_begun()
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert engines.running() is None
        assert not found
        gate.may_end.set()
    assert len(gate.opened) == 1
    assert gate.threads[0] is not threading.current_thread()
    assert [engine is engines.running() for engine in found] == [True] * 5


@pytest.mark.anyio
async def test_a_first_connect_that_is_cancelled_leaves_the_engine_to_the_next(gate: Gate) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(aiordma.connect, LOCAL, 1)
        await gate.has_begun()
        tasks.cancel_scope.cancel()
    assert engines.running() is None
    gate.may_end.set()
    async with (
        serving(echo, config=SOFT) as listener,
        await aiordma.connect(LOCAL, listener.port, mode="rdma", config=SOFT) as stream,
    ):
        await check_echo(stream)
    assert len(gate.opened) == 1


def _asyncio(main: Callable[[], Awaitable[None]], factory: Any) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())  # type: ignore[arg-type]


def _close(main: Callable[[], Awaitable[None]], factory: Any) -> None:
    loop = factory()
    loop.run_until_complete(main())
    loop.close()


def _trio(main: Callable[[], Awaitable[None]], _factory: Any) -> None:
    trio.run(main)


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize(
    ("run", "factory"),
    [
        (_asyncio, asyncio.new_event_loop),
        (_asyncio, uvloop.new_event_loop),
        (_close, asyncio.new_event_loop),
        (_close, uvloop.new_event_loop),
        (_trio, None),
    ],
)
def test_a_loop_that_ends_meanwhile_closes_the_device(
    gate: Gate, run: Callable[..., None], factory: Any, wait: bool
) -> None:
    """``wait``: until the device is open, but nobody has heard of it; else the loop ends before that."""
    first_device.open_device(
        DEVICE, first_device.look_around()
    ).close()  # what the process keeps of its first device
    if factory is not None:
        factory().close()  # and of its first loop of this kind: uvloop keeps a pipe for signals
    before = descriptors()

    async def main() -> None:
        with anyio.move_on_after(0):
            await engines.current(SOFT)
        await gate.has_begun()
        if wait:
            gate.may_end.set()
            gate.threads[0].join(SECONDS)  # no turn of the loop, in which it would be adopted

    run(main, factory)
    gate.may_end.set()
    for thread in gate.threads:
        thread.join(SECONDS)
    assert len(gate.opened) == 1
    assert gate.opened[0].device.cq._closed
    assert descriptors() == before


@pytest.mark.anyio
async def test_a_refusal_is_remembered_and_a_failure_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []
    error: list[Exception] = [VerbsError(12, "ibv_open_device", "soft0")]

    def fail(config: Config) -> Any:
        asked.append(config.device)
        raise error[0]

    monkeypatch.setattr(first_device, "open_first", fail)
    monkeypatch.setattr(engines, "_refusals", {})
    for _ in range(2):
        with pytest.raises(NegotiationError, match="ibv_open_device") as failed:
            await engines.current(SOFT)
        assert failed.value.code == Code.DEVICE_FAILURE
    error[0] = NegotiationError(Code.NO_DEVICE, "there are none")
    for _ in range(2):
        with pytest.raises(NegotiationError, match="there are none") as refused:
            await engines.current(SOFT)
        assert refused.value.code == Code.NO_DEVICE
    assert asked == [SOFT.device] * 3


@pytest.mark.anyio
async def test_who_wants_another_device_does_not_get_the_refusal_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    open_first = first_device.open_first

    def open_or_fail(config: Config) -> first_device.FirstDevice:
        if config.device != "none":
            return open_first(config)
        begun.set()
        assert may_end.wait(SECONDS)
        raise NegotiationError(Code.NO_DEVICE, "it is switched off")

    monkeypatch.setattr(first_device, "open_first", open_or_fail)
    monkeypatch.setattr(engines, "_refusals", {})
    found: list[engines.Engine] = []

    async def ask() -> None:
        found.append(await engines.current(SOFT))

    async with anyio.create_task_group() as tasks:

        async def ask_for_none() -> None:
            with pytest.raises(NegotiationError, match="switched off"):
                await engines.current(Config(device="none"))

        tasks.start_soon(ask_for_none)
        await until(begun.is_set, lambda: "not begun")
        tasks.start_soon(ask)
        await anyio.lowlevel.checkpoint()
        may_end.set()
    assert len(found) == 1
