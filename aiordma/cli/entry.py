"""The command ``aiordma``.

Some programs under `aiordma run` are short, so its arguments are read without click where they need no help.
Everything else is click's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from ..launch.starting import RunRequest, planned

if TYPE_CHECKING:
    from collections.abc import Callable

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_FLAGS = {"--no-children", "--report", "--outside-tls", "-m", "-c"}
_RULES = {"--allow": "allow", "--deny": "deny"}


def request_of(words: list[str]) -> RunRequest | None:
    """What `aiordma run` with these words is to start; None: they need click, for help or for an error."""
    flags: set[str] = set()
    rules: list[str] = []
    files: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":  # what comes next is the program, whatever it looks like
            program = next(rest, None)
            return None if program is None else RunRequest(program, list(rest), flags, rules, files)
        if not word.startswith("-") or word == "-":
            return RunRequest(word, list(rest), flags, rules, files)
        name, equals, value = word.partition("=")
        if word in _FLAGS:
            flags.add(word)
        elif name in _RULES or name == "--rules":
            if not equals:
                value = next(rest, "")
            if not value:
                return None
            if name == "--rules":
                files.append(value)
            else:
                rules.append(f"{_RULES[name]} {value}")
        else:
            return None
    return None


def main(**options: Any) -> None:
    """See `aiordma --help`. `options`: for click."""
    plan = None
    if sys.argv[1:2] == ["run"] and (request := request_of(sys.argv[2:])) is not None:
        # What is wrong, click finds again, and says it.
        with contextlib.suppress(OSError, ValueError):
            plan = planned(request)
    if plan is not None:
        plan()
    from .main import main as by_click
    from .output import tolerate

    if sys.argv[1:2] != ["run"]:
        tolerate()
    plans: list[Callable[[], None]] = []
    try:
        by_click(obj=plans, **options)
    except SystemExit:
        if not plans:
            raise
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _end_without_room(error)
    # Not inside click, which takes some exceptions for its own: those of a program are the program's.
    for plan in plans:
        plan()


def _end_without_room(error: OSError) -> NoReturn:
    """What cannot be written is lost: say so, and leave nothing in stdout that would fail again at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    where = f"{error.filename}: " if error.filename else ""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"Error: the output cannot be written: {where}{error.strerror}\n")
    sys.exit(1)
