"""An answer that has to wait for something."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Pause:
    """A part of an answer that is none: the next one comes when :meth:`end` was called."""

    def __init__(self) -> None:
        self.is_over = False
        #: what goes on then
        self.then: Callable[[], None] | None = None

    def end(self) -> None:
        self.is_over = True
        if self.then is not None:
            self.then()
