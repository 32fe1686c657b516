"""One end whose link has failed, and a TCP connection on whose other end the test plays the peer."""

from __future__ import annotations

import dataclasses
import socket
from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma.config import Config
from aiordma.errors import Code, LinkError, RemoteProtocolError
from aiordma.links import engine as engines
from aiordma.proto.failover import MESSAGE_BYTES, Leave, Refuse, decode
from aiordma.proto.frames import data_header, end_frame
from tests.health import until
from tests.pipes.link_pairs import connect
from tests.streams.pairs import tcp_sockets
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma.links.engine import Engine
    from aiordma.pipes._switchable import SwitchablePipe

pytestmark = pytest.mark.anyio

RING = 16384


@dataclasses.dataclass
class Scene:
    """A pipe with a link that breaks; its peer on RDMA; the peer's end of TCP."""

    engine: Engine
    pipe: SwitchablePipe
    peer: SwitchablePipe
    tcp: socket.socket

    def break_link(self, reason: BaseException | None = None) -> None:
        (group,) = [group for group in self.engine.all_groups if group.key[1] == "client"]
        group.link.queue_pair.break_link(reason or LinkError("broken by the test"))

    async def said(self, size: int = MESSAGE_BYTES) -> bytes:
        """The next bytes on TCP."""
        data = b""
        with anyio.fail_after(5):
            while len(data) < size:
                await anyio.wait_readable(self.tcp)
                part = self.tcp.recv(size - len(data))
                if not part:
                    break
                data += part
        return data

    async def left(self) -> Leave:
        message = decode(await self.said())
        assert isinstance(message, Leave)
        assert message.token == self.peer.ring.token
        return message

    def answer(self, **changes: int) -> None:
        """As an honest peer that has read nothing."""
        leave = Leave(token=self.pipe.ring.token, sent=0, placed=0, arrived=0)
        self.tcp.send(leave.changed(**changes).encode())

    async def broken(self) -> BaseException:
        await until(lambda: self.pipe.error is not None)
        with pytest.raises(anyio.BrokenResourceError) as caught:
            self.pipe.try_send(b"x")
        assert self.pipe.path == "rdma"
        assert self.pipe.fallback_reason is None
        cause = caught.value.__cause__
        assert cause is not None
        assert cause is self.pipe.error
        return cause


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async for each in made(Config(device=DEVICE, ring_bytes=RING)):
        yield each


async def made(config: Config) -> AsyncIterator[Scene]:
    engine = await engines.current(config)
    pipe, peer = await connect(engine)
    mine, theirs = tcp_sockets()
    pipe.attach_tcp(mine)
    with theirs:
        yield Scene(engine, pipe, peer, theirs)
    pipe.close()
    peer.close()
    # By whatever way it went: nothing of this end is left, once the other's TCP connection has ended.
    await until(lambda: mine.fileno() == -1)
    await until(lambda: not any(group.members for group in engine.all_groups), engine.statistics)
    engine.close()


async def test_what_is_said_and_sent_again(scene: Scene) -> None:
    assert scene.pipe.try_send(b"0123456789") == 10
    scene.break_link()
    leave = await scene.left()
    # On the software device the WRITE was carried out while it was posted.
    assert leave == Leave(scene.peer.ring.token, 10, 10, 0, 0, Code.LINK_LOST)
    assert scene.pipe.try_send(b"more") == 0
    assert scene.pipe.path == "rdma"
    scene.answer(arrived=10)
    await until(lambda: scene.pipe.path == "tcp")
    assert scene.pipe.try_send(b"more") == 4
    assert await scene.said(8) == data_header(4) + b"more"
    assert scene.pipe.fallback_reason is not None
    assert scene.pipe.fallback_reason.code == Code.LINK_LOST
    assert "broken by the test" in scene.pipe.fallback_reason.text
    assert scene.pipe.statistics().bytes_sent == 14


async def test_writes_that_the_device_did_not_carry_out(scene: Scene) -> None:
    """The QP is in ERROR, and nobody has noticed: what is posted now is kept."""
    assert scene.pipe.try_send(b"placed") == 6
    (group,) = [group for group in scene.engine.all_groups if group.key[1] == "client"]
    group.link.parts.qp.to_error()
    assert scene.pipe.try_send(b"lost!") == 5
    leave = await scene.left()
    assert (leave.sent, leave.placed) == (11, 6)
    scene.answer(arrived=6)
    assert await scene.said(9) == data_header(5) + b"lost!"


async def test_the_ring_comes_first(scene: Scene) -> None:
    scene.peer.try_send(b"in the ring, ")
    await until(lambda: scene.pipe.readable > 0)
    # A WRITE that no cursor has told of: the peer's word counts, within the ring.
    scene.break_link()
    leave = await scene.left()
    assert leave.arrived == 13
    scene.answer(sent=20, placed=13)
    scene.tcp.send(data_header(7) + b"and TCP" + end_frame(closed=False))
    got = b""
    with anyio.fail_after(5):
        while not scene.pipe.at_eof:
            got += scene.pipe.try_receive(5) or b""
            await anyio.lowlevel.checkpoint()
    assert got == b"in the ring, and TCP"
    assert scene.pipe.try_receive(1) == b""


