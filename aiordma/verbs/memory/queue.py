"""What waits for memory: called in order of arrival, as long as there is memory for the first."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from .budget import Purpose

if TYPE_CHECKING:
    from collections.abc import Callable

    from .budget import Budget


class Waiting(Protocol):
    """A flow or channel that found no memory."""

    def on_memory(self) -> None:
        """Some has come back."""


class MemoryQueue:
    """What waits for the memory of one budget.

    :param call_soon: the event loop's, for the callbacks.
    """

    def __init__(self, budget: Budget, call_soon: Callable[[Callable[[], None]], object] | None) -> None:
        self._budget = budget
        self._call_soon = call_soon
        #: In order of arrival: for memory to pull into, for memory to announce, and for a share of ordinary
        #: memory. Who waits for one of these keeps no other waiting: a share may never come.
        self._waiting: dict[Purpose, OrderedDict[Waiting, None]] = {
            Purpose.SINKS: OrderedDict(),
            Purpose.SOURCES: OrderedDict(),
            Purpose.COPIES: OrderedDict(),
        }
        self._turn: Purpose | None = None
        self._turn_again = self._retry_is_due = False

    def must_wait(self, purpose: Purpose) -> bool:
        """Whether others were here before: one that comes now has to :meth:`wait`, too."""
        if not self._waiting[purpose] or self._turn is purpose:
            return False
        if self._turn is None:
            self._retry_soon()  # the first of them may have given up
        return True

    def wait(self, waiting: Waiting, purpose: Purpose) -> None:
        """Have its ``on_memory()`` called, once, when it is its turn and a block has been given back."""
        queue = self._waiting[purpose]
        if self._turn is purpose and next(iter(queue), None) is waiting:
            self._turn_again = True
        else:
            queue.setdefault(waiting)

    def on_freed(self) -> None:
        """There is more memory than before."""
        if any(self._waiting.values()):
            self._retry_soon()

    def _retry_soon(self) -> None:
        if not self._retry_is_due and self._call_soon is not None:
            self._retry_is_due = True
            self._call_soon(self.retry)

    def retry(self) -> None:
        """Call what waits, as long as there is memory for the first."""
        self._retry_is_due = False
        for purpose, queue in self._waiting.items():
            while queue:
                first = next(iter(queue))
                before = self._budget.allocations
                self._turn, self._turn_again = purpose, False
                try:
                    first.on_memory()
                except BaseException:
                    queue.pop(first, None)
                    self._retry_soon()
                    raise
                finally:
                    self._turn = None
                if not self._turn_again:
                    queue.pop(first, None)
                elif self._budget.allocations == before:
                    break
                elif first in queue:
                    queue.move_to_end(first)  # it had its share

    def close(self) -> None:
        """Forget what waits."""
        self._call_soon = None
        for queue in self._waiting.values():
            queue.clear()
