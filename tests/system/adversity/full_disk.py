"""A program on a disk that becomes full: its log, its packets, its caches and the tools' files are there.

Run in a mount namespace in which the folder of the first argument is a small tmpfs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import aiordma
from aiordma.negotiation.plain_peers import PlainPeers, cache_file
from tests.admin.looking import loops_of
from tests.roles import LOCAL
from tests.system.adversity.full_shm import call, echo, fill, region, stream

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
NETWORK = str(ROOT / "examples" / "fabric" / "clos64.toml")
BEFORE = "what was there before\n"
PAGE = os.sysconf("SC_PAGE_SIZE")
MODEL = "incast-2-64k"
#: A tool's packets would be the next thing that has no room.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "SOFTDEV_CAPTURE"}


def tools(folder: Path, port: int) -> dict[str, list[str]]:
    """Those that write files into it, by the file's name."""
    pid, simulated = str(os.getpid()), ["--model", MODEL, "--jobs", "1", "--results"]
    return {
        "bundle.tgz": ["debug-bundle", "--no-doctor", "--pid", pid, "-o", str(folder / "bundle.tgz")],
        "it.pcapng": ["adm", "--pid", pid, "capture", "--seconds", "0", "-o", str(folder / "it.pcapng")],
        "plan.md": ["fabric", "plan", NETWORK, "--format", "markdown", "-o", str(folder / "plan.md")],
        "plan": ["fabric", "plan", NETWORK, "--format", "json", "--settings", str(folder / "plan")],
        "results.db": ["fabric", "simulate", NETWORK, *simulated, str(folder / "results.db")],
        "perf.svg": [
            *("perf", f"{LOCAL}:{port}", "--mode", "round-trip", "-s", "64", "--seconds", "0.01"),
            *("--against", "none", "--plot", str(folder / "perf.svg")),
        ],
        "stat.json": ["stat", "--pid", pid, "--reset"],
    }


def run(words: list[str]) -> dict[str, object]:
    """What a tool said, and how it ended."""
    command = [sys.executable, "-m", "aiordma", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=ENVIRONMENT)
    return {"rc": done.returncode, "err": done.stderr, "out": len(done.stdout)}


@contextlib.contextmanager
def diagnostics() -> Iterator[int]:
    """The port of an `aiordma serve-diagnostics`."""
    command = [sys.executable, "-m", "aiordma", "serve-diagnostics", "--port", "0", "--no-against"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as server:
        try:
            assert server.stdout is not None
            found = re.search(r":(\d+)", server.stdout.readline())
            assert found is not None
            yield int(found[1])
        finally:
            server.terminate()


def listed(folder: Path) -> dict[str, str]:
    """Files with what is in them, if that is text and short."""
    return {
        str(path.relative_to(folder)): path.read_text() if path.stat().st_size < 100 else "long"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


async def main(folder: Path) -> None:
    """Prints one line of JSON."""
    handler = logging.FileHandler(folder / "log")
    logging.getLogger("aiordma").addHandler(handler)
    logging.getLogger("aiordma").setLevel(logging.DEBUG)
    wanted = folder / "cache" / "aiordma"
    wanted.mkdir(parents=True)
    said: dict[str, object] = {}
    with diagnostics() as port:
        async with await aiordma.listen(LOCAL) as listener:
            serving = asyncio.create_task(listener.serve(echo))
            await asyncio.to_thread(loops_of, os.getpid())
            await stream(listener)
            names = tools(folder, port)
            for name in names:
                if name != "plan":
                    (wanted if name == "stat.json" else folder).joinpath(name).write_text(
                        "" if name == "results.db" else BEFORE
                    )
            assert handler.stream is not None
            handler.stream.write("x" * (-handler.stream.tell() % PAGE))
            handler.flush()
            fill(folder)
            logging.getLogger("aiordma.test").warning("a line that has no room")
            peers = PlainPeers(cache_file())
            for number in range(100):
                peers.remember(f"db{number}", 5000, True)
            for name, words in names.items():
                said[name] = await asyncio.to_thread(run, words)
            paths = [await stream(listener)]
            await call()
            await region()
            serving.cancel()
            await asyncio.wait([serving])
    (folder / "filled").unlink()
    known = PlainPeers(cache_file())
    said["known"] = [n for n in range(100) if known.is_plain(f"db{n}", 5000)]
    said["remembered"] = all(peers.is_plain(f"db{n}", 5000) for n in range(100))
    said["files"], said["paths"] = listed(folder), paths
    print(json.dumps(said))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
