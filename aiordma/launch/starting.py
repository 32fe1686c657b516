"""Start a program for `aiordma run`: in this process if it is one of this Python's, else in its place.

A Python that is there need not be started again, which takes some tens of milliseconds. The program finds a
`__main__`, `sys.argv`, `sys.path` and an environment as if it had been started by itself; what it starts
itself inherits `aiordma run` by the environment, as always (see `settings.py`).
"""

from __future__ import annotations

import os
import sys
import types
from typing import TYPE_CHECKING, Any

from . import hooks
from .settings import RULES, environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["Request", "planned"]


class Request:
    """What `aiordma run` was asked for."""

    __slots__ = ("arguments", "files", "flags", "program", "rules")

    def __init__(
        self, program: str, arguments: list[str], flags: set[str], rules: list[str], files: list[str]
    ) -> None:
        """:param flags: of "-m", "--no-children", "--report", "--outside-tls", those that are given.
        :param rules: lines of rules. :param files: files with such lines.
        """
        self.program, self.arguments, self.flags = program, arguments, flags
        self.rules, self.files = rules, files

    def all_rules(self) -> str:
        """Those of the environment, of the files and of the command, in one line.

        :raises OSError: a file cannot be read. :raises ValueError: a line is no rule, with the reason.
        """
        lines = [os.environ.get(RULES, "")]
        for path in self.files:
            with open(path, encoding="utf-8") as file:
                lines.append(file.read())
        text = "\n".join([*lines, *self.rules])
        if not text.strip():
            return ""
        from .rules import Rules

        return str(Rules.parse(text))


def planned(request: Request) -> Callable[[], None] | None:
    """What runs it, and does not return; None: there is no such program.

    :raises OSError: a file cannot be read. :raises ValueError: a line is no rule, with the reason.
    """
    rules = request.all_rules()
    words = sorted(flag.lstrip("-") for flag in request.flags - {"-m"})
    if "-m" in request.flags:
        return lambda: _run_module(request, rules, words)
    found = _find(request.program)
    if found is None:
        return None
    if (source := _source_of(found)) is not None:
        return lambda: _run_script(found, source, request, rules, words)
    return lambda: _execute(found, request, rules, words)


def _find(program: str) -> str | None:
    """The program's path: a script, or a command. This Python's own commands come first."""
    if program.endswith(".py") and os.path.isfile(program):
        return program
    beside = os.path.join(os.path.dirname(sys.executable), program)
    if "/" not in program and os.access(beside, os.X_OK):
        return beside
    import shutil

    return shutil.which(program)


def _source_of(path: str) -> bytes | None:
    """The script, if it is one for this Python."""
    with open(path, "rb") as file:
        if path.endswith(".py"):
            return file.read()
        if file.read(2) != b"#!" or file.readline().strip() != os.fsencode(sys.executable):
            return None
        file.seek(0)
        return file.read()


def _execute(path: str, request: Request, rules: str, words: list[str]) -> None:
    os.environ.update(environment(rules, words))
    os.execv(path, [path, *request.arguments])


def _run_script(path: str, source: bytes, request: Request, rules: str, words: list[str]) -> None:
    module = _begin(rules, words, [path, *request.arguments], os.path.dirname(os.path.realpath(path)))
    module.__file__ = os.path.join(os.getcwd(), path)
    exec(compile(source, module.__file__, "exec", dont_inherit=True), module.__dict__)
    raise SystemExit


def _run_module(request: Request, rules: str, words: list[str]) -> None:
    import runpy

    _begin(rules, words, ["-m", *request.arguments], os.getcwd())
    # What `python -m` itself calls: it sets sys.argv[0], and says what is wrong with a name.
    runpy._run_module_as_main(request.program)  # type: ignore[attr-defined]
    raise SystemExit


def _begin(rules: str, words: list[str], arguments: list[str], folder: str) -> Any:
    """Install it here, and for the programs that this one starts; returns a new module `__main__`."""
    if "no-children" not in words:
        os.environ.update(environment(rules, words))
    hooks.install(rules, report="report" in words, outside_tls="outside-tls" in words)
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = module
    sys.argv[:] = arguments
    if not sys.flags.safe_path:
        sys.path[0] = folder
    sys.excepthook = _show
    return module


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print an exception that ends the program, without the frames of `aiordma run` itself."""
    shown = frame = traceback
    while frame is not None:
        if frame.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
            shown = frame.tb_next
        frame = frame.tb_next
    sys.__excepthook__(kind, error.with_traceback(shown), shown)
