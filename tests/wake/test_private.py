"""The private interfaces of asyncio, uvloop and anyio: as they are expected to be, and without them."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import borrowed, wake
from aiordma.wake import _private

ROOT = Path(__file__).parents[2]

on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio", "asyncio+uvloop"], indirect=True)
needs_private = pytest.mark.skipif(
    not borrowed.ENABLED, reason=f"{borrowed.VARIABLE}={os.environ.get(borrowed.VARIABLE)}"
)


# ---- the shapes: tests/borrowed compares them one by one ------------------------------------------------


@needs_private
def test_the_shapes_of_asyncio() -> None:
    tasks: Any = asyncio.tasks
    table = sys.version_info < (3, 12)
    assert _private.current_task == (tasks._current_tasks.get if table else asyncio.current_task)
    assert _private.running_loop is asyncio._get_running_loop
    assert _private._must_cancel_known


@needs_private
def test_the_shapes_of_anyio() -> None:
    assert _private._task_states is not None


@needs_private
@on_asyncio
@pytest.mark.anyio
async def test_the_shapes_of_the_loops() -> None:
    loop = asyncio.get_running_loop()
    ready = _private.ready_queue(loop)
    assert ready is not None
    await checkpoint()
    before = len(ready)
    loop.call_soon(lambda: None)
    assert len(ready) == before + 1
    switch = _private.task_switch(loop)
    assert switch is not None
    assert switch[0] is asyncio.tasks._enter_task


@needs_private
@on_asyncio
@pytest.mark.anyio
async def test_the_check_of_the_switch_leaves_the_running_task_alone() -> None:
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert _private.task_switch(loop) is not None
    assert asyncio.current_task() is me
    # It also works where no task runs.
    found: list[object] = []
    loop.call_soon(lambda: found.append((_private.task_switch(loop), asyncio.current_task())))
    await checkpoint()
    assert found[0][0] is not None  # type: ignore[index]
    assert found[0][1] is None  # type: ignore[index]


# ---- other shapes ----------------------------------------------------------------------------------------


@on_asyncio
@pytest.mark.anyio
async def test_functions_that_do_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, me = asyncio.get_running_loop(), asyncio.current_task()

    def refuses(*_: object) -> None:
        raise RuntimeError("another loop")

    monkeypatch.setattr(asyncio.tasks, "_enter_task", lambda loop, task: None)
    monkeypatch.setattr(asyncio.tasks, "_leave_task", lambda loop, task: None)
    assert _private.task_switch(loop) is None
    monkeypatch.setattr(asyncio.tasks, "_leave_task", refuses)
    assert _private.task_switch(loop) is None
    monkeypatch.delattr(asyncio.tasks, "_enter_task")
    assert _private.task_switch(loop) is None
    assert asyncio.current_task() is me


def test_another_table_of_anyios_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import anyio._backends._asyncio as backend

    monkeypatch.setattr(backend, "_task_states", {})
    assert _private._anyio_task_states() is None
    monkeypatch.delattr(backend, "_task_states")
    assert _private._anyio_task_states() is None


# ---- the public interfaces -------------------------------------------------------------------------------


@on_asyncio
@pytest.mark.anyio
@pytest.mark.parametrize("must_cancel_known", [False, True])
async def test_scopes_are_seen_the_public_way(
    monkeypatch: pytest.MonkeyPatch, must_cancel_known: bool
) -> None:
    monkeypatch.setattr(_private, "_task_states", None)
    monkeypatch.setattr(_private, "_must_cancel_known", must_cancel_known and _private._must_cancel_known)
    cancel_requested = functools.partial(_private._cancel_requested_by_deadline, cast("Any", wake.current()))
    assert not cancel_requested()
    with anyio.CancelScope() as outer, anyio.CancelScope():  # noqa: ASYNC100
        outer.cancel()
        assert cancel_requested()
        with anyio.CancelScope(shield=True):  # noqa: ASYNC100
            assert not cancel_requested()
    assert not cancel_requested()

    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        assert cancel_requested() is _private._must_cancel_known
        await wake.current().checkpoint()
        pytest.fail("the cancellation was not noticed")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(cancels_itself())


# ---- the switch ------------------------------------------------------------------------------------------


def run(*arguments: str, value: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, borrowed.VARIABLE: value},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_wrong_value_is_refused() -> None:
    done = run("-c", "from aiordma.wake import _private", value="no")
    assert "ValueError: AIORDMA_PRIVATE_APIS='no' is not valid: it must be auto or off" in done.stderr


#: What only the private interfaces can do.
EXTRAS = (
    "test_busy",
    "test_cancel_check_sees_a_cancelled_asyncio_task",
    "test_what_does_not_wait_has_ended_when_start_returns",
    "test_an_exception_that_escapes_is_reported",
    "test_a_task_that_nobody_looks_at_serves_the_next",
    "test_plain_functions_run_as_no_task",
    "test_nothing_is_left",
    "test_switched_off_everything_else_works",
)


@pytest.mark.slow
def test_switched_off_everything_else_works() -> None:
    program = "from aiordma.wake import _private as p; print(p.ENABLED, p._task_states, p._must_cancel_known)"
    assert run("-c", program, value="off").stdout.split() == ["False", "None", "False"]
    left = " and ".join(f"not {name}" for name in EXTRAS)
    pytest_off = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--show-capture=no")
    done = run(*pytest_off, "tests/wake", "-k", f"({left}) and not trio", value="off")
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
