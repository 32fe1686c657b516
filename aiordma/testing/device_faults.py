"""Faults of the software device in the time of the event loop: on a virtual one, the same each time."""

from __future__ import annotations

import asyncio
import ctypes
import math
from typing import Self

__all__ = ["DeviceFaults"]

_NEVER = 2**64 - 1
_ANSWER = 8192


class DeviceFaults:
    """Has the faults of this process's software device go by the clock of the running asyncio loop.

    On :class:`VirtualLoop` a port that is down for two seconds is down for two seconds of virtual time, and
    takes none. ``man softdev`` has the words. A stream has to have used the device before, or ``aiordma
    preload`` to have loaded it::

        with DeviceFaults() as faults:
            faults("at=1s port=down for=2s")

    All faults end with the block. Raises RuntimeError where the device is not loaded.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        try:
            self._request = library.softdev_fault
            self._move = library.softdev_faults_clock
        except AttributeError:
            raise RuntimeError("this process has not loaded the software device") from None
        self._request.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
        self._move.argtypes = [ctypes.c_uint64]
        self._move.restype = ctypes.c_uint64
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._tick()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self("clear")
        if self._timer is not None:
            self._timer.cancel()
        self._move(0)

    def __call__(self, request: str) -> str:
        """Make a fault; or ``"list"`` them, or ``"clear"`` them. Raises ValueError, with the reason."""
        answer = ctypes.create_string_buffer(_ANSWER)
        self._move(self._now())
        error = self._request(request.encode(), answer, _ANSWER)
        text = answer.value.decode("utf-8", "replace").strip()
        if error:
            raise ValueError(text)
        self._tick()
        return text

    def _now(self) -> int:
        # The device takes 0 for its own clock. A loop's time may be 0.
        return math.ceil(self._loop.time() * 1e9) + 1

    def _tick(self) -> None:
        """What is due happens; the next time it does is waited for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._move(self._now())
        if due != _NEVER:
            self._timer = self._loop.call_at(due / 1e9, self._tick)
