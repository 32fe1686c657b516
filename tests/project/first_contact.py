"""Which files a client's first contact with a server passes, and where it climbs: `python -m` this module.

A program connects to two servers, which are processes of their own. At the second one its device is open and
aiordma is imported, and nothing is known of the server. What is counted is each Python file of aiordma in
which a function is called until `connect()` returns. A call, or an await, from one package into another that
the first one may not import is a climb. The loop's callbacks are none: to call upward is what `wake` is for.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiordma

from .layers import FACADE, NEEDS, module_name, package_of

if TYPE_CHECKING:
    from types import FrameType

#: The packages through which a contact is made, from the user's call down to what both ends agree on.
ROOMS = ("streams", "negotiation", "links")

#: What happens to a loop that was held up, and has nothing to do with the contact.
_BESIDE = {"links/loop_watch.py"}

_ROOT = Path(aiordma.__file__).parents[1]
_INSIDE = str(_ROOT / "aiordma") + "/"
_SERVER = """
import aiordma, anyio
async def main():
    async with await aiordma.listen("127.0.0.1") as listener:
        print(listener.port, flush=True)
        await listener.serve(lambda stream: anyio.sleep_forever())
anyio.run(main)
"""


class Journey:
    """What is called while it is followed."""

    def __init__(self) -> None:
        #: Files in the order in which they are come to, from the package's folder on.
        self.files: list[str] = []
        self.climbs: list[tuple[str, str]] = []

    def follow(self, frame: FrameType, event: str, _argument: Any) -> None:
        """For `sys.setprofile()`."""
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(_INSIDE):
            return
        name = path.removeprefix(_INSIDE)
        if name not in self.files:
            self.files.append(name)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(_INSIDE):
            caller = caller.f_back
        if caller is None:
            return
        step = caller.f_code.co_filename.removeprefix(_INSIDE), name
        one, other = map(_package, step)
        upward = one not in (other, FACADE, "wake") and other not in NEEDS[one].split()
        # What an object from further up has handed down, as an error's text, needs no import.
        if upward and list(NEEDS).index(other) > list(NEEDS).index(one) and step not in self.climbs:
            self.climbs.append(step)

    def through(self, rooms: tuple[str, ...]) -> list[str]:
        """The files of these packages."""
        return [name for name in self.files if _package(name) in rooms and name not in _BESIDE]


def _package(name: str) -> str:
    return package_of(module_name(_ROOT / "aiordma" / name, _ROOT))


async def _connect(ports: list[int]) -> Journey:
    journey = Journey()
    # On a busy machine the way is the same. The endpoint is prepared in a thread, at any time.
    config = aiordma.Config(admin="off", head_start_ms=30_000, negotiate_timeout_ms=30_000)
    async with await aiordma.connect("127.0.0.1", ports[0], config=config, mode="rdma"):
        connecting = aiordma.connect("127.0.0.1", ports[1], config=config)
        threading.setprofile(journey.follow)
        sys.setprofile(journey.follow)
        try:
            stream = await connecting
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        assert stream.path == "rdma"
        await stream.aclose()
    return journey


def first_contact() -> Journey:
    """In a process that has not used aiordma yet."""
    servers = [
        subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        ports = [int(server.stdout.readline()) for server in servers if server.stdout is not None]
        return asyncio.run(_connect(ports))
    finally:
        for server in servers:
            server.kill()
            server.communicate()


if __name__ == "__main__":
    found = first_contact()
    for name in found.files:
        print(name)
    print(f"{len(found.files)} files, {len(found.through(ROOMS))} of them in {', '.join(ROOMS)}")
    print(f"{len(found.climbs)} climbs: {found.climbs}")
