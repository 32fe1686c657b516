"""A link: one RC QP between two event loops' engines, with its window, its receives and its keepalive.

:class:`LinkParts` is what takes time to make (protection domain, QP, registered receive slots); it can be
parked and reused (X-RDMA's QP cache). :class:`Link` is one use of it, from INIT to its failure or end.
:class:`AckTimer` has links send the acknowledgements that no message carried in time.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import anyio

from .. import faults
from ..datapath._qp import QueuePair
from ..errors import LinkError, RemoteProtocolError, VerbsError
from ..observe import events
from ..proto import llc, llcown
from ..proto.keepalive import Keepalive, Verdict
from ..proto.message import SLOT_EXTRA_BYTES
from ..proto.seqack import SeqAckWindow
from ..verbs.abi import QpState
from ..verbs.lifetime import release_all
from ..verbs.qp import QpAddress, QpPath, QpSize, RcQp
from ..verbs.registrar import DeviceRegistrar
from .cm_connect import CmAddress, CmConnection
from .contracts import LinkState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..config import Config
    from ..datapath._faults import LinkFilter
    from ..verbs.events import DeviceEvent
    from ..verbs.memory.arena import Arena, Block
    from ..wake.base import Handle, Waker
    from .contracts import EngineView, LinkKey

logger = logging.getLogger("aiordma.link")

#: Send WRs of a QP. Each may be a WRITE or a message; completions come for every eighth of them.
SEND_QUEUE_DEPTH = 512
_MESSAGE_SLOT_BYTES = 64
#: Of the software device towards what may be another host's address: 0.54 s, so four packets in two seconds.
_UNPROVED_TIMEOUT = 17
#: Seconds between two looks whether the peer's process has opened the way to it, which it is about to.
_REACHING_S = 0.0005
#: READs outstanding on a link at most, whatever the devices allow: later requests wait behind them.
MAX_READS = 8


class LinkParts:
    """Protection domain, QP in RESET, receive and message slots. One protection domain a link group: an rkey
    opens only the memory of its peer."""

    def __init__(self, engine: EngineView) -> None:
        config, backend = engine.config, engine.backend
        self.engine = engine
        self.recv_count, self.recv_bytes, depth = self._sizes(config)
        self.pd = backend.alloc_pd()
        self.local: Arena | None = None
        self._long: Block | None = None
        try:
            depth = min(depth, backend.limits.max_qp_wr)
            self.qp = RcQp(
                backend, self.pd, engine.cq, QpSize(send_wr=depth, recv_wr=self.recv_count, send_sge=1)
            )
            try:
                self.send_depth = min(depth, self.qp.size.send_wr)
                room = self.recv_count * self.recv_bytes + self.send_depth * _MESSAGE_SLOT_BYTES
                self.local = engine.pool.arena(
                    DeviceRegistrar(backend, self.pd, remote=False), first_slab_bytes=room
                )
                self.slots: Block = self.local.allocate(room)
            except BaseException:
                self.qp.close()
                raise
        except BaseException:
            self._close_arena()
            self.pd.close()
            raise

    @staticmethod
    def _sizes(config: Config) -> tuple[int, int, int]:
        """Receives, the size of each in bytes, and send requests."""
        receives = config.window + config.recv_reserve
        return receives, config.small_message_bytes + SLOT_EXTRA_BYTES, SEND_QUEUE_DEPTH

    def _close_arena(self) -> None:
        if self.local is not None:
            self.local.close()

    def long_slots(self) -> tuple[int, int, int]:
        """Address, lkey and number of slots to build long messages in: as many as may be under way. Made for
        the first channel, on devices that do not take such messages inline.
        """
        config = self.engine.config
        if self._long is None:
            assert self.local is not None
            self._long = self.local.allocate(config.window * QueuePair.long_slot_bytes(self.recv_bytes))
        return self._long.address, self._long.lkey, config.window

    @property
    def _blocks(self) -> list[Block]:
        return [self.slots] if self._long is None else [self.slots, self._long]

    @property
    def pool_bytes(self) -> int:
        """What it holds of the engine's pool."""
        return sum(block.length for block in self._blocks)

    def silence(self) -> bool:
        """Back to RESET: posted requests are forgotten, and the QP drops late packets of the old peer.

        False: the device refused, and the QP was destroyed instead; close the parts.
        """
        if self.engine.backend.by_cm:
            self.qp.close()  # rdma_cm binds a QP to one connection for its whole life
            return False
        try:
            self.qp.to_reset()
        except VerbsError as error:
            logger.debug("QP %d is not reusable: %s", self.qp.number, error)
            self.qp.close()
            return False
        return True

    def close(self) -> None:
        """Whatever others have in the protection domain must be closed before."""
        release_all(
            f"link of QP {self.qp.number}",
            self.qp.close,
            *(block.free for block in self._blocks),
            self._close_arena,
            self.pd.close,
        )


