"""What a process that hangs is waiting for: ``python -m tests.hang PID`` (``--drain`` also polls its queues).

A backtrace of the thread shows the event loop only. This attaches gdb and has the process itself report its
tasks, with the line where each of them waits, and the state of its engines. The process needs no preparation,
but gdb needs the rights of a debugger: root, or the same user where ``kernel.yama.ptrace_scope`` is 0.

Use it on a process that sleeps. A busy process may be at any point and must not be interrupted like this:
inspect it with ``py-spy dump``.
"""

from __future__ import annotations

import argparse
import gc
import json
import select
import subprocess
import sys
import tempfile
import traceback
import types
from pathlib import Path
from typing import Any

# ---- in the process that hangs: code here must not wait, or import more than is already imported there


def _awaited(waits: Any) -> Any:
    """Return what a coroutine, a generator or its iterator waits for; None if not visible."""
    for name in ("cr_await", "ag_await", "gi_yieldfrom"):
        if hasattr(waits, name):
            return getattr(waits, name)
    # The wrappers that "async for" and __await__() create around a coroutine do not show it.
    inner = (types.CoroutineType, types.AsyncGeneratorType)
    return next((found for found in gc.get_referents(waits) if isinstance(found, inner)), None)


def _frames(waits: Any) -> list[str]:
    """The stack of a waiting coroutine, outermost first."""
    found = []
    while waits is not None:
        frames = [getattr(waits, name, None) for name in ("cr_frame", "ag_frame", "gi_frame")]
        for frame in filter(None, frames):
            code = frame.f_code
            found.append(f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}")
        waits = _awaited(waits)
    return found


def _tasks() -> list[tuple[str, list[str]]]:
    """Tasks of asyncio and of trio that have not ended."""
    found = []
    asyncio, trio = sys.modules.get("asyncio"), sys.modules.get("trio")
    for candidate in gc.get_objects():
        if asyncio is not None and isinstance(candidate, asyncio.Task):
            if not candidate.done():
                found.append((candidate.get_name(), _frames(candidate.get_coro())))
        elif trio is not None and isinstance(candidate, trio.lowlevel.Task) and candidate.coro.cr_frame:
            found.append((candidate.name, _frames(candidate.coro)))
    return found


def _engines() -> list[Any]:
    return [
        candidate
        for candidate in gc.get_objects()
        if type(candidate).__name__ == "Engine"
        and type(candidate).__module__.startswith("aiordma.")
        and not candidate.closed  # its completion channel has been destroyed
    ]


def _counted(value: Any) -> Any:
    """Statistics without zero and empty values."""
    if isinstance(value, dict):
        return {name: _counted(inner) for name, inner in value.items() if inner}
    return [_counted(inner) for inner in value] if isinstance(value, list) else value


def _describe_engine(engine: Any, drain: bool) -> list[str]:
    poller = engine.poller
    readable = bool(select.select([poller.fd], [], [], 0)[0])
    lines = [
        json.dumps(_counted(engine.statistics()), indent=1, default=str),
        f"armed: {poller.is_armed}; the completion channel's descriptor {poller.fd} is readable: {readable}",
    ]
    if drain:
        lines.append(f"completions that were waiting in the queue: {poller.drain()}")
    return lines


def report(path: str, drain: bool) -> None:
    """Called by gdb."""
    lines = []
    try:
        for name, frames in _tasks():
            lines += [f"task {name}", *(f"  {frame}" for frame in frames)]
        for engine in _engines():
            lines += ["engine", *_describe_engine(engine, drain)]
    except BaseException:
        lines.append(traceback.format_exc())
    Path(path).write_text("\n".join([*lines, ""]), encoding="utf-8")


# ---- in the inspecting process


def _gdb(pid: int, code: str) -> str:
    """Run Python code in another process; return gdb's output."""
    commands = [
        "call (int)PyGILState_Ensure()",
        f"call (int)PyRun_SimpleString({json.dumps(code)})",
        "call (void)PyGILState_Release($1)",
    ]
    arguments = ["gdb", "-q", "-nx", "-batch", "-p", str(pid)]
    for command in commands:
        arguments += ["-ex", command]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.hang", description=__doc__.splitlines()[0])
    parser.add_argument("pid", type=int)
    parser.add_argument(
        "--drain", action="store_true", help="dispatch what is in its completion queues; it may go on then"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report"
        call = f"runpy.run_path({__file__!r})['report']({str(path)!r}, {arguments.drain})"
        said = _gdb(arguments.pid, f"import runpy; {call}")
        if not path.exists():
            print(said, file=sys.stderr)
            return 1
        print(path.read_text(encoding="utf-8"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
