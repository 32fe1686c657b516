"""Unknown servers are asked before aiordma is loaded: once, whoever connects, and what is learned is kept."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import uvloop

import aiordma
from aiordma.config import Config
from aiordma.launch import hooks
from aiordma.negotiation import peer_cache, peers, question
from aiordma.negotiation.peers import KnownServer, Peers
from aiordma.negotiation.plain_peers import LIFETIME_S, PlainPeers
from aiordma.proto.clc import EYE_CATCHER
from tests import patient
from tests.processes import FULL_PATIENCE
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOST = "127.0.0.3"
"""Counts as another host here."""
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
CONFIG = Config(device=DEVICE)


@pytest.fixture(autouse=True)
def _installed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "is_address_of_this_host", lambda _address: False)
    aiordma.install()


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    def run(main: Any) -> Any:
        async def limited() -> Any:
            with anyio.fail_after(30):
                return await main

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(limited())

    return run


class Plain:
    """A server that echoes, in a thread; it has the first bytes of each connection.

    :param answer: what it does with a question: "complains", "closes" the connection, or is "silent", because
        it waits for a whole line, as redis-server does.
    """

    def __init__(self, answer: str = "complains") -> None:
        self.heads: list[bytes] = []
        self.answer = answer
        self._listening = socket.create_server((HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self.heads.append(data := connection.recv(4096))
            while data:
                if not data.startswith(EYE_CATCHER):
                    connection.sendall(data)
                elif self.answer != "silent":
                    if self.answer == "complains":
                        connection.sendall(b"-ERR Protocol error\r\n")
                    return
                data = connection.recv(4096)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()

    def questions(self) -> int:
        return sum(head.startswith(EYE_CATCHER) for head in self.heads)


def its_time_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of who is silent no answer comes, however long it is waited for."""
    patient.as_for_users(monkeypatch)


@pytest.fixture(params=["complains", "closes", "silent"])
def plain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plain]:
    if request.param == "silent":
        its_time_is_short(monkeypatch)
    server = Plain(request.param)
    yield server
    server.close()


async def say(port: int, **options: Any) -> str | None:
    """Say something on a new connection; its path."""
    where = () if "sock" in options else (HOST, port)
    reader, writer = await asyncio.open_connection(*where, **options)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    path: str | None = writer.get_extra_info("aiordma.path")
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return path


def reasons(port: int) -> dict[str, int]:
    """Why connections with the server went which way, as the report has it."""
    assert hooks._installed is not None
    counts = hooks._installed.report.counts
    return {reason: n for (_, _, peer, reason), n in counts.items() if peer == f"{HOST}:{port}"}


def test_a_plain_server_is_asked_once_and_by_one_connection(run: Any, plain: Plain, cache: Path) -> None:
    async def main() -> None:
        paths = await asyncio.gather(*(say(plain.port) for _ in range(20)))
        assert paths == [None] * 20
        assert await say(plain.port) is None

    run(main())
    assert plain.questions() == 1
    assert sorted(set(plain.heads))[0] == b"hello"
    assert len(plain.heads) == 22
    assert PlainPeers(cache).is_plain(HOST, plain.port) == (plain.answer == "complains")
    assert set(reasons(plain.port)) == {"it does not negotiate", "known to be plain"}


