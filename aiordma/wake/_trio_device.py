"""The software device in the time of a trio run whose clock is a test's (``trio.testing.MockClock``)."""

from __future__ import annotations

from typing import Any

import trio

from .device_time import DeviceTime


def follow(clock: Any) -> None:
    """The device of this process goes by the running trio's time until that ends.

    :param clock: ``trio.lowlevel.current_clock()``.
    """
    trio.lowlevel.add_instrument(_Follower(clock))


class _Follower(trio.abc.Instrument):
    """A task of trio's waits for what is due next in the device, so the clock jumps no further than that."""

    def __init__(self, clock: Any) -> None:
        self._device = DeviceTime(clock.current_time)
        self._scope = trio.CancelScope()
        trio.lowlevel.spawn_system_task(self._wait, name="aiordma waits for the device")

    async def _wait(self) -> None:
        while True:
            with self._scope:
                await trio.sleep_forever()
            self._scope = trio.CancelScope()

    def before_io_wait(self, timeout: float) -> None:
        if timeout > 0 and not self._scope.cancel_called:
            due = self._device.due()
            if due != self._scope.deadline:
                self._scope.deadline = due

    def after_run(self) -> None:
        self._device.release()
