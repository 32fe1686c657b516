"""A listening socket that cannot be emptied does not take the loop's time."""

from __future__ import annotations

import errno
import gc
import socket
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

import aiordma
from aiordma import wake
from aiordma.wake.accepting import OUT_OF_RESOURCES, PAUSE_S, Acceptor
from tests.health import until
from tests.virtual import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

LOCAL = "127.0.0.1"


class Short:
    """A listening socket whose ``accept()`` fails as often as there are errors."""

    def __init__(self, sock: socket.socket, *errors: BaseException) -> None:
        self.sock, self.errors, self.calls = sock, list(errors), 0

    def accept(self) -> Any:
        self.calls += 1
        if self.errors:
            raise self.errors.pop()
        return self.sock.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)


class Owner:
    """Takes what fits."""

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.taken: list[socket.socket] = []
        self.failed: list[tuple[BaseException, bool]] = []

    def has_room(self) -> bool:
        return len(self.taken) < self.room

    def take(self, sock: socket.socket) -> None:
        self.taken.append(sock)

    def accept_failed(self, error: OSError | MemoryError, *, pauses: bool) -> None:
        self.failed.append((error, pauses))


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server((LOCAL, 0)) as sock:
        sock.setblocking(False)
        yield sock


def accept_on(sock: Any, owner: Owner, *, holds: bool = False) -> Acceptor:
    acceptor = Acceptor(wake.current(), [sock], owner, 16, holds=holds)
    acceptor.resume()
    return acceptor


@in_virtual_time
@pytest.mark.parametrize(
    "error", [*(OSError(number, "none left") for number in sorted(OUT_OF_RESOURCES)), MemoryError()]
)
async def test_it_pauses_and_goes_on(error: OSError | MemoryError, listening: socket.socket) -> None:
    sock, owner = Short(listening, error), Owner()
    acceptor = accept_on(sock, owner)
    with socket.create_connection(listening.getsockname()):
        await until(lambda: sock.calls > 0)
        for _ in range(1000):
            acceptor.resume()
            await anyio.lowlevel.checkpoint()
        assert sock.calls == 1  # it pauses
        assert owner.failed == [(error, True)]
        await anyio.sleep(PAUSE_S)
        await until(lambda: bool(owner.taken))
        owner.taken.pop().close()
    sock.errors.append(error)
    with socket.create_connection(listening.getsockname()):
        await until(lambda: len(owner.failed) == 2)
        acceptor.close()  # while it pauses
        acceptor.close()
    assert not acceptor.watching


async def test_other_errors_do_not_stop_it(listening: socket.socket) -> None:
    gone, owner = OSError(errno.ECONNABORTED, "gone"), Owner()
    acceptor = accept_on(Short(listening, gone), owner)
    with socket.create_connection(listening.getsockname()):
        await until(lambda: bool(owner.taken))
    assert owner.failed == [(gone, False)]
    owner.taken.pop().close()
    acceptor.close()


async def test_what_has_no_room_waits_in_the_kernels_queue(listening: socket.socket) -> None:
    sock, owner = Short(listening), Owner(room=1)
    acceptor = accept_on(sock, owner)
    clients = [socket.create_connection(listening.getsockname()) for _ in range(2)]
    await until(lambda: not acceptor.watching)
    assert (sock.calls, len(owner.taken)) == (1, 1)
    owner.taken.pop().close()
    acceptor.resume()
    await until(lambda: bool(owner.taken))
    owner.taken.pop().close()
    acceptor.close()
    for client in clients:
        client.close()


@pytest.mark.parametrize("holds", [True, False])
async def test_the_loop_keeps_the_owner_if_it_shall(listening: socket.socket, holds: bool) -> None:
    owner = Owner()
    acceptor, known = accept_on(listening, owner, holds=holds), weakref.ref(owner)
    del owner
    gc.collect()
    assert (known() is not None) == holds
    acceptor.close()
    await until(lambda: gc.collect() >= 0 and known() is None)


async def test_the_resolver_of_an_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    """Peers wait, the loop goes on, and they are answered when there are descriptors again."""
    async with await aiordma.open_datagram_endpoint((LOCAL, 0)) as one:
        acceptor = one._table.resolver._acceptor
        acceptor._stop()
        empty = Short(acceptor._sockets[0], OSError(errno.EMFILE, "Too many open files"))
        acceptor._sockets[:] = [empty]  # type: ignore[list-item]
        acceptor.resume()
        async with await aiordma.open_datagram_endpoint((LOCAL, 0)) as other:
            assert await other.resolve(one.local_address) == "rdma"
    assert empty.calls > 1
    assert "not answered for now" in caplog.text
