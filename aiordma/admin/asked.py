"""One event loop that tools ask: its page, and what it has answered."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Literal

from . import directory, page
from .messages import Answer, Done, Identity

if TYPE_CHECKING:
    from .page import Page

State = Literal["answered", "refused", "stuck", "stopped", "no answer", "not allowed"]

#: States that are nothing to worry about.
QUIET: tuple[State, ...] = ("answered", "stopped")


class Loop:
    """One event loop of one process, and what it has answered."""

    def __init__(self, home: str, stem: str, uid: int, page: Page) -> None:
        self.home, self.stem, self.uid, self.page = home, stem, uid, page
        self.parts: list[Answer] = []
        #: of the process that was asked, as seen from here; 0: not known
        self.pid = 0
        self.state: State = "no answer"
        #: why there is no whole answer, for people
        self.text = ""

    def forget(self) -> None:
        """Before a question: what it has answered to another one is no answer to this."""
        self.parts, self.state, self.text = [], "no answer", ""

    @property
    def identity(self) -> Identity | None:
        """What it says of itself."""
        return next((part for part in self.parts if isinstance(part, Identity)), None)

    def comes_by(self) -> bool:
        """Whether its page, read anew, says that the loop is at work."""
        with (
            contextlib.suppress(OSError),
            contextlib.closing(directory.Directory(self.home, self.uid)) as home,
        ):
            seen = page.read(home, self.stem)
            if seen is not None:
                self.page = seen
        return self.page.silent_s < 2 * page.BEAT_SECONDS

    @property
    def count(self) -> int:
        """What its last message counts."""
        last = self.parts[-1] if self.parts else None
        return last.count if isinstance(last, Done) else 0