async def test_a_view_outlives_the_crossing(scene: Scene) -> None:
    scene.peer.try_send(b"in the ring")
    await until(lambda: scene.pipe.readable > 0)
    view = scene.pipe.view()
    scene.break_link()
    await scene.left()
    scene.answer(sent=11, placed=11)
    scene.tcp.send(data_header(6) + b"on TCP")
    await until(lambda: scene.pipe.path == "tcp")
    assert bytes(view) == b"in the ring"
    scene.pipe.consume(11)
    await until(lambda: scene.pipe.readable > 0)
    view = scene.pipe.view()
    assert bytes(view) == b"on TCP"
    scene.pipe.consume(6)
    assert scene.pipe.try_receive(1) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arrived": 11}, "cannot have arrived"),
        ({"sent": RING + 1}, "cannot have sent"),
        ({"token": 1}, "another connection"),
        ({"flags": 0x20}, "flags"),
        ({"sent": 4, "placed": 5}, "placed"),
    ],
)
async def test_a_peer_that_lies_is_not_carried_on_with(
    scene: Scene, changes: dict[str, int], words: str
) -> None:
    scene.pipe.try_send(b"0123456789")
    scene.break_link()
    await scene.left()
    scene.answer(**changes)
    error = await scene.broken()
    assert isinstance(error, RemoteProtocolError)
    assert words in str(error)
    with pytest.raises(ConnectionResetError):
        await scene.said()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"A", b"AIOC" + bytes(40)])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_bytes_of_somebody_else(scene: Scene, data: bytes, when: str) -> None:
    if when == "after":
        scene.break_link()
        await scene.left()
    scene.tcp.send(data)
    if data == b"A":  # perhaps the beginning of a message
        scene.tcp.send(b"?")
    error = await scene.broken()
    assert isinstance(error, RemoteProtocolError)
    assert "unexpected bytes" in str(error)


async def test_refused(scene: Scene) -> None:
    scene.break_link()
    await scene.left()
    scene.tcp.send(Refuse(scene.pipe.ring.token, Code.FAILOVER_OFF).encode())
    error = await scene.broken()
    assert isinstance(error, LinkError)
    assert "broken by the test" in str(error)
    assert "switched off" in str(error)


@pytest.mark.parametrize("how", ["end", "reset"])
async def test_the_peer_dies_meanwhile(scene: Scene, how: str) -> None:
    scene.break_link()
    await scene.left()
    if how == "reset":
        scene.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        scene.tcp.close()
    else:
        scene.tcp.shutdown(socket.SHUT_WR)
    error = await scene.broken()
    assert isinstance(error, LinkError)
    assert "broken by the test" in str(error)
    assert ("broke" if how == "reset" else "ended or closed") in str(error)


@pytest.mark.parametrize("how", ["end", "reset"])
async def test_the_peer_dies_afterwards(scene: Scene, how: str) -> None:
    """Without a frame that says so, an end is no end of the stream."""
    scene.break_link()
    await scene.left()
    scene.answer()
    await until(lambda: scene.pipe.path == "tcp")
    if how == "reset":
        scene.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        scene.tcp.close()
    else:
        scene.tcp.send(data_header(3) + b"abc" + data_header(5) + b"de")
        scene.tcp.shutdown(socket.SHUT_WR)
        got = b""
        while got != b"abcde":
            await until(lambda: scene.pipe.readable > 0)
            got += scene.pipe.try_receive(10) or b""
    await until(lambda: scene.pipe.error is not None)
    assert not scene.pipe.at_eof
    with pytest.raises(anyio.BrokenResourceError):
        scene.pipe.try_receive(1)
    with pytest.raises(anyio.BrokenResourceError):
        scene.pipe.try_send(b"x")


async def test_garbage_afterwards(scene: Scene) -> None:
    scene.break_link()
    await scene.left()
    scene.answer()
    scene.tcp.send(b"\x09garbage")
    await until(lambda: scene.pipe.error is not None)
    assert isinstance(scene.pipe.error, RemoteProtocolError)


async def test_a_broken_rule_is_no_reason_to_go_on(scene: Scene) -> None:
    scene.break_link(RemoteProtocolError("it lied"))
    assert str(await scene.broken()) == "it lied"
    scene.answer()
    assert decode(await scene.said()) == Refuse(scene.peer.ring.token, Code.FAILOVER_REFUSED)


