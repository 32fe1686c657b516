"""The last warnings that the library has given, for those who look from outside and have no log.

They are kept beside the program's logging, whatever that does with them, and without the text of exceptions,
which may have been a program's own.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

#: How many are kept, and characters of each.
_KEPT, _CHARACTERS = 256, 500


class Warned(NamedTuple):
    """One of them."""

    #: seconds since the epoch
    at: float
    level: str
    logger: str
    text: str


class _Keeper(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.kept: deque[Warned] = deque(maxlen=_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # wrong arguments; the program's own handlers report that
            text = str(record.msg)
        if record.exc_info and record.exc_info[1] is not None:
            text = _without(text, record.exc_info[1])
        self.kept.append(Warned(record.created, record.levelname, record.name, text[:_CHARACTERS]))
        if not _has_others(logging.getLogger(record.name), self) and logging.lastResort is not None:
            # A program without any handler gets warnings on stderr. This one must not change that.
            logging.lastResort.handle(record)


def _without(text: str, error: BaseException) -> str:
    """The text without that of the exceptions in it, and with their types."""
    left = [error]
    while left:
        each = left.pop()
        try:
            said = str(each)
        except Exception:  # the program's own exception, which cannot be shown
            said = ""
        if said:
            text = text.replace(said, "...")
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
    return f"{text} ({type(error).__name__})"


def _has_others(logger: logging.Logger | None, keeper: logging.Handler) -> bool:
    while logger is not None:
        if any(handler is not keeper for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


_keeper = _Keeper()


def begin() -> None:
    """Keep warnings from now on. Idempotent."""
    logger = logging.getLogger("aiordma")
    if _keeper not in logger.handlers:
        logger.addHandler(_keeper)


def recent() -> list[Warned]:
    """Those that are kept, oldest first."""
    return list(_keeper.kept)
