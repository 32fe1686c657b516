"""A process whose event loops have returned, and were not closed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Runs of loops that return, and are not closed. Says "run" when each has returned, and obeys "again".
RETURNED = """
import asyncio, os, sys, threading
if sys.argv[2] == "uvloop":
    import uvloop as loops
else:
    loops = asyncio
import aiordma
from aiordma import wake
from tests.admin.looking import listed

async def connect():
    listener = await aiordma.listen("127.0.0.1", config=aiordma.Config(device=sys.argv[1]))
    wake.current().locals["kept"] = listener, await aiordma.connect("127.0.0.1", listener.port)
    while sum(each.page.thread != 0 for each in await asyncio.to_thread(listed, os.getpid())) < len(kept):
        await asyncio.sleep(0.005)

async def fail():
    await connect()
    asyncio.get_running_loop().call_soon(interrupt)
    await asyncio.sleep(3600)

def interrupt():
    raise KeyboardInterrupt

kept = []
def run(main):
    kept.append(loops.new_event_loop())
    try:
        kept[-1].run_until_complete(main())
    except KeyboardInterrupt:
        pass

how = sys.argv[3]
if how == "thread":
    thread = threading.Thread(target=run, args=[connect])
    thread.start()
    thread.join()
elif how == "overtaken":
    run(fail)
    run(connect)
else:
    run(connect)
print("run", flush=True)
for line in sys.stdin:
    kept[-1].run_until_complete(asyncio.sleep(float(line)))
    print("run", flush=True)
"""


@contextlib.contextmanager
def returned(loop: str, how: str) -> Iterator[subprocess.Popen[str]]:
    """A process whose loops run no more: ``how`` is "in order", "thread" or "overtaken"."""
    program = [sys.executable, "-c", RETURNED, DEVICE, loop, how]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "run\n"
        yield other
        other.stdin.close()
