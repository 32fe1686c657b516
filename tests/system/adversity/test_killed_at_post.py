"""A process that is killed right behind the post by which its last bytes leave: its peer gets an end.

The peer has the bytes as soon as they are posted, and may kill the process before that has gone on. So it
must show together with them, not behind them, whether the process holds something back.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.datagrams.connection import listen_datagram
from aiordma.verbs.softlib import SoftLibrary
from tests.loops import LOOPS
from tests.processes import PATIENCE, process
from tests.roles import LOCAL
from tests.system.adversity.test_blocked import block
from tests.system.adversity.test_blocked_late import MANY, SURFACES, _writer
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.program import Control

HERE = "tests.system.adversity.test_killed_at_post"
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(DEVICE != "soft", reason="only the software device shows what a process left undone"),
]

Says = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)


@pytest.fixture
def anyio_backend() -> object:
    """The process that is killed has every loop, its peer one."""
    return LOOPS["asyncio"]


def die_at_the_word() -> Callable[[], None]:
    """Queue pairs made from now on kill the process where it would say that it holds nothing back any more.
    Returns what begins that.
    """
    begun: list[bool] = []
    symbol = SoftLibrary.symbol
    known: dict[int, Any] = {}

    def wrapped(self: SoftLibrary, name: str) -> int:
        address = symbol(self, name)
        if name != "softdev_holds":
            return address
        if address not in known:
            says = Says(address)

            def say(qp: int, some: int) -> None:
                if not some and begun:
                    os.kill(os.getpid(), signal.SIGKILL)
                says(qp, some)

            known[address] = says, Says(say)
        return ctypes.cast(known[address][1], ctypes.c_void_p).value or 0

    SoftLibrary.symbol = wrapped  # type: ignore[method-assign]
    return lambda: begun.append(True)


async def killed(control: Control, surface: str, port: int, blocked: bool) -> None:
    begin = die_at_the_word()
    write = await _writer(control, surface, port, "rdma")
    await control.hear()
    for piece in MANY:
        written = write(piece)
        if written is not None:
            await written
    begin()
    if blocked:
        block(control)  # and a thread posts, and is killed
    await anyio.sleep_forever()


async def check(surface: str, loop: str, *, blocked: bool) -> None:
    listen: Any = listen_datagram if surface == "datagrams" else aiordma.listen
    async with await listen(LOCAL) as listener:
        with (
            process(f"{HERE}:killed", loop, surface=surface, port=listener.port, blocked=blocked) as victim,
            anyio.fail_after(PATIENCE),
        ):
            victim.expect(-signal.SIGKILL)
            async with await listener.accept() as connection:
                assert connection.path == "rdma"
                victim.say("begin")
                if surface == "datagrams":
                    assert [await connection.receive() for _ in MANY] == MANY
                else:
                    whole = b"".join(MANY)
                    assert await connection.receive_exactly(len(whole)) == whole
                with contextlib.suppress(ProcessLookupError):
                    victim.kill()  # where the loop had a turn right before it was to die
                with pytest.raises(anyio.EndOfStream):
                    await connection.receive()


@pytest.mark.parametrize(("surface", "loop"), [each for each in SURFACES if each[0] != "stream off RDMA"])
async def test_by_its_loop(surface: str, loop: str) -> None:
    await check(surface, loop, blocked=False)


@pytest.mark.parametrize("surface", ["streams", "transport", "stream", "send_soon", "datagrams"])
async def test_by_the_thread_that_helps(surface: str) -> None:
    await check(surface, "asyncio", blocked=True)
