"""An asyncio loop for tests whose time jumps: a timeout of ten minutes takes no time at all."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable
from typing import Any

from ..wake.device_time import DeviceTime

__all__ = ["VirtualLoop"]

#: Seconds between looks at a device that may soon wait for a time, where the loop itself waits for none.
_LOOK = 0.05


class _Jumping(selectors.DefaultSelector):
    """Where the loop would sleep until its next timer and nothing else can happen, time jumps to it."""

    def __init__(self, grace: float) -> None:
        super().__init__()
        self._grace = grace
        #: Nothing has happened, since the last look, that the kernel could answer a moment later.
        self.quiet = False
        #: the loop's time, in seconds
        self.now = 0.0
        #: Work in threads that has not come back. Time stands still meanwhile.
        self.threads = 0
        self.device = DeviceTime(lambda: self.now)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if (timeout is not None and timeout <= 0) or self.threads:
            self.quiet = False
            return super().select(None if timeout is None or timeout > 0 else 0)
        until = math.inf if timeout is None else self.now + timeout
        found = super().select(0 if self.quiet else self._grace)
        while not found and not self._jump(until):
            found = super().select(_LOOK if until == math.inf else 0)
        self.quiet = not found
        return found

    def _jump(self, until: float) -> bool:
        """Goes to that time, or to the one at which the device has something to do, whichever is first. True:
        the loop has something to do then."""
        due = self.device.due()
        if due < until:
            self.now = max(self.now, due)
            self.device.due()
            self.quiet = False
            return False
        if until == math.inf:
            return False
        self.now = until
        self.device.due()
        return True


class VirtualLoop(asyncio.SelectorEventLoop):
    """As trio's ``MockClock(autojump_threshold=grace)``, for asyncio.

    :meth:`time` begins at 0 and stands still while anything runs. When every task waits, no file descriptor
    is ready, and no work of ``run_in_executor`` or of aiordma's own threads is under way, it jumps to the
    next timer. Everything of aiordma in this loop takes its time from it: deadlines, keepalive, back-off,
    delayed acknowledgements. Busy polling is off. So does the software device, once this process has loaded
    it: retransmission, retries of receivers that are not ready, congestion control, ``rdma_cm``, faults.

    Both ends of what is tested run in this loop, on the software device or on TCP; another process has a time
    of its own, and would find its peer gone for hours. Use it with
    ``asyncio.Runner(loop_factory=VirtualLoop)``.

    :param grace: for so many real seconds nothing may happen before time jumps. The kernel hands on what a
        socket has sent a moment later when the machine is busy; what stays in the loop needs no grace.
    """

    #: Tells aiordma to read the time from this loop (``aiordma/wake/clock.py``).
    virtual_time = True

    def __init__(self, grace: float = 0.01) -> None:
        self._jumping = _Jumping(grace)
        super().__init__(self._jumping)
        if grace < 0:
            self.close()
            raise ValueError(f"grace={grace} is not valid: seconds, 0 or more")

    def time(self) -> float:
        # asyncio runs timers that are due before the time plus the resolution of its clock. This one has no
        # steps but those of a float, which are longer than a nanosecond after 194 days.
        now = self._jumping.now
        self._clock_resolution = max(1e-9, math.ulp(now))
        return now

    def move_device(self) -> None:
        """The software device's time is this loop's from now on. It is so anyway when time has jumped."""
        self._jumping.device.due()

    def close(self) -> None:
        super().close()
        self._jumping.device.release()

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        if not getattr(callback, "periodic", False):
            callback, args = self._call, (callback, *args)
        return super().call_at(when, callback, *args, context=context)

    def _call(self, callback: Callable[..., object], *args: Any) -> None:
        self._jumping.quiet = False
        callback(*args)

    def hold_time(self) -> Callable[[], None]:
        """Time stands still until what is returned is called, in the loop: for work outside of it."""
        self._jumping.threads += 1
        held = [True]

        def release() -> None:
            if held:
                held.clear()
                self._jumping.threads -= 1

        return release

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        release = self.hold_time()
        future.add_done_callback(lambda _: release())
        return future