@pytest.mark.parametrize("what", ["eof before", "eof", "close", "eof, then close"])
async def test_this_end_finishes(scene: Scene, what: str) -> None:
    scene.pipe.try_send(b"rest")
    if what == "eof before":
        scene.pipe.send_eof()
    scene.break_link()
    leave = await scene.left()
    assert leave.flags == (0x80 if what == "eof before" else 0)
    if "eof" in what:
        scene.pipe.send_eof()
    if "close" in what:
        scene.pipe.close()
    with pytest.raises(anyio.ClosedResourceError):
        scene.pipe.try_send(b"x")
    scene.answer(arrived=2)
    if "close" not in what:
        assert await scene.said(5) == end_frame(closed=False)
    if "close" in what:
        assert await scene.said(5) == end_frame(closed=True)
        scene.tcp.send(data_header(3) + b"???" + end_frame(closed=False))
        assert await scene.said() == b""
    else:
        scene.tcp.send(data_header(2) + b"ok")
        await until(lambda: scene.pipe.readable == 2)


@pytest.mark.parametrize("closed", [False, True])
async def test_the_peer_finishes(scene: Scene, closed: bool) -> None:
    scene.break_link()
    await scene.left()
    scene.answer()
    scene.tcp.send(data_header(4) + b"last" + end_frame(closed=closed))
    await until(lambda: scene.pipe.readable == 4)
    assert scene.pipe.try_receive(9) == b"last"
    assert scene.pipe.try_receive(9) == b""
    assert scene.pipe.at_eof
    if closed:
        with pytest.raises(anyio.BrokenResourceError) as caught:
            scene.pipe.try_send(b"x")
        assert "the peer has closed" in str(caught.value.__cause__)
        assert await scene.said(5) == end_frame(closed=False)
    else:
        assert scene.pipe.try_send(b"x") == 1


async def test_abort_meanwhile(scene: Scene) -> None:
    scene.break_link()
    await scene.left()
    scene.pipe.abort()
    with pytest.raises(ConnectionResetError):
        await scene.said()


async def test_abort_afterwards(scene: Scene) -> None:
    scene.break_link()
    await scene.left()
    scene.answer()
    await until(lambda: scene.pipe.path == "tcp")
    scene.pipe.abort()
    with pytest.raises(ConnectionResetError):
        await scene.said()


async def test_silence() -> None:
    async for scene in made(
        Config(device=DEVICE, ring_bytes=RING, failover_timeout_ms=20, stopped_peer_ms=0)
    ):
        scene.break_link()
        await scene.left()
        error = await scene.broken()
        assert isinstance(error, LinkError)
        assert "the peer's process has not run" in str(error)


async def test_switched_off_here() -> None:
    async for scene in made(Config(device=DEVICE, ring_bytes=RING, failover_timeout_ms=0)):
        scene.answer()
        message = decode(await scene.said())
        assert message == Refuse(scene.peer.ring.token, Code.FAILOVER_OFF)
        assert "switched off" in str(await scene.broken())


async def test_switched_off_at_this_end_when_its_link_breaks() -> None:
    async for scene in made(Config(device=DEVICE, ring_bytes=RING, failover_timeout_ms=0)):
        scene.break_link()
        assert str(await scene.broken()).endswith("broken by the test")
        assert not scene.pipe.leave(Code.SWITCHED)


async def test_a_link_that_fails_after_the_request_to_leave(scene: Scene) -> None:
    """The peer is told: what was posted may land until its end of the link has failed, too."""
    (group,) = [group for group in scene.engine.all_groups if group.key[1] == "client"]
    group.link.parts.qp.to_error()
    assert scene.pipe.leave(Code.SWITCHED)
    assert (await scene.left()).code == Code.LINK_LOST


async def test_ends_that_do_not_agree_do_not_go_on_by_rings(scene: Scene) -> None:
    """The peer has heard where this end's rings stand, and may have freed its own.

    A peer that sends no more was no reason to give the stream up when its TCP connection ended.
    """
    scene.peer.send_eof()
    assert scene.pipe.leave(Code.SWITCHED)
    await scene.left()
    scene.tcp.close()
    assert isinstance(await scene.broken(), LinkError)
    assert scene.pipe.try_receive(1) == b""


async def test_what_an_end_could_not_say_is_said_when_it_stays(scene: Scene) -> None:
    """The peer waits for it to free its ring."""
    scene.peer.abort()
    assert scene.pipe.leave(Code.SWITCHED)  # the last message on the link: the abort has not been heard yet
    await scene.left()
    scene.pipe.close()
    scene.tcp.close()
    await until(lambda: scene.pipe.ring.is_finished)
    await until(lambda: scene.peer.ring.is_finished)


async def test_an_abort_after_a_close_that_waits_for_the_peer(scene: Scene) -> None:
    assert scene.pipe.leave(Code.SWITCHED)
    await scene.left()
    scene.pipe.close()
    scene.pipe.abort()
    with pytest.raises(ConnectionResetError):
        await scene.said()
    await until(lambda: scene.peer.error is not None)
    scene.peer.close()
    await until(lambda: scene.pipe.ring.is_finished and scene.peer.ring.is_finished)
