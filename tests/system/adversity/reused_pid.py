"""A process of aiordma's ends, and its number is given again: run as the first process of a PID namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from aiordma.admin.asking import ask, loops
from aiordma.admin.requests import Change, Show
from aiordma.cli.debug_bundle.command import proc_files

NUMBER = 20_000
SHOW = Show(("connections",))
#: Its child keeps what it has open, the socket on which it listens among that.
USER = """
import asyncio, os, time
import aiordma
from tests.admin.looking import loops_of

async def main():
    async with await aiordma.listen("127.0.0.1"):
        await asyncio.to_thread(loops_of, os.getpid())
        if not os.fork():
            time.sleep(600)
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
STRANGER = "print('ready', flush=True); import time; time.sleep(600)"


def start(program: str) -> subprocess.Popen[str]:
    """Python with this program, as the process with the number."""
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(NUMBER - 1))
    started = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert started.pid == NUMBER
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


def end(process: subprocess.Popen[str]) -> None:
    """As a crash does: its page stays."""
    process.kill()
    process.wait()


def tool(*words: str) -> tuple[int, str]:
    """Status, and what it said."""
    command = [sys.executable, "-m", "aiordma", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


def pages() -> list[str]:
    """Files by which processes are found."""
    return sorted(path.name for path in Path(os.environ["XDG_RUNTIME_DIR"]).rglob("*.page"))


def main() -> None:
    """Prints one line of JSON."""
    pid, bundle = str(NUMBER), os.environ["XDG_RUNTIME_DIR"] + "/bundle.tgz"
    said: dict[str, Any] = {}
    first = start(USER)
    said["stat, first"] = tool("stat", "--pid", pid)
    said["reset"] = tool("stat", "--pid", pid, "--reset")
    found = loops(pid=NUMBER)
    assert len(found) == 1
    end(first)

    second = start(STRANGER)  # between a tool's look and its question
    said["asked"] = [each.state for each in ask(SHOW, found)]
    said["stat"] = tool("stat", "--pid", pid)
    said["adm"] = tool("adm", "--pid", pid, "set", "busy_poll_us=0")
    said["bundle"] = tool("debug-bundle", "--no-doctor", "--pid", pid, "-o", bundle)
    said["in it"] = tool("debug-bundle", "--read", bundle)[1].count("inspect.json")
    end(second)

    third = start(USER)
    before = pages()
    said["changed"] = [each.state for each in ask(Change({"busy_poll_us": "0"}), found)]
    found[0].pid = NUMBER  # it had answered, and then it ended
    said["proc"] = (
        list(proc_files(found[0])),
        [list(proc_files(each)) for each in ask(SHOW, loops(pid=NUMBER))],
    )
    said["get"] = tool("adm", "--pid", pid, "get", "busy_poll_us")
    said["stat, third"] = tool("stat", "--pid", pid, "--json")
    said["pages"] = len(before), len(pages())
    end(third)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
