"""The round with its output: ``python -m tests.system.operator [FOLDER]``.

It prints what the tools say about each fault, for docs/howto/slow.md. With a folder, and a browser, it draws
the live page there (``make top-pictures``): ``top.png``, and ``top-FAULT.png`` for each.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .scene import scene

if TYPE_CHECKING:
    from .scene import Scene

BROWSER = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None
)
#: Pixels of a picture: width, and height without the tables below, and with them.
_WIDTH, _SHORT, _LONG = 1200, 520, 1180


def draw(seen: Scene, path: Path, height: int) -> None:
    """A picture of the live page, as a browser shows it."""
    if BROWSER is None:
        sys.exit("there is no browser: apt-get install chromium-headless-shell")
    flags = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=3000"]
    size = f"--window-size={_WIDTH},{height}"
    command = [BROWSER, *flags, size, f"--screenshot={path}", seen.address]
    subprocess.run(command, check=True, capture_output=True)


def told(seen: Scene, title: str, *commands: str) -> None:
    """What the tools say now."""
    print(f"\n==== {title}", flush=True)
    for each in seen.page()["sentences"]:
        print(f"{each['level']:>4}  {each['text']}")
    for command in commands:
        print(f"$ aiordma {command}\n{seen.command(*command.split())}", end="", flush=True)


def killed(seen: Scene) -> None:
    seen.readers[1].kill()
    seen.until("reader.* was killed")
    told(seen, "killed", "stat", f"stat --events --pid {seen.feed.pid}")


def slow_reader(seen: Scene) -> None:
    seen.readers[0].say("stop")
    seen.until(r".*has waited for [3-9]")
    told(seen, "slow reader", "stat -d --program reader.py", "stat -d --program feed.py")


def dropped_link(seen: Scene) -> None:
    rule = "drop op=send,write,keepalive ms=never times=1"
    seen.command("adm", "--pid", str(seen.feed.pid), "faults", "add", rule)
    seen.until("Nothing gets")
    told(seen, "dropped link, at first")
    seen.until(".* lost its link")
    told(seen, "dropped link, then", f"stat --events --pid {seen.feed.pid}", "stat --mode tcp")


def blocked_loop(seen: Scene) -> None:
    seen.shop.say("0.25")
    seen.until(".*shop.* blocks its event loop: a timer")
    told(seen, "blocked loop", f"adm --pid {seen.shop.pid} trace start")
    seen.until(".*blocks its event loop: ")
    seen.until(r"shop\.report takes .* at the server")
    told(seen, "blocked loop, traced", f"stat --rpc --pid {seen.shop.pid}")


def full_memory(seen: Scene) -> None:
    seen.readers[0].say("more")
    seen.until(".*no registered memory left")
    told(seen, "full memory", "stat --sum mode", "stat --memory --program feed.py")


_FAULTS = {
    "slow-reader": slow_reader,
    "dropped-link": dropped_link,
    "blocked-loop": blocked_loop,
    "full-memory": full_memory,
    "killed": killed,
}


def main(folder: Path | None) -> None:
    for name, act in _FAULTS.items():
        with scene() as seen:
            time.sleep(15)  # charts of a moment say nothing
            act(seen)
            if folder is not None:
                draw(seen, folder / f"top-{name}.png", _SHORT)
            if name == "blocked-loop":
                log = [row for row in seen.shop.log().splitlines() if row.startswith("slow")]
                print("\n".join(log[-4:]))
    if folder is not None:
        with scene() as seen:
            for act in (killed, slow_reader, blocked_loop):
                time.sleep(15)
                act(seen)
            draw(seen, folder / "top.png", _LONG)


main(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else None)
