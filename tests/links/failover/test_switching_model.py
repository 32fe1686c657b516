"""Both ends of a stream send, receive, leave RDMA, rejoin it and finish in random order: no byte is lost or
repeated, and no callback is missed.

The ends are switchable pipes on the software device, with a TCP connection between them, in one event loop.
A program of operations runs first, with turns of the loop in between. Then both ends send and receive what
is left, and look again only when a callback says so: a missed one is a test that does not end.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aiordma.config import Config
from aiordma.errors import Code, LinkError, NegotiationError
from aiordma.links import engine as engines
from tests.health import until
from tests.pipes.link_pairs import connect
from tests.processes import FULL_PATIENCE
from tests.streams.pairs import tcp_sockets
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiordma.links.engine import Engine
    from aiordma.pipes._switchable import SwitchablePipe

RING = 16384
#: Sent behind the program, each way: more than a ring, so that senders have to wait.
REST = 3 * RING

PATTERN = bytes(range(251)) * (2 * RING // 251 + 2)


def part(start: int, size: int) -> bytes:
    """Bytes ``start`` to ``start + size`` of an endless stream in which no ring's length repeats."""
    return PATTERN[start % 251 : start % 251 + size]


class End:
    """One end, and what it has sent and received."""

    def __init__(self, pipe: SwitchablePipe) -> None:
        self.pipe = pipe
        self.sent = self.received = 0
        self.finished = self.closed = False
        self.readable, self.writable = asyncio.Event(), asyncio.Event()
        pipe.on_readable, pipe.on_writable = self.readable.set, self.writable.set

    def send(self, size: int) -> int:
        count = self.pipe.try_send(part(self.sent, size))
        self.sent += count
        return count

    def take(self, data: bytes | memoryview) -> None:
        assert data == part(self.received, len(data))
        self.received += len(data)

    def receive(self, size: int, how: str) -> bool:
        """Whether something came; False also at the end."""
        pipe = self.pipe
        if how == "view":
            with pipe.view() as view:
                count = min(size, len(view))
                self.take(view[:count])
            pipe.consume(count)
            return count > 0
        if how == "into":
            buffer = bytearray(size)
            count = pipe.try_receive_into(buffer)
            if count > 0:
                self.take(bytes(buffer[:count]))
            return count > 0
        data = pipe.poll_receive(size) if how == "poll" else pipe.try_receive(size)
        self.take(data or b"")
        return bool(data)

    async def send_rest(self, until: int) -> None:
        while self.sent < until and not self.finished:
            self.writable.clear()
            if not self.send(min(RING, until - self.sent)):
                await self.writable.wait()

    async def receive_all(self) -> None:
        """Up to the end of the stream."""
        while True:
            self.readable.clear()
            data = self.pipe.try_receive(RING)
            if data == b"":
                return
            if data is None:
                await self.readable.wait()
            else:
                self.take(data)


WHO = st.sampled_from([0, 1])
SIZES = st.sampled_from([1, 7, 1000, RING - 1, 20_000])
OPERATIONS = st.one_of(
    st.tuples(st.just("send"), WHO, SIZES),
    st.tuples(st.just("receive"), WHO, SIZES, st.sampled_from(["bytes", "view", "into", "poll"])),
    st.tuples(st.just("turns"), st.integers(1, 8)),
    st.tuples(st.just("turns"), st.just(60)),
    st.tuples(st.just("leave"), WHO),
    st.tuples(st.just("break")),
    st.tuples(st.just("rejoin"), WHO),
    st.tuples(st.just("eof"), WHO),
    st.tuples(st.just("close"), WHO),
)


async def step(engine: Engine, ends: tuple[End, End], operation: tuple[object, ...]) -> None:
    name = operation[0]
    if name == "turns":
        for _ in range(operation[1]):  # type: ignore[call-overload]
            await asyncio.sleep(0)
        return
    if name == "break":
        for group in [group for group in engine.all_groups if group.active and group.members]:
            group.link.queue_pair.break_link(LinkError("broken by the test"))
        return
    which = int(str(operation[1]))
    end, other = ends[which], ends[1 - which]
    if end.closed:
        return
    if name == "send":
        if not end.finished:
            # An end that has closed takes nothing; what was sent before that is not lost.
            with contextlib.suppress(anyio.BrokenResourceError) if other.closed else contextlib.nullcontext():
                end.send(operation[2])  # type: ignore[arg-type]
    elif name == "receive":
        end.receive(operation[2], operation[3])  # type: ignore[arg-type]
    elif name == "leave":
        end.pipe.leave(Code.SWITCHED, "asked for by the test")
    elif name == "rejoin":
        with contextlib.suppress(NegotiationError):
            end.pipe.rejoin()
    elif name == "eof":
        end.pipe.send_eof()
        end.finished = True
    else:
        end.pipe.close()
        end.finished = end.closed = True


async def finish(ends: tuple[End, End]) -> None:
    """Send the rest, unless the other end has closed; then the end of the stream, and receive it."""
    async with asyncio.TaskGroup() as tasks:
        for end, other in (ends, ends[::-1]):
            tasks.create_task(finish_sending(end, other))
            if not end.closed:
                tasks.create_task(end.receive_all())


async def finish_sending(end: End, other: End) -> None:
    if not end.finished and not other.closed:
        await end.send_rest(end.sent + REST)
        end.pipe.send_eof()
        end.finished = True
    elif not end.finished:
        end.pipe.send_eof()


async def run(program: list[tuple[object, ...]], inline: int | None, patch: Callable[..., None]) -> None:
    engine = await engines.current(Config(device=DEVICE, ring_bytes=RING))
    if inline is not None:
        patch(engine.backend.limits, "max_inline_bytes", inline)
    try:
        pipes = await connect(engine)
        for pipe, sock in zip(pipes, tcp_sockets(), strict=True):
            pipe.attach_tcp(sock)
        one, other = ends = End(pipes[0]), End(pipes[1])
        for operation in program:
            await step(engine, ends, operation)
        async with asyncio.timeout(FULL_PATIENCE):
            await finish(ends)
        for sender, receiver in (ends, ends[::-1]):
            if not receiver.closed:
                assert receiver.received == sender.sent
                assert receiver.pipe.at_eof
                # The byte counts are those of all transports.
                assert receiver.pipe.counters[1] == receiver.pipe.statistics().bytes_received == sender.sent
            assert sender.pipe.counters[0] == sender.sent
        for end in ends:
            end.pipe.close()
        async with asyncio.timeout(FULL_PATIENCE):
            await until(lambda: not any(group.members for group in engine.all_groups))
        if not one.closed and not other.closed:
            assert one.pipe.error is other.pipe.error is None
    finally:
        engine.close()


@pytest.mark.parametrize("inline", [None, 64], ids=["inline", "mirror"])
def test_no_byte_and_no_callback_is_lost(inline: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    @settings(
        max_examples=80,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.lists(OPERATIONS, max_size=40))
    @example([("leave", 0), ("turns", 60), ("rejoin", 1), ("turns", 60)] * 3)
    @example([("send", 0, 7), ("leave", 0), ("leave", 1), ("turns", 60), ("rejoin", 0), ("rejoin", 1)])
    @example([("send", 0, 20_000), ("leave", 1), ("turns", 60), ("rejoin", 0), ("turns", 60), ("break",)])
    @example([("send", 1, 7), ("break",), ("close", 1)])
    def check(program: list[tuple[object, ...]]) -> None:
        with monkeypatch.context() as patched:
            asyncio.run(run(program, inline, patched.setattr))

    check()
