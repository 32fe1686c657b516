"""A listening socket that cannot be emptied does not take the loop's time."""

from __future__ import annotations

import errno
import socket

import anyio
import anyio.lowlevel
import pytest

import aiordma
from aiordma import wake
from aiordma.wake.accepting import OUT_OF_RESOURCES, PAUSE_S, WatchedListener
from tests.health import until
from tests.virtual import in_virtual_time

pytestmark = pytest.mark.anyio

LOCAL = "127.0.0.1"


@in_virtual_time
@pytest.mark.parametrize("number", sorted(OUT_OF_RESOURCES))
async def test_it_pauses_and_goes_on(number: int) -> None:
    sock = socket.create_server((LOCAL, 0))
    sock.setblocking(False)
    calls, accepted, short = 0, list[socket.socket](), True

    def readable() -> None:
        nonlocal calls
        calls += 1
        if short:
            assert watched.failed(OSError(number, "none left"))
        else:
            accepted.append(sock.accept()[0])

    watched = WatchedListener(wake.current(), sock, readable)
    with socket.create_connection(sock.getsockname()):
        await until(lambda: calls > 0)
        for _ in range(1000):
            await anyio.lowlevel.checkpoint()
        assert calls == 1  # it pauses
        short = False
        await anyio.sleep(PAUSE_S)
        await until(lambda: bool(accepted))
        accepted.pop().close()
    short = True
    with socket.create_connection(sock.getsockname()):
        before = calls
        await until(lambda: calls > before)
        watched.close()  # while it pauses
        watched.close()


async def test_other_errors_do_not_stop_it() -> None:
    sock = socket.create_server((LOCAL, 0))
    watched = WatchedListener(wake.current(), sock, lambda: None)
    assert not watched.failed(OSError(errno.ECONNABORTED, "gone"))
    watched.close()


async def test_the_resolver_of_an_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    """Peers wait, the loop goes on, and they are answered when there are descriptors again."""
    async with await aiordma.open_datagram_endpoint((LOCAL, 0)) as one:
        resolver = one._table.resolver
        ((listening, _),) = resolver._listening.items()

        class Empty:
            calls = 0

            def accept(self) -> None:
                self.calls += 1
                raise OSError(errno.EMFILE, "Too many open files")

        empty = Empty()
        resolver._listening[empty] = resolver._listening[listening]  # type: ignore[index]
        watched = resolver._listening[listening]
        watched._waker.unwatch_fd(listening.fileno())
        watched._readable = lambda: resolver._accept(empty if empty.calls == 0 else listening)  # type: ignore[arg-type]
        watched._watch()
        async with await aiordma.open_datagram_endpoint((LOCAL, 0)) as other:
            assert await other.resolve(one.local_address) == "rdma"
        del resolver._listening[empty]  # type: ignore[arg-type]
    assert empty.calls == 1
    assert "not answered for now" in caplog.text
