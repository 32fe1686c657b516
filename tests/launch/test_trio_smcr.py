"""`aiordma.install()` for servers on trio whose clients are kernels' SMC-R."""

from __future__ import annotations

import contextlib
import functools
import socket
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from tests.kernel_option import Options, options
from tests.kernel_peer import CONFIG, NAME, Elsewhere
from tests.processes import FULL_PATIENCE
from tests.vm.smc.peer import Fallback

trio: Any = pytest.importorskip("trio", reason="trio is not installed")

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from aiordma.streams.stream import RdmaStream

__all__ = ["options"]


@pytest.fixture
def elsewhere(
    options: Options, cache: Path, monkeypatch: pytest.MonkeyPatch, blockbuster: Any
) -> Iterator[Elsewhere]:
    """A kernel, on a host that is set up."""
    monkeypatch.setenv("AIORDMA_SMCR", "fd:99")
    monkeypatch.setenv("AIORDMA_SMCR_EIDS", NAME)
    for function in blockbuster.functions.values():
        function.can_block_in("tests/kernel_peer.py", "wait")
    made = Elsewhere(CONFIG)
    yield made
    aiordma.uninstall()
    made.close()


def run(main: Callable[..., Any], *arguments: Any) -> Any:
    async def limited() -> Any:
        with trio.fail_after(FULL_PATIENCE):
            return await main(*arguments)

    return trio.run(limited)


async def answer(stream: Any) -> None:
    async with stream:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(b"got " + await stream.receive_some(100))


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(functools.partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def ask(stream: RdmaStream) -> bytes:
    await stream.send(b"that")
    return await stream.receive_exactly(8)


def test_a_listener_of_trio_s_speaks_smc_r(elsewhere: Elsewhere, options: Options) -> None:
    async def main() -> None:
        aiordma.install()
        async with serving() as port:
            assert options.listening == [port]
            theirs, _ = await elsewhere.run(elsewhere.kernel.connect(port))
            assert await elsewhere.run(ask(theirs)) == b"got that"

    run(main)
    assert len(elsewhere.kernel.peer.links) == 1


def test_what_rules_keep_plain_is_declined(elsewhere: Elsewhere) -> None:
    """The program sees nothing of the Proposal."""

    async def main() -> None:
        aiordma.install(rules="deny in:127.0.0.1")
        async with serving() as port:
            with pytest.raises(Fallback) as fallback:
                await elsewhere.run(elsewhere.kernel.connect(port))
            sock = trio.socket.from_stdlib_socket(fallback.value.socket)
            await sock.send(b"that")
            assert await sock.recv(100) == b"got that"

    run(main)


def test_other_sockets_do_not_answer_kernels(elsewhere: Elsewhere, options: Options) -> None:
    """They would get a Proposal that they know nothing of."""
    listen = vars(socket.socket).get("listen")

    async def main() -> None:
        aiordma.install()
        async with serving() as port:
            with socket.create_server(("127.0.0.1", 0)):
                assert options.listening == [port]
            with trio.socket.socket() as sock:
                await sock.bind(("127.0.0.1", 0))
                sock.listen()
                assert options.listening == [port]

    run(main)
    aiordma.uninstall()
    assert vars(socket.socket).get("listen") is listen