def test_only_an_answer_counts_for_other_processes(
    run: Any, plain: Plain, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was silent may have been busy, and who closed may be about to start anew."""
    run(say(plain.port))
    assert cache.exists() == (plain.answer == "complains")
    assert LIFETIME_S <= 3600
    later = time.time() + peers._SILENCE_COUNTS_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    run(say(plain.port))
    assert plain.questions() == (1 if plain.answer == "complains" else 2)


def test_a_program_s_own_socket_carries_no_question(run: Any, plain: Plain) -> None:
    async def main() -> None:
        sock = socket.create_connection((HOST, plain.port))
        sock.setblocking(False)
        assert await say(plain.port, sock=sock) is None

    run(main())
    assert sorted(head[:5] for head in plain.heads)[0] == b"hello"
    assert plain.questions() == 1


def test_a_server_of_ours_is_asked_and_then_connected_to(run: Any, cache: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async def main() -> None:
        async with await aiordma.start_server(echo, HOST, 0, config=CONFIG) as server:
            sockets: Any = getattr(server, "sockets")  # noqa: B009  # typeshed's base class has none
            assert await say(sockets[0].getsockname()[1]) == "rdma"

    asked: list[Any] = []
    own = question.ask

    def ask(*arguments: Any) -> Any:
        asked.append(own(*arguments))
        return asked[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(question, "ask", ask)
        run(main())
    assert asked == [question.Answer.NEGOTIATES]
    assert not cache.exists()


def test_a_task_that_is_cancelled_does_not_cancel_the_others_question(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    its_time_is_short(monkeypatch)
    server = Plain("silent")

    async def main() -> None:
        tasks = [asyncio.ensure_future(say(server.port)) for _ in range(3)]
        while not server.heads:  # noqa: ASYNC110  # another thread has them
            await asyncio.sleep(0.001)
        tasks[0].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert done[1:] == [None, None]

    try:
        run(main())
    finally:
        server.close()
    assert server.questions() == 1


def test_a_name_that_is_looked_up_more_slowly_asks_no_second_time(plain: Plain, cache: Path) -> None:
    asker = Peers(PlainPeers(cache))
    server = KnownServer(HOST, plain.port, known=False)

    class Names:
        """Looks names up once it is allowed to."""

        def __init__(self) -> None:
            self.may = asyncio.Event()

        async def getaddrinfo(self, host: str, port: int, **options: Any) -> Any:
            await self.may.wait()
            return await asyncio.get_running_loop().getaddrinfo(host, port, **options)

    async def main() -> None:
        quick, slow = Names(), Names()
        late = asyncio.ensure_future(asker.ask(server, slow, asyncio.wrap_future))
        await asyncio.sleep(0)
        quick.may.set()
        assert await asker.ask(server, quick, asyncio.wrap_future) == "it does not negotiate"
        slow.may.set()
        assert await late == "it does not negotiate"

    asyncio.run(main())
    assert plain.questions() == 1


def test_a_server_that_is_not_there_gives_the_program_s_own_error(run: Any, cache: Path) -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind((HOST, 0))
            with pytest.raises(ConnectionRefusedError):
                await say(taken.getsockname()[1])

    run(main())
    assert not cache.exists()


def test_a_name_without_addresses_is_of_no_host() -> None:
    """Nothing is remembered of it: the next look-up may find some."""
    known = Peers(None)
    assert not known.is_local("nowhere.example", [])
    assert not known.is_placed("nowhere.example")


def test_trio_s_programs_ask_too(plain: Plain, cache: Path) -> None:
    trio: Any = pytest.importorskip("trio", reason="trio is not installed")

    async def one() -> None:
        async with await trio.open_tcp_stream(HOST, plain.port) as stream:
            await stream.send_all(b"hello")
            assert await stream.receive_some(100) == b"hello"

    async def main() -> None:
        with trio.fail_after(FULL_PATIENCE):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(one)
            await one()

    trio.run(main)
    assert plain.questions() == 1
    assert len(plain.heads) == 7
    assert PlainPeers(cache).is_plain(HOST, plain.port) == (plain.answer == "complains")


def test_nothing_is_loaded_for_a_plain_server(tmp_path: Path) -> None:
    program = """
        import asyncio, sys
        from aiordma.negotiation import peers
        peers.is_address_of_this_host = lambda _address: False
        async def main():
            reader, writer = await asyncio.open_connection(sys.argv[1], int(sys.argv[2]))
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
        asyncio.run(main())
        print([name for name in ("aiordma.links.engine", "aiordma.compat.connection") if name in sys.modules])
    """
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    server = Plain()
    try:
        command = [sys.executable, "-m", "aiordma", "run", str(script), HOST, str(server.port)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ}
        )
    finally:
        server.close()
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert server.questions() == 1


def a_minute_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clocks of both memories, that of questions and that of negotiations."""
    later, clock = 61, time.monotonic
    now = time.time() + later
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(peer_cache, "time", SimpleNamespace(monotonic=lambda: clock() + later))


def as_another_process() -> None:
    aiordma.uninstall()
    peer_cache.forget()
    aiordma.install()


@pytest.mark.parametrize("who", ["the same process", "another process"])
@pytest.mark.parametrize("by", ["a question", "a negotiation"])
def test_a_rolling_restart_with_one_late_answer(
    run: Any, by: str, who: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers share a port, as they replace each other. The first connection comes while the only one
    that listens does not run yet: nobody takes the server for a plain one for longer than a minute."""
    its_time_is_short(monkeypatch)
    monkeypatch.setattr(peer_cache, "is_address_of_this_host", lambda _address: False)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    def worker(port: int = 0) -> socket.socket:
        return socket.create_server((HOST, port), reuse_port=True)

    async def main() -> None:
        if by == "a negotiation":
            # Then aiordma is loaded, and no question asked.
            async with await aiordma.start_server(echo, HOST, 0, config=CONFIG) as other:
                sockets: Any = getattr(other, "sockets")  # noqa: B009  # typeshed's base class has none
                assert await say(sockets[0].getsockname()[1]) == "rdma"
        first = worker()
        port = first.getsockname()[1]
        late = asyncio.ensure_future(say(port))
        while not reasons(port) and not peer_cache.is_known((HOST, port, False)):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        old = await aiordma.start_server(echo, sock=first, config=CONFIG)
        assert await late in (None, "tcp")
        async with await aiordma.start_server(echo, sock=worker(port), config=CONFIG):
            old.close()
            await old.wait_closed()
            if who == "another process":
                as_another_process()
            else:
                assert await say(port) in (None, "tcp")
                a_minute_later(monkeypatch)
            assert await say(port) == "rdma"
        assert not await asyncio.to_thread(cache.exists)

    run(main())
