"""The question whether a server negotiates: what each kind of server answers, and what it costs it."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

import aiordma
from aiordma import memory, rpc
from aiordma.negotiation.question import Answer, ask
from aiordma.proto import clc
from tests.health import until
from tests.roles import LOCAL
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONFIG = aiordma.Config(device=DEVICE)
#: For answers that come; the others are not waited for.
PATIENT_MS, SHORT_MS = 20_000, 30


@contextlib.contextmanager
def server(serve: Callable[[socket.socket], object]) -> Iterator[list[tuple[int, Any]]]:
    """What to ask: a server that calls ``serve`` once."""
    with socket.create_server((LOCAL, 0)) as listening:

        def accept() -> None:
            with contextlib.suppress(OSError), listening.accept()[0] as connection:
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield [(socket.AF_INET, listening.getsockname())]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def read_and_send(data: bytes, chunk: int = 4096) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.recv(4096)
        for at in range(0, len(data), chunk):
            connection.sendall(data[at : at + chunk])
            time.sleep(0.001)  # in pieces
        connection.recv(1)

    return serve


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


DECLINE = clc.Decline(diagnosis=aiordma.Code.NO_DEVICE).encode()


@pytest.mark.parametrize(
    ("serve", "answer"),
    [
        (read_and_send(DECLINE), Answer.NEGOTIATES),
        (read_and_send(DECLINE, 1), Answer.NEGOTIATES),
        (lambda connection: connection.sendall(b"220 ready\r\n"), Answer.PLAIN),
        (read_and_send(b"-ERR Protocol error\r\n"), Answer.PLAIN),
        (read_and_send(DECLINE[:8] + bytes(100)), Answer.PLAIN),
        (lambda connection: connection.sendall(connection.recv(4096)), Answer.PLAIN),
        (lambda connection: connection.recv(4096), Answer.CLOSED),
        (reset, Answer.CLOSED),
    ],
    ids=["declines", "in-bytes", "greets", "complains", "garbage", "echoes", "closes", "resets"],
)
def test_what_servers_answer(serve: Callable[[socket.socket], object], answer: Answer) -> None:
    with server(serve) as addresses:
        assert ask(addresses, PATIENT_MS) is answer


def test_a_server_that_says_nothing() -> None:
    with socket.create_server((LOCAL, 0)) as listening:  # as the kernel accepts for it
        assert ask([(socket.AF_INET, listening.getsockname())], SHORT_MS) is Answer.SILENT


def test_a_half_answer_does_not_stop_the_clock() -> None:
    with server(read_and_send(DECLINE[:20])) as addresses:
        assert ask(addresses, SHORT_MS) is Answer.SILENT


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind((LOCAL, 0))  # and does not listen
        assert ask([(socket.AF_INET, taken.getsockname())], PATIENT_MS) is Answer.UNREACHABLE
        with server(read_and_send(DECLINE)) as addresses:
            both = [(socket.AF_INET, taken.getsockname()), *addresses]
            assert ask(both, PATIENT_MS) is Answer.NEGOTIATES


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "tcp"])
async def test_a_listener_answers_and_serves_nobody(mode: Any, caplog: pytest.LogCaptureFixture) -> None:
    """With RDMA and without: which path they use is the matter of a connection."""
    caplog.set_level(logging.INFO, "aiordma")
    served: list[aiordma.RdmaStream] = []
    listener = await aiordma.listen(LOCAL, mode=mode, config=CONFIG)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, _kept_in(served))
        address = socket.AF_INET, (LOCAL, listener.port)
        caplog.clear()
        for _ in range(3):
            assert await anyio.to_thread.run_sync(ask, [address], PATIENT_MS) is Answer.NEGOTIATES
        await until(lambda: listener.statistics().accepted == 3, lambda: str(listener.statistics()))
        await until(lambda: listener.statistics().negotiating == 0, lambda: str(listener.statistics()))
        assert listener.statistics().failed == 0
        tasks.cancel_scope.cancel()
    assert served == []
    assert caplog.messages == []


def _kept_in(served: list[aiordma.RdmaStream]) -> Any:
    async def keep(stream: aiordma.RdmaStream) -> None:
        served.append(stream)

    return keep


@pytest.mark.anyio
async def test_listeners_of_all_kinds_answer() -> None:
    class Asked:
        @rpc.method
        async def nothing(self) -> None:
            """Not called."""

    async with (
        await aiordma.listen_datagram(LOCAL, config=CONFIG) as datagrams,
        rpc.serve(rpc.Service("asked", Asked()), LOCAL, 0, config=CONFIG) as calls,
        memory.serve(LOCAL, 0, config=CONFIG) as regions,
    ):
        for port in (datagrams.port, calls.port, regions.port):
            address = socket.AF_INET, (LOCAL, port)
            assert await anyio.to_thread.run_sync(ask, [address], PATIENT_MS) is Answer.NEGOTIATES


@pytest.mark.anyio
async def test_who_asks_and_leaves_costs_the_server_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with await aiordma.listen(LOCAL, config=CONFIG) as listener:
        for _ in range(20):
            sock = socket.create_connection((LOCAL, listener.port))
            question = clc.Proposal(
                engine_id=b"e" * 16, nonce=b"n" * 16, host_id=bytes(16), kind=clc.Kind.QUESTION
            )
            sock.sendall(question.encode())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await anyio.lowlevel.checkpoint()
            sock.close()
        await until(lambda: listener.statistics().negotiating == 0, lambda: str(listener.statistics()))
        async with await aiordma.connect(LOCAL, listener.port, config=CONFIG) as stream:
            assert stream.path == "rdma"
    assert "Traceback" not in caplog.text
