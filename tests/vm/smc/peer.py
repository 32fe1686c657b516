"""aiordma's rings and streams on a link to another SMC-R, made by the state machines of ``proto/smcr.py``.

What is here beside them is what ``links`` has to be for such peers: queue pair, memory, timers.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from typing import TYPE_CHECKING, Any

from aiordma.datapath._smcr import SmcrQueuePair
from aiordma.pipes._ring import RingPipe
from aiordma.pipes._switchable import SwitchablePipe
from aiordma.proto.clc import Accept, Confirm
from aiordma.proto.events import Confirmed, Failed, PlainPeer, Send, UseRdma, UseTcp
from aiordma.proto.handshake import Timeouts
from aiordma.proto.seqack import SeqAckWindow
from aiordma.proto.smcr import (
    MakeReady,
    Port,
    Queue,
    Ring,
    SmcrClient,
    SmcrEvent,
    SmcrGroup,
    SmcrGroups,
    SmcrServer,
)
from aiordma.proto.smcr_link import LinkActive, LinkEnded, LinkTimes, SmcrLink
from aiordma.streams.stream import RdmaStream
from aiordma.verbs.abi import Access, Mtu
from aiordma.verbs.qp import QpAddress, QpPath, QpSize, RcQp
from aiordma.verbs.registrar import DeviceRegistrar

if TYPE_CHECKING:
    from aiordma.links.engine import Engine

RECEIVES, RECEIVE_BYTES, SENDS, WINDOW = 64, 8192, 256, 16
REMOTE = Access.LOCAL_WRITE | Access.REMOTE_WRITE
PATH = QpPath(timeout=15, rnr_retry=7, min_rnr_timer=5, traffic_class=0, access=REMOTE)


class Link:
    """A queue pair of its own protection domain, and the machine that controls it."""

    def __init__(self, peer: Peer) -> None:
        engine, backend = peer.engine, peer.engine.backend
        self.peer, self.loop = peer, asyncio.get_running_loop()
        self.pd = backend.alloc_pd()
        engine.reserve_completions(RECEIVES + SENDS)
        self.qp = RcQp(backend, self.pd, engine.cq, QpSize(send_wr=SENDS, recv_wr=RECEIVES, send_sge=1))
        self.local = engine.pool.arena(
            DeviceRegistrar(backend, self.pd, remote=False), first_slab_bytes=1 << 20
        )
        self.rings = engine.pool.arena(
            DeviceRegistrar(backend, self.pd, remote=True, access=REMOTE), first_slab_bytes=1 << 20
        )
        self.slots = self.local.allocate(RECEIVES * RECEIVE_BYTES + SENDS * 64)
        self.qp.to_init(PATH)
        self.window = SeqAckWindow(WINDOW)
        self.pair = SmcrQueuePair(
            engine.poller,
            self.qp.pointer,
            self.qp.number,
            self.window,
            owner=self,
            keep=self,
            recv_addr=self.slots.address,
            recv_bytes=RECEIVE_BYTES,
            recv_count=RECEIVES,
            recv_lkey=self.slots.lkey,
            message_addr=self.slots.address + RECEIVES * RECEIVE_BYTES,
            message_lkey=self.slots.lkey,
            sq_depth=min(SENDS, self.qp.size.send_wr),
            max_inline=self.qp.size.inline_bytes or 0,
            with_imm=True,
        )
        self.pair.start()
        self.machine: SmcrLink | None = None
        self.group: SmcrGroup | None = None
        self.ended: LinkEnded | BaseException | None = None
        self.active = asyncio.Event()
        #: Kinds of the messages that came.
        self.kinds: list[int] = []
        self.members: list[Member] = []
        self._heard = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def queue(self) -> Queue:
        return Queue(self.qp.number, self.qp.psn, self.qp.number)

    @property
    def all_arrived(self) -> bool:
        """Whether every message that was sent is in a receive of the other end."""
        return self.window.credit() == WINDOW

    def connect(self, answer: Accept | Confirm) -> None:
        mtu = Mtu(min(answer.mtu, int(self.peer.engine.backend.mtu)))
        address = QpAddress(answer.gid, 0, answer.qpn, answer.psn, mtu, 1)
        self.qp.to_rtr(address, PATH)
        self.qp.to_rts(address, PATH)

    def begin(self, group: SmcrGroup) -> None:
        self.group, self.machine = group, group.link
        self.pump()

    def pump(self) -> None:
        """Send what the machine has to say, and be there at its next time."""
        assert self.machine is not None
        while (message := self.machine.next_message()) is not None:
            self.pair.queue_llc(message)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (at := self.machine.next_deadline()) is not None:
            self._timer = self.loop.call_at(at, self.on_time)

    def on_time(self) -> None:
        assert self.machine is not None
        if self._heard != self.pair.messages_received:
            self._heard = self.pair.messages_received
            self.machine.heard(self.loop.time())
        self.take([*self.machine.on_timer(self.loop.time())])

    def take(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, LinkActive):
                self.active.set()
            else:
                self.end(event)
        self.pump()

    def end(self, reason: LinkEnded | BaseException) -> None:
        if self.ended is None:
            self.ended = reason
            if self.group is not None:
                self.peer.groups.forget(self.group)
            self.active.set()
            if not self.pair.failed:
                self.pair.break_link(ConnectionResetError(str(reason)))

    async def close(self) -> None:
        if self.machine is not None and self.ended is None:
            self.machine.close()
            self.pump()
            while self.pair.llc_waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        self.end(ConnectionResetError("closed"))
        if self._timer is not None:
            self._timer.cancel()
        # A completion that comes later would be read from memory that is gone.
        self.pair.detach_from_cq()
        self.qp.close()
        for member in self.members:
            member.release()
        self.slots.free()
        self.local.close()
        self.rings.close()
        self.pd.close()

    # ---- the owner of a queue pair

    def on_llc(self, data: bytes) -> None:
        assert self.machine is not None
        self.kinds.append(data[0] & 15)
        self.take([*self.machine.receive(data, self.loop.time())])

    def on_ack_owed(self) -> None:
        """There is nothing to acknowledge."""

    shows_end = False

    def peer_left_whole(self) -> bool:
        return False

    def peer_left_note(self) -> int:
        """A kernel leaves none."""
        return 0

    def explain(self, reason: BaseException) -> BaseException:
        return reason

    def on_failed(self, reason: BaseException) -> None:
        self.end(reason)


class Member:
    """The rings of one connection (``pipes.contracts.RingOwner``), which stays where it is."""

    def __init__(self, link: Link, ring_bytes: int) -> None:
        self.link, self.done = link, asyncio.Event()
        link.members.append(self)
        self.ring = link.rings.allocate(ring_bytes)
        self.mirror: Any = None
        self._released = False
        self.pipe = RingPipe(
            link.pair,
            rx_addr=self.ring.address,
            rx_size=ring_bytes,
            owner=self,  # type: ignore[arg-type]  # nothing that has to do with TCP: it never leaves
        )
        self.pipe.on_finished = self.finished
        self.connection: Any = None

    @property
    def offered(self) -> Ring:
        return Ring(
            rkey=self.ring.rkey,
            rmb_addr=self.ring.address,
            ring_bytes=self.ring.length,
            token=self.pipe.token,
        )

    def connect(self, answer: Accept | Confirm) -> Any:
        self.mirror = self.link.local.allocate(answer.ring_bytes)
        self.pipe.connect(
            peer_token=answer.token,
            tx_addr=answer.ring_addr,
            tx_rkey=answer.rkey,
            tx_size=answer.ring_bytes,
        )
        self.pipe.use_mirror(self.mirror.address, self.mirror.lkey)
        self.connection = SwitchablePipe(self.pipe)
        return self.connection

    def forget(self) -> None:
        """The negotiation has ended without this ring."""
        self.pipe.forget()
        self.release()

    def finished(self, pipe: object) -> None:
        if self.link.group is not None:
            self.link.group.leave(self.pipe.token)
        self.release()
        self.done.set()

    def release(self) -> None:
        if not self._released:
            self._released = True
            self.ring.free()
            if self.mirror is not None:
                self.mirror.free()

    def fail_over(self, reason: BaseException) -> bool:
        return False

    def quiesced(self) -> None:
        """Never asked for."""

    def cancel_failover(self) -> None:
        """There is none."""

    def ring_turned(self) -> None:
        """Rings do not grow."""


class Fallback(Exception):
    """The connection is TCP: ``socket`` carries it, behind ``rest``."""

    def __init__(self, text: str, sock: socket.socket, rest: bytes = b"") -> None:
        super().__init__(text)
        self.socket, self.rest = sock, rest


def hardware_address(netdev: str) -> bytes:
    with open(f"/sys/class/net/{netdev}/address") as file:
        return bytes.fromhex(file.read().strip().replace(":", ""))


class Peer:
    """One end that speaks SMC-R, with a port of the engine's device."""

    def __init__(self, engine: Engine, netdev: str, eids: tuple[bytes, ...], *, idle: float = 30.0) -> None:
        mac = hardware_address(netdev)
        self.engine, self.groups, self.times = engine, SmcrGroups(), LinkTimes(idle=idle)
        self.port = Port(
            gid=engine.backend.gid.raw,
            mac=mac,
            system_id=secrets.token_bytes(2) + mac,
            mtu=int(engine.backend.mtu),
            eids=eids,
            hostname="aiordma",
        )
        self.links: list[Link] = []

    async def connect(self, sock: socket.socket, ring_bytes: int = 65536) -> tuple[RdmaStream, Member]:
        """Negotiate on a connected socket whose SYN-ACK had the option. :raises Fallback:"""
        loop = asyncio.get_running_loop()
        contact = SmcrClient(self.port, self.groups, Timeouts(), loop.time(), self.times)
        return await _Contact(self, sock, contact, ring_bytes).run(contact.start())

    async def accept(self, sock: socket.socket, ring_bytes: int = 65536) -> tuple[RdmaStream, Member]:
        """Negotiate on an accepted socket whose SYN had the option. :raises Fallback:"""
        contact = SmcrServer(
            self.port, self.groups, Timeouts(), asyncio.get_running_loop().time(), self.times
        )
        return await _Contact(self, sock, contact, ring_bytes).run([])

    async def close(self) -> None:
        for link in self.links:
            await link.close()


