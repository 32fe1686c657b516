"""Start a program for `aiordma run`: in this process if it is one of this Python's, else in its place.

A Python that is there need not be started again, which takes some tens of milliseconds. The program finds a
`__main__`, `sys.argv`, `sys.path` and an environment as if it had been started by itself; what it starts
itself inherits `aiordma run` by the environment, as always (see `settings.py`).
"""

from __future__ import annotations

import errno
import os
import sys
import types
from typing import TYPE_CHECKING, Any

from ..borrowed import ENABLED
from . import hooks
from .execution import execute
from .settings import RULES, environment, leave_environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

#: Bytes at the end of a zip archive in which its directory begins to be described: 22, and a comment.
_ZIP_END = 22 + 65535
#: Bytes of a compiled script before its code.
_PYC_HEADER = 16


class RunRequest:
    """What `aiordma run` was asked for."""

    __slots__ = ("arguments", "files", "flags", "program", "rules")

    def __init__(
        self, program: str, arguments: list[str], flags: set[str], rules: list[str], files: list[str]
    ) -> None:
        """:param flags: of "-m", "-c", "--no-children", "--report", "--outside-tls", those that are given.
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


def planned(request: RunRequest) -> Callable[[], None] | None:
    """What runs it, and does not return; None: there is no such program.

    :raises OSError: a file cannot be read. :raises ValueError: a line is no rule, with the reason.
    """
    rules = request.all_rules()
    words = sorted(flag.lstrip("-") for flag in request.flags - {"-m", "-c"})
    if "-m" in request.flags:
        return lambda: _run_module(request, rules, words)
    if "-c" in request.flags or request.program == "-":
        return lambda: _run_code(request, rules, words)
    found = _find(request.program)
    if found is None:
        return None
    if _is_application(found):
        return lambda: _run_application(found, request, rules, words)
    if (source := _source_of(found)) is not None:
        return lambda: _run_script(found, source, request, rules, words)
    return lambda: _execute(found, request, rules, words)


def _find(program: str) -> str | None:
    """The program's path: a script, a command, or what `python PATH` runs. This Python's own commands come
    before others, and commands before files of such a name that are none.
    """
    if program.endswith(".py") and os.path.isfile(program):
        return program
    beside = os.path.join(os.path.dirname(sys.executable), program)
    if "/" not in program and os.access(beside, os.X_OK) and not os.path.isdir(beside):
        return beside
    import shutil

    found = shutil.which(program)
    if found is None and os.path.exists(program) and (not os.path.isdir(program) or _is_application(program)):
        return program  # a pipe, too: `<(...)` of a shell
    return found


def _is_application(path: str) -> bool:
    """Whether it is a directory or a zip archive with a module `__main__`, for this Python."""
    if os.path.isdir(path):
        return any(os.path.isfile(os.path.join(path, f"__main__.py{suffix}")) for suffix in ("", "c"))
    if path.endswith(".py") or not os.path.isfile(path) or not os.access(path, os.R_OK):
        return False
    interpreter = _interpreter_of(path)
    if interpreter is not None and interpreter != sys.executable:
        return False
    with open(path, "rb") as file:
        file.seek(-min(os.path.getsize(path), _ZIP_END), os.SEEK_END)
        if b"PK\x05\x06" not in file.read():
            return False
    import zipimport

    try:
        return zipimport.zipimporter(path).find_spec("__main__") is not None
    except ImportError:
        return False


def _interpreter_of(path: str) -> str | None:
    """What its first line wants it to be run by; None: it does not say so."""
    if not os.access(path, os.R_OK):  # it may be executed all the same
        return None
    with open(path, "rb") as file:
        return os.fsdecode(file.readline(4096).strip()) if file.read(2) == b"#!" else None


def _source_of(path: str) -> bytes | None:
    """The script, if it is one for this Python."""
    is_script = path.endswith(".py") or not os.access(path, os.X_OK)
    if not is_script and _interpreter_of(path) != sys.executable:
        return None
    with open(path, "rb") as file:
        return file.read()


def _execute(path: str, request: RunRequest, rules: str, words: list[str]) -> None:
    if "report" in words and (option := _isolation_of(_interpreter_of(path))) is not None:
        sys.stderr.write(
            f"aiordma run: {path} is run by a Python with {option}, which leaves out what `aiordma run` puts "
            "into the environment: its connections stay on TCP\n"
        )
    os.environ.update(environment(rules, words))
    try:
        execute(path, [path, *request.arguments])
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # A script without a first line that names its interpreter: as shells do.
        execute("/bin/sh", ["sh", path, *request.arguments])


def _isolation_of(interpreter: str | None) -> str | None:
    """The option by which a script's Python ignores its environment, or does not load `sitecustomize`."""
    name, *options = (interpreter or "").split() or [""]
    if "python" not in name and not any("python" in each for each in options):
        return None
    for option in options:
        if option.startswith("-") and not option.startswith("--") and set(option) & set("IES"):
            return option
    return None


