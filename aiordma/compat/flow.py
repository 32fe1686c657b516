"""Water marks of our transports: asyncio's base class for them, and one that stands in for it.

asyncio's class is private. Its `loop.sendfile()` takes no other; all else is the same.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from ..borrowed import ENABLED, shapes

__all__ = ["FlowControl", "datagram_cost"]

_HIGH_BYTES = 64 * 1024
_HEADER_BYTES = 8
#: asyncio counts a header for each datagram that waits. Older ones have none of the empty ones wait, and
#: count the bytes alone.
_COUNTS_HEADERS = sys.version_info >= (3, 13)


def datagram_cost(data: bytes | bytearray | memoryview) -> int:
    """What a datagram that waits counts for: something, or any number of empty ones would find room."""
    return len(data) + _HEADER_BYTES if _COUNTS_HEADERS else len(data) or _HEADER_BYTES


class OwnFlowControl(asyncio.Transport):
    """What asyncio's class does, by the public documentation of transports."""

    __slots__ = ("_high_water", "_loop", "_low_water", "_protocol_paused")

    _protocol: Any

    def __init__(self, extra: Any = None, loop: Any = None) -> None:
        super().__init__(extra)
        self._loop: asyncio.AbstractEventLoop = loop
        self._protocol_paused = False
        self._low_water, self._high_water = _HIGH_BYTES // 4, _HIGH_BYTES

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See asyncio."""
        return self._low_water, self._high_water

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio."""
        if high is None:
            high = _HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._low_water, self._high_water = low, high
        self._maybe_pause_protocol()

    def _maybe_pause_protocol(self) -> None:
        if not self._protocol_paused and self.get_write_buffer_size() > self._high_water:
            self._protocol_paused = True
            self._tell("pause_writing")

    def _maybe_resume_protocol(self) -> None:
        if self._protocol_paused and self.get_write_buffer_size() <= self._low_water:
            self._protocol_paused = False
            self._tell("resume_writing")

    def _tell(self, method: str) -> None:
        try:
            getattr(self._protocol, method)()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler(
                {
                    "message": f"protocol.{method}() failed",
                    "exception": error,
                    "transport": self,
                    "protocol": self._protocol,
                }
            )


if TYPE_CHECKING:
    from asyncio.transports import _FlowControlMixin as FlowControl
elif ENABLED and not shapes.flow_control():
    FlowControl = asyncio.transports._FlowControlMixin
else:
    FlowControl = OwnFlowControl
