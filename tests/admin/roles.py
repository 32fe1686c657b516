"""Processes that tools look at."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from typing import TYPE_CHECKING, Any

import anyio

import aiordma
from aiordma import memory
from tests.roles import LOCAL, echo

from .looking import loops_of

if TYPE_CHECKING:
    from tests.program import Control


async def _seen(config: aiordma.Config) -> None:
    """Until tools can look at this process."""
    if config.admin == "on":
        await anyio.to_thread.run_sync(loops_of, os.getpid())


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


async def connected(
    control: Control, streams: int = 2, plain: int = 0, waiting: bool = False, **settings: Any
) -> None:
    """Both ends of some streams. Commands: "sleep" blocks the loop until the test sends a line, "log" tells
    the warnings of aiordma, "paths" those of the clients' streams, "worst" the longest pause of the loop in
    seconds since "watch", "another" path and reason of one more connection, which is closed then.

    :param plain: streams of them on TCP.
    :param waiting: the servers' ends read nothing.
    """
    log = _Lines()
    logging.getLogger("aiordma").addHandler(log)
    config = aiordma.Config(**settings)

    async def wait(stream: aiordma.RdmaStream) -> None:
        async with stream:
            await anyio.sleep_forever()

    async with contextlib.AsyncExitStack() as stack:
        listener = await stack.enter_async_context(await aiordma.listen(LOCAL, config=config))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(listener.serve, wait if waiting else echo)
        clients = []
        for number in range(streams):
            mode: Any = "tcp" if number < plain else "rdma" if settings.get("device") != "none" else "auto"
            stream = await aiordma.connect(LOCAL, listener.port, config=config, mode=mode)
            clients.append(await stack.enter_async_context(stream))
            await stream.send(b"hello")
            if not waiting:
                await stream.receive()
        watcher = _Watcher()
        await _seen(config)
        tasks.start_soon(watcher.watch)
        control.say(listener.port)
        with contextlib.suppress(EOFError):
            while True:
                order = await control.hear()
                if order == "another":
                    async with await aiordma.connect(LOCAL, listener.port, config=config) as one:
                        reason = one.fallback_reason
                        control.say((one.path, None if reason is None else reason.text))
                else:
                    await _obey(control, order, clients, log, watcher)
        tasks.cancel_scope.cancel()


class _Watcher:
    """Sees how long the loop works without giving others a turn: in processor time, as machines are busy."""

    on = False
    worst = 0.0

    async def watch(self) -> None:
        before = time.thread_time()
        while True:
            was_on = self.on
            await anyio.sleep(0.0005 if was_on else 0.05)
            now = time.thread_time()
            if was_on:
                self.worst = max(self.worst, now - before)
            before = now


async def _obey(
    control: Control, order: Any, clients: list[aiordma.RdmaStream], log: _Lines, watcher: _Watcher
) -> None:
    if order == "sleep":
        control.say("asleep")
        select.select([control._reads], [], [])
        await control.hear()
        control.say("awake")
    elif order == "log":
        control.say(log.lines)
    elif order == "paths":
        control.say([stream.path for stream in clients])
    elif order == "watch":
        watcher.worst, watcher.on = 0.0, True
        control.say("watching")
    elif order == "worst":
        control.say(watcher.worst)
    elif order == "receive":
        try:
            control.say((await clients[0].receive()).decode())
        except (anyio.BrokenResourceError, anyio.EndOfStream) as error:
            control.say(type(error).__name__)
    elif order == "echo":
        for stream in clients:
            await stream.send(b"again")
            await stream.receive()
        control.say("echoed")


async def region(control: Control, size: int, **settings: Any) -> None:
    """A process with a region of memory, and two descriptors of it."""
    config = aiordma.Config(**settings)
    async with memory.serve(LOCAL, config=config), await memory.alloc(size, config=config) as own:
        own.descriptor()
        own[:100].descriptor()
        await _seen(config)
        control.say("ready")
        with contextlib.suppress(EOFError):
            await control.hear()
