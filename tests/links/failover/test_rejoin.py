"""Back to RDMA, from the exact byte, over the same TCP connection; and off again, and back."""

from __future__ import annotations

import contextlib
from random import Random
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

import aiordma
from aiordma.config import Config
from aiordma.errors import Code, NegotiationError
from aiordma.links.failover.leave import switch_back
from aiordma.links.failover.rejoin import Rejoin
from tests.health import ROUNDS, nothing_left, until
from tests.processes import PATIENCE
from tests.streams.pairs import negotiated_pair, rdma_pair, tls_contexts

from .breaking import take_off
from .traffic import both_ways

if TYPE_CHECKING:
    from aiordma.links.contact import ServerContact
    from aiordma.links.engine import Engine

pytestmark = pytest.mark.anyio


async def taken_off(engine: Engine, way: str = "switch one") -> tuple[aiordma.RdmaStream, aiordma.RdmaStream]:
    one, other = await rdma_pair()
    take_off(engine, way)
    while "rdma" in (one.path, other.path):
        await anyio.lowlevel.checkpoint()
    return one, other


async def finished(*streams: aiordma.RdmaStream) -> None:
    for stream in streams:
        await stream.aclose()


async def test_back_on_the_link_or_on_a_new_one() -> None:
    for way in ("switch one", "link"):
        async with nothing_left() as engine:
            one, other = await taken_off(engine, way)
            await one.send(b"on TCP, ")
            await switch_back(one._pipe)  # type: ignore[arg-type]
            assert one.path == "rdma"
            assert one.fallback_reason is None
            await one.send(b"on RDMA")
            assert await other.receive() == b"on TCP, "
            assert await other.receive() == b"on RDMA"
            assert other.path == "rdma"
            await other.send(b"answer")
            assert await one.receive() == b"answer"
            await one.send_eof()
            with pytest.raises(anyio.EndOfStream):
                await other.receive()
            await finished(one, other)


async def test_both_ends_ask_at_once() -> None:
    async with nothing_left() as engine:
        one, other = await taken_off(engine)
        async with anyio.create_task_group() as tasks:
            for stream in (one, other):
                tasks.start_soon(switch_back, stream._pipe)  # type: ignore[arg-type]
        while "tcp" in (one.path, other.path):
            await anyio.lowlevel.checkpoint()
        await one.send(b"x")
        assert await other.receive() == b"x"
        await finished(one, other)


@pytest.mark.parametrize("way", ["link", "switch one"])
async def test_there_and_back_under_traffic(way: str) -> None:
    """Several times, with bytes both ways, from either end."""
    random = Random()
    async with nothing_left() as engine:
        one, other = await rdma_pair()
        async with both_ways(one, other) as (forth, back):
            for _ in range(4 * ROUNDS):
                await forth.moves_on(random)
                await back.moves_on(random)
                take_off(engine, way)
                await until(lambda: one.path == other.path == "tcp")
                await forth.moves_on(random)
                await switch_back(random.choice((one, other))._pipe)  # type: ignore[arg-type]
                await until(lambda: one.path == other.path == "rdma")
        assert one.statistics().bytes_received == back.count
        await finished(one, other)


async def test_a_link_that_breaks_before_both_ends_are_back() -> None:
    """The way back is half done: one end sends by the ring, the other's last bytes on TCP are not read."""
    async with nothing_left() as engine:
        one, other = await taken_off(engine)
        data = Random(1).randbytes(32_000_000)
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.send, data)  # more than TCP takes: the last frame waits behind it
                await until(lambda: one.credit.available == 0)
                tasks.start_soon(ask_quietly, other)
                await until(lambda: any(group.members for group in engine.all_groups))
                take_off(engine, "link")
                await other.send(b"answer")
                got = bytearray()
                while len(got) < len(data):
                    got += await other.receive()
                assert got == data
                assert await one.receive() == b"answer"
        await finished(one, other)


