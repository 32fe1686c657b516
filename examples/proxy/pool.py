"""The front's lanes: shared ones that stay open, and exclusive ones for clients that hold state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING, Protocol

from .lane import BackAway, Greeting, Lane
from .net import Address, Mode, connect, path_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

logger = logging.getLogger("redis_proxy.front")

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0
MAX_IDLE = 8  # lanes kept for the next client that needs one of its own


class Waiting(Protocol):
    def lanes_changed(self) -> None:
        """A lane opened, or opening failed for now."""


class Dialer:
    """Open streams to the back.

    :param patience_s: time limit for opening one, in seconds.
    """

    def __init__(self, to: Address, mode: Mode, patience_s: float) -> None:
        self.to = to
        self.mode = mode
        self.patience_s = patience_s
        self.opened = 0
        self.path = ""
        self.worked = asyncio.Event()  # set briefly whenever a stream opens

    async def open(self, protocol: int) -> Lane:
        """Open a lane that uses RESP2 or RESP3. Raises BackAway."""
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(self.patience_s):
                transport, greeting = await connect(Greeting, self.to, self.mode)
                await greeting.ready
                lane = Lane(transport)
                if protocol == 3:
                    await to_resp3(lane)
        except TimeoutError:
            reason = (
                f"no answer from {self.to} within {self.patience_s:g} s (is a redis_proxy.py back there?)"
            )
            raise _abandoned(transport, reason) from None
        except (OSError, UnicodeError) as exc:  # UnicodeError: a name that no host can have
            raise _abandoned(transport, str(exc) or type(exc).__name__) from exc
        except Exception as exc:
            # It is not expected, and still clients wait for the answer.
            logger.exception("opening a stream to %s failed", self.to)
            raise _abandoned(transport, f"{type(exc).__name__}: {exc}") from exc
        except BaseException:
            _abandoned(transport, "")
            raise
        self.opened += 1
        self.worked.set()
        self.worked.clear()
        if (path := path_of(transport)) != self.path:
            self.path = path
            logger.info("streams to %s travel by %s", self.to, path)
        return lane


def _abandoned(transport: asyncio.Transport | None, reason: str) -> BackAway:
    if transport is not None:
        transport.abort()
    return BackAway(reason)


async def to_resp3(lane: Lane) -> None:
    """Switch the RESP version. Raises BackAway if the server does not support it."""
    answer = await lane.ask(b"HELLO", b"3")
    if answer.startswith(b"-"):
        lane.close()
        raise BackAway(f"the server refuses RESP3: {answer[1:].decode(errors='replace').strip()}")


class SharedLanes:
    """`size` lanes of one RESP version, each reopened with backoff as soon as it is lost."""

    def __init__(self, dialer: Dialer, protocol: int, size: int) -> None:
        self.dialer = dialer
        self.protocol = protocol
        self.size = size
        self.lanes: list[Lane] = []
        self.reason: str | None = None  # why no lane is open; None during the first attempt
        self.reopened = 0
        self._waiting: set[Waiting] = set()
        self._keepers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Open the lanes, unless already done."""
        if not self._keepers:
            self._keepers = [asyncio.create_task(self._keep(number)) for number in range(self.size)]

    def pick(self) -> Lane | None:
        """Return the lane with the fewest users."""
        # Skip lost lanes: one stays in the list until its keeper task runs, and would never answer a command.
        up = (lane for lane in self.lanes if not lane.closed.done())
        return min(up, key=lambda lane: lane.users, default=None)

    def wait(self, who: Waiting) -> None:
        self._waiting.add(who)

    def leave(self, who: Waiting) -> None:
        self._waiting.discard(who)

    async def close(self) -> None:
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for lane in self.lanes:
            lane.close()

    async def _keep(self, number: int) -> None:
        pause = 0.0
        while True:
            try:
                lane = await self.dialer.open(self.protocol)
            except BackAway as exc:
                if pause == 0.0:
                    logger.warning("lane %d (RESP%d): %s; trying again", number, self.protocol, exc)
                if not self.lanes:
                    self.reason = str(exc)
                    self._tell()
                pause = min(max(pause * 2, BACKOFF_FIRST_S), BACKOFF_MAX_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause * random.uniform(0.75, 1.25)):
                        await self.dialer.worked.wait()  # another stream opened: retry at once
                continue
            pause = 0.0
            self.reason = None
            self.lanes.append(lane)
            logger.info("lane %d (RESP%d) to %s is up", number, self.protocol, self.dialer.to)
            self._tell()
            reason = await lane.closed
            self.lanes.remove(lane)
            self.reopened += 1
            logger.warning("lane %d (RESP%d) is lost: %s", number, self.protocol, reason)

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, set()
        loop = asyncio.get_running_loop()
        for who in waiting:
            loop.call_soon(who.lanes_changed)  # by the loop: if it raises, the others and the lanes go on


class OwnLanes:
    """Lanes for one client at a time. A lane is reused when the server has executed all that its client sent,
    or, if it refused something, after the server itself has confirmed RESET."""

    def __init__(self, dialer: Dialer) -> None:
        self.dialer = dialer
        self.in_use = 0
        self._idle: dict[int, list[Lane]] = {2: [], 3: []}
        self._tasks: set[asyncio.Task[None]] = set()

    def take_idle(self, protocol: int) -> Lane | None:
        """Return an idle lane, if there is one."""
        idle = self._idle[protocol]
        while idle:
            lane = idle.pop()
            if not lane.closed.done() and not lane.transport.is_closing():
                return lane
        return None

    async def open(self, protocol: int) -> Lane:
        """Open a new lane. Raises BackAway."""
        return await self.dialer.open(protocol)

    def give_back(self, lane: Lane, protocol: int, refused: bool) -> None:
        """Take a lane back from a client that expects no more replies on it.

        `refused`: the server refused a command, perhaps the one that ends a transaction. Otherwise nothing is
        sent: commands of the proxy's own would show in SLOWLOG and MONITOR.
        """
        if refused:
            self.spawn(self._clean(lane, protocol))
        elif len(self._idle[protocol]) < MAX_IDLE:
            self._idle[protocol].append(lane)
        else:
            lane.close()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run `work` as a task and keep a reference to it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lanes in self._idle.values():
            for lane in lanes:
                lane.close()

    async def _clean(self, lane: Lane, protocol: int) -> None:
        idle = self._idle[protocol]
        try:
            if len(idle) < MAX_IDLE and await lane.ask(b"RESET") == b"+RESET\r\n":
                if protocol == 3:
                    await to_resp3(lane)
                if len(idle) < MAX_IDLE:  # others may have been added meanwhile
                    idle.append(lane)
                    return
        except BackAway:
            return
        except asyncio.CancelledError:
            lane.close()
            raise
        lane.close()
