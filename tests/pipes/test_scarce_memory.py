"""A process that finds no memory amid a send: nothing goes out twice, nothing is left out."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma import faults
from aiordma.config import Config
from aiordma.errors import LinkError
from aiordma.links import engine as engines
from aiordma.pipes._ring_records import RingDatagrams
from tests.address_space import nothing_large
from tests.health import until
from tests.processes import PATIENCE
from tests.streams.pairs import rdma_pair
from tests.world import DEVICE

from .link_pairs import connect
from .test_ring import receive

if TYPE_CHECKING:
    from collections.abc import Callable

    from .link_pairs import Open

pytestmark = pytest.mark.anyio

RING = 16 << 20
#: Everything passes the filter, so that streams keep what they send until it has completed.
PASSES = "delay op=nop ms=1 peer=nobody"


@pytest.mark.skipif(DEVICE != "soft", reason="other devices read from registered memory, and nothing is kept")
async def test_bytes_that_could_not_be_kept_are_sent_once(open_engine: Open) -> None:
    data = random.Random(1).randbytes(RING)
    with faults.injected(PASSES):
        async with open_engine(ring_bytes=RING) as engine:
            a, b = await connect(engine)
            with nothing_large():
                sent = a.try_send(data)
            assert sent == len(data)
            assert not a.ring.can_leave
            assert await receive(b, len(data)) == data
            # When all of it has completed, the stream is whole.
            link = a.ring.owner._link
            assert link.queue_pair.probe(*link.probe_target)
            await until(lambda: a.ring.can_leave)


@pytest.mark.skipif(DEVICE != "soft", reason="other devices read from registered memory, and nothing is kept")
async def test_a_stream_that_lacks_them_does_not_leave_rdma(open_engine: Open) -> None:
    data = random.Random(2).randbytes(RING)
    with faults.injected(PASSES):
        async with open_engine(ring_bytes=RING) as engine:
            a, b = await connect(engine)
            with nothing_large():
                sent = a.try_send(data)
            assert sent == len(data)
            assert not a.ring.can_leave
            for group in list(engine.groups.values()):
                group.link.queue_pair.break_link(LinkError("cut"))
            with pytest.raises(anyio.BrokenResourceError):
                a.try_send(b"more")
            b.abort()


async def test_a_datagram_whose_rest_finds_no_memory_ends_the_connection(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part of it is out. What came behind it would be taken for the rest."""
    async with open_engine(ring_bytes=RING, fragment_bytes=4096, max_outstanding_wrs=1) as engine:
        monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", 64)
        one, other = (RingDatagrams(pipe) for pipe in await connect(engine))
        message = bytearray(RING // 2)
        with nothing_large(), pytest.raises(MemoryError):
            one.try_send(message)
        with pytest.raises(anyio.BrokenResourceError):
            one.try_send(b"behind")

        def ended() -> bool:
            try:
                assert other.try_receive() is None
            except anyio.BrokenResourceError:
                return True
            return False

        await until(ended)
        one.abort()
        other.abort()


def without_memory(send: Callable[[bytes], int], data: bytes, number: int) -> bool:
    """Send it all, and let that allocation fail which has this number; whether it was taken.

    :param data: so short that its length needs no allocation.
    """
    interpreter: Any = pytest.importorskip("_testcapi", reason="this Python comes without its own tests")
    interpreter.set_nomemory(number, number + 1)
    try:
        sent = send(data)
    except MemoryError:
        return False
    finally:
        interpreter.remove_mem_hooks()
    assert sent == len(data)
    return True


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("inline", [64, 1 << 16])
async def test_bytes_are_out_once_if_they_were_taken(
    inline: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is told that there is no memory sends them again: then nothing is out."""
    engine = await engines.current(Config(device=DEVICE, ring_bytes=16384))
    monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", inline)
    one, other = await rdma_pair()
    data = [bytes([65 + index]) * 200 for index in range(4)]
    async with one, other:
        with anyio.fail_after(PATIENCE):
            for piece in data[:2]:
                await one.send(piece)
            if not without_memory(one.send_nowait, data[2], number):
                await one.send(data[2])
            await one.send(data[3])
            assert await other.receive_exactly(800) == b"".join(data)
            await one.send_eof()
            with pytest.raises(anyio.EndOfStream):
                await other.receive()