async def test_a_link_that_breaks_while_an_end_waits_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-way back, an end sends on rings that have failed, and reads when it has sent: as echo servers do.

    What frees its TCP connection then is behind bytes that it has not read.
    """
    data, answer = Random(1).randbytes(1_000_000), Random(2).randbytes(8_000_000)
    sent: list[int] = []
    begin_moving = Rejoin._begin_moving

    def after_much(self: Rejoin) -> None:
        assert self._attempt.handshake is not None
        if not self._attempt.handshake.is_client:
            sent.append(one._pipe.try_send(data))
        begin_moving(self)

    monkeypatch.setattr(Rejoin, "_begin_moving", after_much)
    async with nothing_left() as engine:
        one, other = await taken_off(engine)
        with anyio.fail_after(PATIENCE):
            await switch_back(one._pipe)  # type: ignore[arg-type]
            assert sent
            take_off(engine, "link")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(other.send, answer)
                got = bytearray()
                while len(got) < len(answer):
                    got += await one.receive()
            assert got == answer
            got = bytearray()
            while len(got) < sent[0]:
                got += await other.receive()
            assert got == data[: sent[0]]
        await finished(one, other)


async def test_a_stream_that_ends_when_the_answer_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is cancelled runs on to its next checkpoint: what it makes until then is released, too."""
    async with nothing_left() as engine:
        one, other = await taken_off(engine)
        answer = engine.answer
        offered: list[ServerContact] = []

        async def and_end(*arguments: Any) -> ServerContact:
            offered.append(await answer(*arguments))
            attempt = other._pipe.fallback.life.attempt  # type: ignore[attr-defined]
            assert attempt.group is None
            attempt.cancel()
            return offered[0]

        monkeypatch.setattr(engine, "answer", and_end)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_quietly, one)
            await until(lambda: bool(offered))
            await until(lambda: not any(group.members for group in engine.all_groups))
            await finished(one, other)


async def test_a_server_that_gives_up_at_its_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's rings were up, and waited for a word of the server on the link, where it has none."""

    async def give_up(self: Rejoin, confirm: object) -> list[Any]:
        raise NegotiationError(Code.OUT_OF_MEMORY)

    monkeypatch.setattr(Rejoin, "_bring_up_server", give_up)
    async with nothing_left() as engine:
        one, other = await taken_off(engine)
        with pytest.raises(NegotiationError):
            await switch_back(one._pipe)  # type: ignore[arg-type]
        await until(lambda: not any(group.members for group in engine.all_groups))
        await one.send(b"still there")
        assert await other.receive() == b"still there"
        await finished(one, other)


async def test_an_end_that_has_closed_half_way_back_and_loses_both_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin_moving = Rejoin._begin_moving

    def and_lose_tcp(self: Rejoin) -> None:
        begin_moving(self)
        if self._attempt.handshake is not None and not self._attempt.handshake.is_client:
            take_off(self._engine, "qp")  # type: ignore[arg-type]
            self._switch.close()
            self._framed._fail("lost by the test")
            lost.append(self)

    lost: list[Rejoin] = []
    monkeypatch.setattr(Rejoin, "_begin_moving", and_lose_tcp)
    async with nothing_left() as engine:
        one, other = await taken_off(engine)
        await ask_quietly(one)
        await until(lambda: bool(lost))
        await finished(one, other)


async def ask_quietly(stream: aiordma.RdmaStream) -> None:
    with contextlib.suppress(NegotiationError):
        await switch_back(stream._pipe)  # type: ignore[arg-type]


async def test_through_tls() -> None:
    client, server = tls_contexts()
    async with nothing_left() as engine:
        one, other = await negotiated_pair(
            ssl=client, server_ssl=server, rdma_outside_tls=True, config=Config(server_first_wait_ms=0)
        )
        for _ in range(2):
            take_off(engine, "switch one")
            while "rdma" in (one.path, other.path):
                await anyio.lowlevel.checkpoint()
            await one.send(b"in TLS")
            assert await other.receive() == b"in TLS"
            await switch_back(other._pipe)  # type: ignore[arg-type]
            while "tcp" in (one.path, other.path):
                await anyio.lowlevel.checkpoint()
            await one.send(b"in the clear, as was agreed")
            assert await other.receive() == b"in the clear, as was agreed"
        await finished(one, other)


async def test_a_half_closed_stream_stays_where_it_is() -> None:
    async with nothing_left() as engine:
        one, other = await taken_off(engine)
        await one.send_eof()
        with pytest.raises(NegotiationError, match="half-closed"):
            await switch_back(one._pipe)  # type: ignore[arg-type]
        with pytest.raises(NegotiationError):
            await switch_back(other._pipe)  # type: ignore[arg-type]
        await other.send(b"still there")
        assert await one.receive() == b"still there"
        await finished(other, one)


async def test_an_end_that_finishes_or_closes_meanwhile() -> None:
    for what in ("send_eof", "aclose"):
        for who in (0, 1):
            async with nothing_left() as engine:
                pair = await taken_off(engine)
                with anyio.fail_after(20):
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(ask_quietly, pair[0])
                        await anyio.lowlevel.checkpoint()
                        await anyio.lowlevel.checkpoint()
                        await pair[who].send(b"last")
                        await getattr(pair[who], what)()
                        got = await pair[1 - who].receive()
                        with pytest.raises(anyio.EndOfStream):
                            got += await pair[1 - who].receive()
                        assert got == b"last"
                await finished(*pair)
