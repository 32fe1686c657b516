"""Faults of the software device: on a virtual loop, the same each time."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from typing import Self

from .virtual_time import VirtualLoop

__all__ = ["DeviceFaults"]

_ANSWER = 8192


class DeviceFaults:
    """Makes faults of this process's software device, which go by its time.

    On :class:`VirtualLoop` a port that is down for two seconds is down for two seconds of virtual time, and
    takes none. ``man softdev`` has the words. A stream has to have used the device before, or ``aiordma
    preload`` to have loaded it::

        with DeviceFaults() as faults:
            faults("at=1s port=down for=2s")

    All faults end with the block. Raises RuntimeError where the device is not loaded.
    """

    def __init__(self) -> None:
        try:
            self._request = ctypes.CDLL(None).softdev_fault
        except AttributeError:
            raise RuntimeError("this process has not loaded the software device") from None
        self._request.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self("clear")

    def __call__(self, request: str) -> str:
        """Make a fault; or ``"list"`` them, or ``"clear"`` them. Raises ValueError, with the reason."""
        with contextlib.suppress(RuntimeError):  # on trio
            loop = asyncio.get_running_loop()
            if isinstance(loop, VirtualLoop):
                loop.move_device()
        answer = ctypes.create_string_buffer(_ANSWER)
        error = self._request(request.encode(), answer, _ANSWER)
        text = answer.value.decode("utf-8", "replace").strip()
        if error:
            raise ValueError(text)
        return text