def _run_code(request: RunRequest, rules: str, words: list[str]) -> None:
    """Code of the command line, or of standard input."""
    source: str | bytes
    if "-c" in request.flags:
        name, source, place = "-c", request.program, "<string>"
    else:
        # Bytes: which encoding they are in, the first lines say. It may be closed.
        name, source, place = "-", b"" if sys.stdin is None else sys.stdin.buffer.read(), "<stdin>"
    module = _begin(rules, words, [name, *request.arguments], "")
    if name == "-":
        module.__file__ = place
    exec(compile(source, place, "exec", dont_inherit=True), module.__dict__)
    raise SystemExit


def _run_application(path: str, request: RunRequest, rules: str, words: list[str]) -> None:
    import runpy

    whole = _absolute(path)
    _begin(rules, words, [path, *request.arguments], whole)
    if sys.flags.safe_path:
        sys.path.insert(0, whole)
    # What `python PATH` itself calls.
    if ENABLED and hasattr(runpy, "_run_module_as_main"):
        runpy._run_module_as_main("__main__", alter_argv=False)
    else:
        runpy.run_path(path, run_name="__main__")
    raise SystemExit


def _run_script(path: str, source: bytes, request: RunRequest, rules: str, words: list[str]) -> None:
    place = _absolute(path)
    module = _begin(rules, words, [path, *request.arguments], os.path.dirname(os.path.realpath(place)))
    module.__file__ = place
    exec(_code_of(source, place), module.__dict__)
    raise SystemExit


def _code_of(source: bytes, place: str) -> types.CodeType:
    """A script's code. It may have been compiled; its name need not say so."""
    if place.endswith(".pyc") or source[2:4] == b"\r\n":  # most scripts need not import what follows
        import marshal
        from importlib.util import MAGIC_NUMBER

        if place.endswith(".pyc") or source[:2] == MAGIC_NUMBER[:2]:
            if source[:4] != MAGIC_NUMBER:
                raise RuntimeError("Bad magic number in .pyc file")
            code: types.CodeType = marshal.loads(source[_PYC_HEADER:])
            return code
    return compile(source, place, "exec", dont_inherit=True)


def _absolute(path: str) -> str:
    """As Python makes it: left as it is where the working directory is gone."""
    return os.path.join(_working_directory(), path)


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _run_module(request: RunRequest, rules: str, words: list[str]) -> None:
    import runpy

    _begin(rules, words, ["-m", *request.arguments], _working_directory())
    # What `python -m` itself calls: it sets sys.argv[0], and says what is wrong with a name.
    if ENABLED and hasattr(runpy, "_run_module_as_main"):
        runpy._run_module_as_main(request.program)
    else:
        runpy.run_module(request.program, run_name="__main__", alter_sys=True)
    raise SystemExit


def _begin(rules: str, words: list[str], arguments: list[str], folder: str) -> Any:
    """Install it here, and for the programs that this one starts; returns a new module `__main__`."""
    if "no-children" in words:
        leave_environment()
    else:
        os.environ.update(environment(rules, words))
    # This command may be under another `aiordma run`, whose options are not this one's.
    hooks.uninstall()
    hooks.install(rules, report="report" in words, outside_tls="outside-tls" in words)
    # `python -m` without a working directory has put nothing there.
    has_folder = sys.modules["__main__"].__spec__ is None or bool(_working_directory())
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = module
    sys.argv[:] = arguments
    if not sys.flags.safe_path:
        sys.path[: 1 if has_folder else 0] = [folder]
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
