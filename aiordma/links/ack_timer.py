"""Acknowledgements that no message carried in time: one timer for all links of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..wake.base import Handle, Waker

__all__ = ["AckTimer"]


class _Link(Protocol):
    def acknowledge(self) -> bool: ...


class AckTimer:
    """Calls links that owe an acknowledgement when the delay is over.

    The timer runs only while the list of such links is not empty. All links that join during one delay are
    called together at its end: no message waits for longer than the delay, and a later one may wait for less.

    :param delay: the delay in seconds, read whenever one begins.
    """

    def __init__(self, waker: Waker, delay: Callable[[], float]) -> None:
        self._waker, self._delay = waker, delay
        self._owing: list[_Link] = []
        self._handle: Handle | None = None

    @property
    def running(self) -> bool:
        """Whether it will wake the event loop."""
        return self._handle is not None

    def owe(self, link: _Link) -> None:
        """Call ``link.acknowledge()`` when the delay is over, and again as long as that returns False."""
        self._owing.append(link)
        if self._handle is None:
            self._handle = self._waker.call_at(self._waker.now() + self._delay(), self._run)

    def close(self) -> None:
        """Call no link any more."""
        self._owing.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        self._handle = None
        owing, self._owing = self._owing, []
        for link in owing:
            if not link.acknowledge():
                self.owe(link)