class _Contact:
    """What happens to one connection until it is used."""

    def __init__(
        self, peer: Peer, sock: socket.socket, machine: SmcrClient | SmcrServer, ring_bytes: int
    ) -> None:
        self.peer, self.sock, self.machine, self.ring_bytes = peer, sock, machine, ring_bytes
        self.loop = asyncio.get_running_loop()
        self.link: Link | None = None
        self.member: Member | None = None
        self.answer: Accept | Confirm | None = None

    async def run(self, events: list[SmcrEvent]) -> tuple[RdmaStream, Member]:
        try:
            while True:
                while events:
                    event = events.pop(0)
                    if isinstance(event, UseRdma):
                        return self.stream()
                    events += await self.on_event(event)
                events = await self.more()
        except BaseException:
            if self.member is not None and self.member.connection is None:
                self.member.forget()
            raise

    async def more(self) -> list[SmcrEvent]:
        """Wait for the TCP connection, the link and the time; no byte behind the last message is read."""
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(self.readable())]
        machine_is_new = self.link is not None and self.link.machine is not None
        if machine_is_new:
            assert self.link is not None
            tasks.append(asyncio.ensure_future(self.link.active.wait()))
        until = self.machine.next_deadline()
        timeout = None if until is None else max(0.0, until - self.loop.time())
        try:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        now = self.loop.time()
        if self.link is not None and self.link.active.is_set():
            if self.link.ended is None:
                return self.machine.active(now)
            return self.machine.link_ended(1, str(self.link.ended), now)
        try:
            data = self.sock.recv(8, socket.MSG_PEEK)
        except BlockingIOError:
            return self.machine.on_timer(now)
        if not data:
            return self.machine.eof(now)
        if len(data) == 8:
            ahead = self.sock.recv(int.from_bytes(data[5:7]), socket.MSG_PEEK)
            return self.machine.receive(self.sock.recv(len(ahead)), now)
        return self.machine.receive(self.sock.recv(len(data)), now)

    async def readable(self) -> None:
        ready = asyncio.Event()
        self.loop.add_reader(self.sock, ready.set)
        try:
            await ready.wait()
        finally:
            self.loop.remove_reader(self.sock)

    async def on_event(self, event: SmcrEvent) -> list[SmcrEvent]:
        """What follows from it at once."""
        if isinstance(event, Send):
            await self.loop.sock_sendall(self.sock, event.data)
        elif isinstance(event, MakeReady):
            return self.prepare(event)
        elif isinstance(event, Confirmed):
            self.connected(event.confirm)
        elif isinstance(event, UseTcp):
            raise Fallback(f"0x{event.code:08x}", self.sock, event.rest)
        elif isinstance(event, Failed | PlainPeer):
            raise ConnectionAbortedError(event.text)
        return []

    def prepare(self, event: MakeReady) -> list[SmcrEvent]:
        new = event.group is None
        if new:
            link = Link(self.peer)
            self.peer.links.append(link)
        else:
            link = next(link for link in self.peer.links if link.group is event.group)
        self.member = Member(link, self.ring_bytes)
        if isinstance(event.peer, Accept):
            if new:
                link.connect(event.peer)
            self.answer = event.peer
            self.member.connect(event.peer)
        if new:
            self.link = link
        queue = link.queue if new else None
        events = self.machine.ready(self.member.offered, queue, self.loop.time())
        if new and self.machine.group is not None:
            link.begin(self.machine.group)
        return events

    def connected(self, confirm: Confirm) -> None:
        assert self.member is not None
        self.answer = confirm
        if self.link is not None:
            assert isinstance(self.machine, SmcrServer)
            self.link.connect(confirm)
            self.member.connect(confirm)
            self.machine.connected(self.loop.time())
            assert self.machine.group is not None
            self.link.begin(self.machine.group)
        else:
            self.member.connect(confirm)

    def stream(self) -> tuple[RdmaStream, Member]:
        assert self.member is not None
        names = self.sock.getsockname(), self.sock.getpeername()
        return RdmaStream(
            self.member.connection, local_address=names[0], remote_address=names[1]
        ), self.member
