"""Several event loops in one process at once, each in a thread with an engine of its own."""

from __future__ import annotations

import hashlib
import threading
from random import Random

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

import aiordma
from aiordma.links import engine as engines
from aiordma.wake import _asyncio, _trio
from tests.loops import LOOPS
from tests.processes import FULL_PATIENCE
from tests.roles import LOCAL, echo

#: Each kind of loop loads its own when it first needs it. Two of one kind that begin together would wait for
#: each other's import, which is a call that blocks.
_LOADED = _asyncio, _trio


class Server(threading.Thread):
    """An echo server on a loop of its own until :meth:`stop`."""

    def __init__(self, loop: str) -> None:
        super().__init__(name=f"server on {loop}", daemon=True)  # should the test fail before its stop()
        self._backend, self._options = LOOPS[loop]
        self.ready = threading.Event()
        self.port = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            anyio.run(self._main, backend=self._backend, backend_options=self._options)
        except BaseException as error:
            self.error = error
        finally:
            self.ready.set()

    async def _main(self) -> None:
        self._over = anyio.Event()
        self._token = anyio.lowlevel.current_token()
        async with await aiordma.listen(LOCAL) as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            self.port = listener.port
            self.ready.set()
            await self._over.wait()
            tasks.cancel_scope.cancel()

    def stop(self) -> None:
        anyio.from_thread.run_sync(self._over.set, token=self._token)
        self.join(FULL_PATIENCE)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


async def talk(port: int, seed: int) -> None:
    data = Random(seed).randbytes(1_000_000)
    digest = hashlib.sha256()
    async with await aiordma.connect(LOCAL, port, mode="rdma") as stream, anyio.create_task_group() as tasks:

        async def send() -> None:
            await stream.send(data)
            await stream.send_eof()

        tasks.start_soon(send)
        async for part in stream:
            digest.update(part)
    assert digest.digest() == hashlib.sha256(data).digest()


async def talk_to_all(ports: list[int], seed: int) -> None:
    async with anyio.create_task_group() as tasks:
        for number, port in enumerate(ports):
            tasks.start_soon(talk, port, seed + number)


def client(loop: str, ports: list[int], seed: int, failures: list[BaseException]) -> None:
    backend, options = LOOPS[loop]
    try:
        anyio.run(talk_to_all, ports, seed, backend=backend, backend_options=options)
    except BaseException as error:
        failures.append(error)


@pytest.mark.parametrize("turn", range(3))
def test_loops_in_threads(turn: int) -> None:
    """Clients in three threads, on three kinds of loops, talk to servers in three others."""
    servers = [Server(loop) for loop in LOOPS]
    for server in servers:
        server.start()
    for server in servers:
        assert server.ready.wait(FULL_PATIENCE)
        assert server.error is None, server.error
    ports = [server.port for server in servers]
    failures: list[BaseException] = []
    clients = [
        threading.Thread(target=client, args=(loop, ports, 10 * n + turn, failures))
        for n, loop in enumerate(LOOPS)
    ]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(FULL_PATIENCE)
        assert not thread.is_alive()
    for server in servers:
        server.stop()
    assert not failures, failures
    assert not engines.ENGINES
