"""An event loop that is blocked, while a kernel's SMC-R asks on the link and sends.

The peer has a thread and a loop of its own, and goes on when it has its answers. So the loop is blocked until
then, however long that takes.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma import wake
from aiordma.links import engine as links_engine
from aiordma.links.smcr.group import KernelGroup
from aiordma.proto import llc
from tests.health import until
from tests.kernel_option import options
from tests.kernel_peer import CONFIG, Elsewhere

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.streams.stream import RdmaStream
    from tests.vm.smc.peer import Link

__all__ = ["options"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("options")]

#: More requests, and more cursors, than there are receives for (64).
ROUNDS, REQUESTS, SENDS = 20, 5, 5


@pytest.fixture
def elsewhere(blockbuster: Any) -> Iterator[Elsewhere]:
    for function in blockbuster.functions.values():
        function.can_block_in("tests/kernel_peer.py", "wait")
    made = Elsewhere(CONFIG)
    yield made
    made.close()


class Asking:
    """A peer that sends, and asks for what Linux asks for, while its other end does nothing."""

    def __init__(self, stream: RdmaStream, link: Link) -> None:
        self.stream, self.link = stream, link
        self.answers: list[bytes] = []
        self.sent = b""

    async def run(self) -> None:
        with self._listening():
            for number in range(ROUNDS):
                await self._round(number)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        before = self.link.on_llc
        self.link.on_llc = self.answers.append  # type: ignore[method-assign,assignment]
        yield
        self.link.on_llc = before  # type: ignore[method-assign]

    async def _round(self, number: int) -> None:
        expected = len(self.answers) + REQUESTS
        for sending in range(SENDS):
            await self._send(bytes([number, sending]) * 50)
        key = llc.RToken(link_num=1, rkey=number + 1, addr=4096 * number)
        for request in (
            llc.TestLink(user_data=number.to_bytes(16, "big")),
            llc.ConfirmRKey(tokens=(key,)),
            llc.TestLink(user_data=bytes(16)),
            llc.DeleteRKey(rkeys=(number + 1,)) if number % 2 else llc.TestLink(user_data=bytes(16)),
            llc.AddLink(gid=bytes(16), mac=bytes(6), qpn=9, link_num=2, mtu=3, psn=7),
        ):
            self.link.pair.queue_llc(llc.in_version_2(request.encode()))
        await until(lambda: len(self.answers) == expected, lambda: (number, self.answers))

    async def _send(self, data: bytes) -> None:
        self.sent += data
        await self.stream.send(data)
        await until(lambda: self.link.all_arrived)


async def check(asking: Asking, ours: RdmaStream) -> None:
    """Nothing is lost."""
    assert await ours.receive_exactly(len(asking.sent)) == asking.sent
    check_answers(asking)
    expected = {(number + 1, 4096 * number) for number in range(0, ROUNDS, 2)}
    groups = kernel_groups()
    await until(lambda: {key for group in groups for key in keys(group) if key[0] <= ROUNDS} == expected)


def check_answers(asking: Asking) -> None:
    """Each request has one, in order."""
    assert all(answer[3] & 0x80 for answer in asking.answers)
    tests = [answer for answer in asking.answers if answer[0] == 0x27 and any(answer[4:20])]
    assert [int.from_bytes(answer[4:20], "big") for answer in tests] == [*range(1, ROUNDS)]
    assert {answer[3] for answer in asking.answers if answer[0] == 0x22} == {0xC0}


def keys(group: KernelGroup) -> frozenset[tuple[int, int]]:
    assert group.agreed is not None
    return group.agreed.link.keys


def kernel_groups() -> list[KernelGroup]:
    engine = links_engine.running()
    assert engine is not None
    return [group for group in engine.all_groups if isinstance(group, KernelGroup)]


async def connected(elsewhere: Elsewhere, role: str) -> tuple[RdmaStream, RdmaStream]:
    """A stream of this loop, and the peer's end of it."""
    kernel = elsewhere.kernel
    if role == "client":
        accepting = elsewhere.begin(kernel.accept())
        ours = await aiordma.connect(*kernel.address, config=CONFIG)
        await until(accepting.done)
        return ours, accepting.result()[0]
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        theirs, _ = await elsewhere.run(kernel.connect(listener.port))
        return await listener.accept(), theirs


@pytest.mark.parametrize("role", ["client", "server"])
async def test_a_blocked_loop_loses_nothing(elsewhere: Elsewhere, role: str) -> None:
    ours, theirs = await connected(elsewhere, role)
    asking = Asking(theirs, elsewhere.kernel.peer.links[0])
    elsewhere.wait(asking.run())
    await check(asking, ours)
    await ours.send(b"and back")
    assert await elsewhere.run(theirs.receive()) == b"and back"
    ours.abort()


@pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id="asyncio")])
async def test_a_callback_that_blocks_loses_nothing(elsewhere: Elsewhere) -> None:
    """It may be called while a batch of completions is dispatched, of which the rest waits."""

    class Blocks(asyncio.Protocol):
        got = b""
        asking: Asking | None = None

        def data_received(self, data: bytes) -> None:
            if self.asking is None:
                self.asking = Asking(theirs, elsewhere.kernel.peer.links[0])
                elsewhere.wait(self.asking.run())
            self.got += data

    kernel = elsewhere.kernel
    accepting = elsewhere.begin(kernel.accept())
    protocol = Blocks()
    transport, _ = await aiordma.create_connection(lambda: protocol, *kernel.address, config=CONFIG)
    await until(accepting.done)
    theirs, _ = accepting.result()
    await elsewhere.run(theirs.send(b"begin"))
    await until(lambda: protocol.asking is not None)
    asking = protocol.asking
    assert asking is not None
    await until(lambda: len(protocol.got) == 5 + len(asking.sent))
    assert protocol.got == b"begin" + asking.sent
    check_answers(asking)
    transport.abort()


async def _served(asking: Asking, stream: aiordma.RdmaStream, expected: bytes) -> None:
    """A kernel's link, and then a stream of aiordma's, by the same blocked loop."""
    await asking.run()
    assert await stream.receive_exactly(len(expected)) == expected


async def test_a_stream_to_another_peer_goes_on_beside_it(elsewhere: Elsewhere) -> None:
    """Two threads serve one blocked loop: one answers, the other one posts what was put off.

    With the option, the other peer is met by SMC-R as well.
    """
    ours, theirs = await connected(elsewhere, "client")
    listener = await elsewhere.run(_listening())
    accepting = elsewhere.begin(listener.accept())
    stream = await aiordma.connect("127.0.0.1", listener.port, mode="rdma", config=CONFIG)
    await until(accepting.done)
    other = accepting.result()
    asking = Asking(theirs, elsewhere.kernel.peer.links[0])
    pieces = [bytes([number]) * 50 for number in range(40)]
    for piece in pieces:
        await stream.send(piece)
    elsewhere.wait(_served(asking, other, b"".join(pieces)))
    await check(asking, ours)
    await elsewhere.run(other.send(b"and back"))
    assert await stream.receive() == b"and back"
    await elsewhere.run(other.aclose())
    await elsewhere.run(listener.aclose())
    await stream.aclose()
    ours.abort()


async def _listening() -> aiordma.RdmaListener:
    return await aiordma.listen("127.0.0.1", config=CONFIG)


async def test_a_loop_that_does_not_block_answers_by_itself(elsewhere: Elsewhere) -> None:
    ours, theirs = await connected(elsewhere, "client")
    asking = Asking(theirs, elsewhere.kernel.peer.links[0])
    await elsewhere.run(asking.run())
    await check(asking, ours)
    ours.abort()


async def test_an_answer_that_came_while_the_loop_was_blocked_counts(elsewhere: Elsewhere) -> None:
    """This end's own questions, too: it looks at what has come before it looks at the time."""
    ours, theirs = await connected(elsewhere, "client")
    (group,) = kernel_groups()
    assert group.agreed is not None
    machine, peer = group.agreed.link, elsewhere.kernel.peer.links[0]
    group.link.look(wake.current().now())  # it has heard what came until now
    deadline = machine.next_deadline()
    assert deadline is not None
    group.link.look(deadline)  # asks
    asked_until = machine.next_deadline()
    assert asked_until is not None
    assert asked_until > deadline
    elsewhere.wait(_heard(peer, 7))
    group.link.look(asked_until + 1)  # the loop comes late
    await elsewhere.run(theirs.send(b"still here"))
    assert await ours.receive() == b"still here"
    ours.abort()


async def _heard(link: Link, kind: int) -> None:
    await until(lambda: kind in link.kinds)
    await until(lambda: link.all_arrived)


async def test_the_thread_lasts_as_long_as_such_links(elsewhere: Elsewhere) -> None:
    ours, _ = await connected(elsewhere, "client")
    (group,) = kernel_groups()
    absence = group._kernels.absence
    assert absence._pairs == {group.link.queue_pair}
    ours.abort()
    group.close()
    assert absence._pairs == set()
    ours, theirs = await connected(elsewhere, "client")
    elsewhere.wait(Asking(theirs, elsewhere.kernel.peer.links[-1]).run())
    ours.abort()
