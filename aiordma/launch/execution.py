"""Put a program in the place of this process, as a shell would start it."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

#: What Python ignores in itself when it starts. Programs inherit that, and few expect it: `yes | head` would
#: never end.
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")


def execute(path: str, words: list[str]) -> NoReturn:
    """:param words: its arguments, with its name. :raises OSError: it cannot be executed."""
    for name in _IGNORED_BY_PYTHON:
        if (number := getattr(signal, name, None)) is not None:
            signal.signal(number, signal.SIG_DFL)
    os.execv(path, words)