class Link:
    """One QP in use.

    :param key: the peer, and our part.
    :param peer: the other end, for log messages.
    :param on_failed: called once with the reason.
    :param in_use: whether connections would break with it.
    :param on_group_message: called with messages about rings; raises RemoteProtocolError.
    :param on_ack_owed: called when the link has received a message that it has not acknowledged; not again
        before :meth:`acknowledge`.
    """

    _PATH: ClassVar[QpPath] = QpPath()

    def __init__(
        self,
        engine: EngineView,
        parts: LinkParts,
        key: LinkKey,
        peer: str,
        *,
        on_failed: Callable[[BaseException], None],
        in_use: Callable[[], bool],
        on_group_message: Callable[[llcown.Ticket | llcown.TicketBack | llcown.RingResize], None],
        on_ack_owed: Callable[[Link], None],
    ) -> None:
        self.engine, self.parts, self.peer = engine, parts, peer
        self.side, self.traffic_class = key.side, key.traffic_class
        self.state = LinkState.SETTING_UP
        self.failure: BaseException | None = None
        #: The peer has announced the end (Delete Link).
        self.orderly = False
        self.peer_qpn = 0
        #: Whether packets may go to a host that is not the peer's, as long as none has come from there.
        self._unproved = False
        self.probe_target = (0, 0)
        #: What connects the queue pair where only rdma_cm can.
        self._cm: CmConnection | None = None
        config = engine.config
        self._keepalive = Keepalive(
            config.keepalive_ms / 1000, config.keepalive_timeout_ms / 1000, engine.waker.now()
        )
        self._on_failed = on_failed
        self._in_use = in_use
        self._on_group_message, self._on_ack_owed = on_group_message, on_ack_owed
        self._confirmed = engine.waker.new_waiter()
        #: The peer's Confirm Link has come.
        self.proved = False
        parts.qp.to_init(self._PATH)
        self.queue_pair = self._new_queue_pair()
        self.filter: LinkFilter | None = None
        faults.watch(self)
        # Before RTR: from then on the peer may send.
        self.queue_pair.start()

    def _new_queue_pair(self) -> QueuePair:
        engine, parts = self.engine, self.parts
        return QueuePair(
            engine.poller,
            parts.qp.pointer,
            parts.qp.number,
            SeqAckWindow(engine.config.window),
            **self._places(),
            with_imm=not engine.backend.is_iwarp,
            astray=parts.qp.astray,
            says_held=parts.qp.says_held,
            wills=parts.qp.wills,
            notes=parts.qp.notes,
            expects=parts.qp.expects,
        )

    def _places(self) -> dict[str, Any]:
        """For the data path: who it belongs to, and where its messages are."""
        parts = self.parts
        return {
            "owner": self,
            "keep": parts,
            "recv_addr": parts.slots.address,
            "recv_bytes": parts.recv_bytes,
            "recv_count": parts.recv_count,
            "recv_lkey": parts.slots.lkey,
            "message_addr": parts.slots.address + parts.recv_count * parts.recv_bytes,
            "message_lkey": parts.slots.lkey,
            "sq_depth": parts.send_depth,
            "max_inline": parts.qp.size.inline_bytes or 0,
        }

    @property
    def address(self) -> QpAddress:
        return self.parts.qp.address

    @property
    def qp_num(self) -> int:
        return self.queue_pair.qp_num

    def queue_llc(self, message: bytes) -> int:
        """Send a link control message, as soon as there is credit; its number, for :meth:`llc_waits`."""
        return self.queue_pair.queue_llc(message)

    def llc_waits(self, number: int) -> bool:
        """Whether that message waits for credit still."""
        return self.queue_pair.llc_waits(number)

    def allocate_local(self, length: int) -> Block:
        """Registered memory without remote access. :raises MemoryLimitError:"""
        assert self.parts.local is not None
        return self.parts.local.allocate(length)

    def prepare_long_messages(self) -> None:
        """Have room to build messages that fill a receive slot."""
        parts = self.parts
        if self.queue_pair.max_inline < parts.recv_bytes:
            self.queue_pair.prepare_long(parts.recv_bytes, *parts.long_slots())
        else:
            self.queue_pair.prepare_long(parts.recv_bytes)

    def bring_up(self, peer: QpAddress, *, proved: bool = True) -> None:
        """INIT to RTR to RTS. :raises VerbsError: the device refuses, for instance because it has no route
        to the peer.

        :param proved: that the address is the peer's. Else nothing but Confirm Link is sent there before an
            answer has come, and that a few times only.
        """
        self.peer_qpn = peer.qp_num
        self._unproved = not proved
        path = replace(self._PATH, traffic_class=self.traffic_class)
        if not proved and self.engine.backend.is_soft:
            # It repeats after each timeout, and four times as long as it was told. Once it has measured the
            # round trip, it repeats after that.
            path = replace(path, timeout=_UNPROVED_TIMEOUT, retry_count=0)
        self.parts.qp.to_rtr(peer, path)
        self.parts.qp.to_rts(peer, path)
        self.queue_pair.max_reads = min(self.parts.qp.max_reads, MAX_READS)

    # ---- the same where only rdma_cm connects queue pairs

    def _new_cm(self) -> CmConnection:
        backend = self.engine.backend
        self._cm = CmConnection(
            self.engine.waker,
            backend.rdma_cm(),
            backend.name,
            self.parts.qp.number,
            min(backend.limits.max_qp_rd_atom, backend.limits.max_qp_init_rd_atom, MAX_READS),
            self.traffic_class,
            self._on_cm_peer,
            self._on_cm_lost,
        )
        return self._cm

    def listen_by_cm(self, host: str) -> CmAddress:
        """Server: listen for the client. :raises NegotiationError: no usable address. :raises VerbsError:"""
        return self._new_cm().listen(host)

    async def bring_up_by_cm(self, peer: QpAddress, server: CmAddress | None) -> None:
        """Connect to ``server``; None at the server, which has listened. Time limits are the caller's.

        :raises VerbsError: there is no connection.
        """
        if server is not None:
            self.peer_qpn = peer.qp_num
            await self._new_cm().connect(server)
        else:
            assert self._cm is not None
            await self._cm.accepted()
            if peer.qp_num != self.peer_qpn:
                raise VerbsError(0, "rdma_accept", f"QP {self.peer_qpn} came, QP {peer.qp_num} was meant")
        self._raise_if_failed()
        limits = self.engine.backend.limits
        self.parts.qp.connected_by_cm(min(peer.rd_atomic, limits.max_qp_init_rd_atom, MAX_READS))
        self.queue_pair.max_reads = self.parts.qp.max_reads

    def _on_cm_peer(self, qp_number: int) -> None:
        # The client may ask to confirm the link before its Confirm has come by TCP.
        self.peer_qpn = qp_number

    def _on_cm_lost(self, reason: str) -> None:
        self.engine.poller.drain()  # the peer's last messages
        if self.state in (LinkState.ACTIVE, LinkState.SETTING_UP):
            self.queue_pair.break_link(LinkError(f"the peer's queue pair is gone ({reason})", self.peer))

    # ---- Confirm Link: the new link proves itself in both directions (RFC 7609, 3.5.2)

    async def ask_to_confirm(self) -> None:
        """Send the request and wait for the peer's answer. Time limits are the caller's."""
        self._send_llc(self._confirm(response=False))
        await self._confirmed.wait()
        self._activate()

    async def wait_for_confirm(self) -> None:
        """Wait for the peer's request (which is answered at once). Time limits are the caller's."""
        await self._confirmed.wait()
        self._activate()
        # Else a program that connects, sends and is killed would take its bytes with it: the request shows
        # only that the peer's process has a way to this one. The device does not tell when there is one.
        while self.failure is None and not self._reaches_the_peer():  # noqa: ASYNC110
            await anyio.sleep(_REACHING_S)

    def _activate(self) -> None:
        if self.proved and self.peer_left_whole():
            return  # a short life: the peer has confirmed, sent all that it had to send, and ended
        self._raise_if_failed()
        self.state = LinkState.ACTIVE

    def _confirm(self, *, response: bool) -> llc.ConfirmLink:
        own = self.address
        return llc.ConfirmLink(
            gid=own.gid,
            qpn=own.qp_num,
            link_uid=own.qp_num,
            response=response,
        )

    def _send_llc(self, message: llc.LlcMessage) -> None:
        if not self.queue_pair.send_llc(message.encode()):
            self.queue_pair.break_link(LinkError("no window left for a link control message", self.peer))

    def _raise_if_failed(self) -> None:
        if self.failure is not None:
            raise self.failure

    # ---- called by QueuePair

    def on_llc(self, data: bytes) -> None:
        try:
            message = llc.decode(data)
        except RemoteProtocolError as error:
            self.queue_pair.break_link(error)
            return
        match message:
            case llc.ConfirmLink():
                if message.qpn != self.peer_qpn or self.state is not LinkState.SETTING_UP:
                    self.queue_pair.break_link(
                        RemoteProtocolError("Confirm Link for a link that is not being set up")
                    )
                    return
                if not message.response:
                    self._send_llc(self._confirm(response=True))
                self.proved = True
                self._confirmed.set()
            case llc.TestLink(response=False):
                self._send_llc(llc.TestLink(user_data=message.user_data, response=True))
            case llc.DeleteLink():
                if not message.response:
                    self.queue_pair.send_llc(
                        llc.DeleteLink(
                            reason=message.reason, all_links=True, orderly=True, response=True
                        ).encode()
                    )
                self.orderly = True
                text = f"the peer closed the link (reason 0x{message.reason:08x})"
                self.queue_pair.break_link(LinkError(text, self.peer))
            case llcown.Ticket() | llcown.TicketBack() | llcown.RingResize():
                try:
                    self._on_group_message(message)
                except RemoteProtocolError as error:
                    self.queue_pair.break_link(error)
            case llc.AnnounceAck():
                pass  # that it came has moved the window
            case _:
                logger.debug("link to %s: %s ignored", self.peer, type(message).__name__)

    def device_event(self, event: DeviceEvent) -> None:
        """The device reports that the QP, its port or the device can no longer be used."""
        if event.is_violation:
            self.failure = RemoteProtocolError(f"the peer broke the rules of RDMA ({event})")
            self.queue_pair.break_link(self.failure)
        else:
            self.queue_pair.break_link(LinkError(str(event), self.peer))

    def explain(self, reason: BaseException) -> BaseException:
        """Why the link fails, as far as the device reports it: a QP that was stopped because the peer broke
        the rules of RDMA looks, from its completions, like one whose peer is gone."""
        self.engine.read_events()
        return self.failure or reason

    def peer_left_whole(self) -> bool:
        """Whether the peer's process has ended, and all that it had accepted was carried out here."""
        return self._left_whole() is True

    def peer_left_note(self) -> int:
        """Behind how many messages of this end that process had read everything."""
        soft = self.engine.backend.soft
        return 0 if soft is None else soft.left_note(self.parts.qp.pointer)

    @property
    def shows_end(self) -> bool:
        """Whether the device of this end reports by itself, and soon, that the peer's process has ended."""
        return self._left_whole() is not False

    def _reaches_the_peer(self) -> bool:
        soft = self.engine.backend.soft
        return soft is None or soft.reached(self.parts.qp.pointer)

    def _left_whole(self) -> bool | None:
        soft = self.engine.backend.soft
        return False if soft is None else soft.left_whole(self.parts.qp.pointer)

    def on_failed(self, reason: BaseException) -> None:
        if self.state in (LinkState.FAILED, LinkState.CLOSED):
            return
        self.failure = reason
        self.state = LinkState.FAILED
        level = logging.WARNING if self._in_use() and not self.engine.closed else logging.DEBUG
        text = reason.reason if isinstance(reason, LinkError) else reason
        logger.log(level, "link to %s lost: %s", self.peer, text)
        events.note("link lost" if level == logging.WARNING else "link ended", f"{self.peer}: {text}")
        self.cut()
        self._confirmed.set()
        self._on_failed(reason)

    # ---- called by the filter

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Handle:
        return self.engine.waker.call_at(self.engine.waker.now() + seconds, callback)

    def cut(self) -> None:
        """Move the QP to ERROR, as if the device had failed it: outstanding requests are flushed."""
        try:
            self.parts.qp.to_error()
        except VerbsError as error:
            logger.debug("QP %d: %s", self.parts.qp.number, error)

    # ---- called by the engine

    def config_changed(self) -> None:
        """The engine's settings are others now."""
        config = self.engine.config
        self._keepalive.set_times(config.keepalive_ms / 1000, config.keepalive_timeout_ms / 1000)

    def look(self, now: float) -> None:
        """Keepalive (X-RDMA: silence, then a zero-byte WRITE that the peer's device answers by itself)."""
        if self.state is not LinkState.ACTIVE:
            return
        match self._judge(now):
            case Verdict.PROBE:
                addr, rkey = self.probe_target
                if self.queue_pair.probe(addr, rkey):
                    self._keepalive.probed(now)
            case Verdict.LOST:
                seconds = self.engine.config.keepalive_timeout_ms / 1000
                self.queue_pair.break_link(
                    LinkError(f"no answer to the keepalive probe within {seconds:g} s", self.peer)
                )
                return

    def _judge(self, now: float) -> Verdict:
        verdict = self._keepalive.look(now, self.queue_pair.last_received)
        if verdict is Verdict.LOST:
            # The loop may be late, and the answer here: uvloop has its timers before its descriptors.
            self.engine.poller.drain()
            if self.state is not LinkState.ACTIVE:
                return Verdict.FINE
            verdict = self._keepalive.look(now, self.queue_pair.last_received)
        return verdict

    def on_ack_owed(self) -> None:
        """Called by QueuePair."""
        self._on_ack_owed(self)

    def acknowledge(self) -> bool:
        """Acknowledge what was received and has not been acknowledged by a message since; called when the
        delay is over. False: not possible now, call again after another delay."""
        if self.state is LinkState.SETTING_UP:
            return False
        if self.state is LinkState.ACTIVE and self.queue_pair.ack_owed:
            # Without credit the peer's own acknowledgement is on its way; what it brings is answered then.
            if not self.queue_pair.send_llc(llc.AnnounceAck().encode()) and not self.queue_pair.failed:
                return False
        self.queue_pair.watch_ack()
        return True

    def suspect(self) -> None:
        """Something else looks wrong: probe now, whatever was heard before."""
        self.look(self.engine.waker.now())
        self._keepalive.suspect()
        self.look(self.engine.waker.now())

    def lost_by_peer(self) -> None:
        """The peer reports that its end has failed, before a send of this end could find out."""
        if self.state is LinkState.ACTIVE:
            self.queue_pair.break_link(LinkError("the peer has lost its end of the link", self.peer))

    # ---- end

    def announce_end(self) -> None:
        """Announce the end to the peer while the QP still sends, so that it need not find out by retries."""
        # A link that is abandoned during its set-up may be up already at the other end.
        if self.state is LinkState.ACTIVE or (
            self.state is LinkState.SETTING_UP
            and self.parts.qp.state == QpState.RTS
            and (self.proved or not self._unproved)
        ):
            reason = llc.DeleteReason.OPERATOR
            self.queue_pair.send_llc(llc.DeleteLink(reason=reason, all_links=True, orderly=True).encode())

    def close(self) -> LinkParts:
        """Stop dispatching; the parts go back to the caller (to be recycled or closed)."""
        if self.state is not LinkState.FAILED:
            self.state = LinkState.CLOSED
        self.queue_pair.detach_from_cq()
        if self._cm is not None:
            self._cm.close()
        return self.parts

    def statistics(self) -> dict[str, Any]:
        qp = self.queue_pair
        return {
            "peer": self.peer,
            "state": self.state.value,
            "qp_num": qp.qp_num,
            "peer_qp_num": self.peer_qpn,
            "messages_sent": qp.messages_sent,
            "messages_received": qp.messages_received,
            "nops_sent": qp.nops_sent,
            "nops_received": qp.nops_received,
            "bytes_written": qp.bytes_written,
            "credit_waits": qp.credit_waits,
            "keepalives": qp.keepalives_done,
        }


class AckTimer:
    """Calls the links of an engine that owe an acknowledgement when the delay is over.

    The timer runs only while the list of such links is not empty. All links that join during one delay are
    called together at its end: no message waits for longer than the delay, and a later one may wait for less.

    :param delay: the delay in seconds, read whenever one begins.
    """

    def __init__(self, waker: Waker, delay: Callable[[], float]) -> None:
        self._waker, self._delay = waker, delay
        self._owing: list[Link] = []
        self._handle: Handle | None = None

    @property
    def running(self) -> bool:
        """Whether it will wake the event loop."""
        return self._handle is not None

    def owe(self, link: Link) -> None:
        """Call ``link.acknowledge()`` when the delay is over, and again as long as that returns False."""
        self._owing.append(link)
        if self._handle is None:
            self._handle = self._waker.call_at(self._waker.now() + self._delay(), self._run)

    def close(self) -> None:
        """Call no link any more."""
        self._owing.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        self._handle = None
        owing, self._owing = self._owing, []
        for link in owing:
            if not link.acknowledge():
                self.owe(link)
