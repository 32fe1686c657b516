"""The engine of one device: everything RDMA of one event loop on it (:mod:`.devices` has those of several).

It owns the device context, the completion queue, the memory pool, the links and their timers. None of it is
shared with another loop, so the data path takes no locks (X-RDMA's run to completion). It ends with its loop.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio

from .. import faults, wake
from .._cq import CompletionPoller
from ..config import Config
from ..errors import Code, NegotiationError, VerbsError
from ..observe import events
from ..observe.trace import recorder
from ..verbs.abi import EventType
from ..verbs.events import AsyncEvents, DeviceEvent
from ..verbs.lifetime import release_all
from ..verbs.memory.budget import MemoryLimitError
from ..verbs.memory.pool import MemoryPool
from ..wake import clock
from ..wake.accepting import PAUSE_S
from .contact import ClientContact, ServerContact
from .contracts import LinkKey
from .devices import Devices
from .first_device import OpenedDevice
from .host import check_reachable
from .link import AckTimer
from .loop_watch import LoopWatch
from .parting import Parting
from .qp_cache import QpCache

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection

    from ..addresses import Address
    from ..pipes._switchable import SwitchablePipe
    from ..proto.clc import Claim, Proposal
    from ..wake.base import Handle, Waker
    from .contracts import DeviceUser, EngineView
    from .group import LinkGroup
    from .link import Link, LinkParts
    from .pregranted import GrantingListener, Grants
    from .smcr.peers import KernelPeers

logger = logging.getLogger("aiordma.link")

_TICK_SECONDS = 1.0
_TRIM_SECONDS = 3.0
#: How often the end of a loop looks whether its connections have ended.
_LINGER_LOOK_SECONDS = 0.0005

#: Where a loop has the engine that it began with, or that took its place. A table here would keep it alive.
ENGINE = "engine"
#: All of them, by ``id()`` of their wakers.
ENGINES: weakref.WeakValueDictionary[int, Engine] = weakref.WeakValueDictionary()


def running() -> Engine | None:
    """The running loop's engine, None while there is none."""
    return wake.current().locals.get(ENGINE)


def ready(waker: Waker) -> Engine | None:
    """The engine for something new in the loop of ``waker``; None while there is none.

    :raises NegotiationError: no device can be used now.
    """
    engine: Engine | None = waker.locals.get(ENGINE)
    return engine if engine is None or not engine.devices.several else engine.best()


class Engine:
    """Use :func:`~.engine.current`. It owns the device."""

    #: What :attr:`past_links` sums up, as in ``LinkStatistics``.
    LINK_COUNTERS = ("bytes_written", "messages_sent", "messages_received", "credit_waits", "keepalives")

    def __init__(self, devices: Devices[Engine], device: OpenedDevice) -> None:
        self.devices = devices
        self.backend, self.cq, self.host_id = device
        self.waker, self.config = waker, config = devices.waker, devices.config
        if config.filter is not None:
            faults.install(config.filter)
        #: Pre-granted rings, of all engines of the loop.
        self.grants: Grants = devices.grants
        self.engine_id = devices.new_engine_id()
        self._id_secret = secrets.token_bytes(32)
        #: Groups that new connections can join; and all that are not closed, also of failed links.
        self.groups: dict[LinkKey, LinkGroup] = {}
        self.all_groups: set[LinkGroup] = set()
        #: Queue pairs beside those of links.
        self.users: set[DeviceUser] = set()
        #: Counters of links that are closed.
        self.past_links: Counter[str] = Counter()
        #: Negotiations that this end began.
        self._contacts: weakref.WeakSet[ClientContact] = weakref.WeakSet()
        self.closed = False
        #: Why nothing new begins here (:meth:`drain`); None: it does.
        self.drained: str | None = None
        #: See :class:`.contact.ContactOwner`.
        self.proposals: dict[tuple[Any, ...], Proposal] = {}
        self._kernel_peers: KernelPeers | None = None
        self._timer: Handle | None = None
        self._trim_at = waker.now() + _TRIM_SECONDS
        self.cache = QpCache(self, config.window + config.recv_reserve + 32)
        self.pool = MemoryPool(
            slab_bytes=config.slab_bytes, limit_bytes=config.memory_limit_bytes, call_soon=waker.call_soon
        )
        self.pool.budget.reclaim = self.cache.close_one
        self.poller = CompletionPoller(
            self.cq.cq_pointer,
            channel=self.cq.channel_pointer,
            get_event=self.backend.symbol("ibv_get_cq_event"),
            ack_events=self.backend.symbol("ibv_ack_cq_events"),
            clock=waker.clock,
            call_soon=waker.call_soon,
            ready=waker.ready,
            busy_poll_us=config.busy_poll_us,
            max_fragments=config.max_outstanding_wrs,
            keep=self.cq,
        )
        self.loop_watch = LoopWatch(waker, self.poller)
        self._ack_timer = AckTimer(waker, lambda: self.config.ack_delay_ms / 1000)
        recorder.install(config)
        recorder.watch(self)
        self._async_events = AsyncEvents(self.backend)
        self._events_rest: Handle | None = None
        self._events_failed = ""  # why, since when they could be read
        waker.watch_fd(self.cq.fd, self.poller.on_readable)
        waker.watch_fd(self._async_events.fd, self.read_events)
        self.poller.second = int(waker.now())
        self.poller.begin()
        waker.at_loop_end(self._end, self._end_now)
        self._tick_soon()

    # ---- called by link groups

    @property
    def several_devices(self) -> bool:
        """Whether the loop may use another device than this one."""
        return self.devices.several

    def take_parts(self) -> LinkParts:
        """Parts for one more link. :raises NegotiationError: too many links."""
        return self.cache.take(len(self.all_groups))

    def return_parts(self, parts: LinkParts, *, reusable: bool) -> None:
        """Take back the parts of a link that is closed."""
        self.cache.put(parts, reusable=reusable)

    def reserve_completions(self, count: int) -> int:
        """Room in the completion queue for a queue pair that is not a link's; pass the result to
        :meth:`return_completions`.

        :raises NegotiationError: not enough room.
        """
        return self.cache.reserve(count, len(self.all_groups))

    def return_completions(self, share: int) -> None:
        """Release that room."""
        self.cache.unreserve(share)

    def add_group(self, group: LinkGroup) -> None:
        """New connections may join this group from now on."""
        self.groups[group.key] = group
        self.all_groups.add(group)

    def unlist_group(self, group: LinkGroup) -> None:
        """New connections may not join this group any more."""
        if self.groups.get(group.key) is group:
            del self.groups[group.key]

    def remove_group(self, group: LinkGroup) -> None:
        """The group is closed."""
        if group in self.all_groups:
            self.all_groups.discard(group)
            counts = group.link.statistics()
            self.past_links.update({name: counts[name] for name in self.LINK_COUNTERS})
        self.unlist_group(group)

    def path_failed(self, peer: str, why: str) -> None:
        """A link to ``peer`` has failed, or did not come up."""
        self.devices.path_failed(self, peer, why)

    def path_works(self, peer: str) -> None:
        """A link to ``peer`` has come up."""
        events.note("link up", f"{peer} on {self.backend.name}")
        self.devices.path_works(self, peer)

    def ack_owed(self, link: Link) -> None:
        """A link has received a message that it has not acknowledged yet."""
        self._ack_timer.owe(link)

    # ---- negotiation

    async def propose(
        self, kind: int = 0, *, peer: str = "", unknown_qpn: int = 0, traffic_class: int | None = None
    ) -> ClientContact:
        """Client: begin a negotiation, on this device or on another that is better for this peer.

        :param kind: of the connection (``Proposal.kind``).
        :param unknown_qpn: in a second attempt, after the server named a link that this end does not know.
        :param traffic_class: of the link; default: as in the engine's settings.
        :raises NegotiationError:
        """
        engine = self._other(lambda: self.devices.best(peer))
        if traffic_class is None:
            traffic_class = self.config.traffic_class
        contact = ClientContact(engine, kind, unknown_qpn, traffic_class, peer)
        engine._contacts.add(contact)
        self.waker.call_soon(engine.cache.prepare)  # the task sends its Proposal before that
        return contact

    def id_towards(self, host: str) -> bytes:
        """What a client is known by to the servers at an address: 16 bytes. No other server learns it, and
        so cannot pass for the client there."""
        return hashlib.blake2b(host.encode(), key=self._id_secret, digest_size=16).digest()

    @property
    def max_links(self) -> int:
        """Links that this end can have with a peer, as the messages count them: 2 means several."""
        return 2 if self.devices.several else 1

    def best(self, besides: EngineView | None = None) -> Engine:
        """Of several devices, the one for something new, another one than ``besides`` if there is one.

        :raises NegotiationError: none can be used now.
        """
        return self._other(lambda: self.devices.best(besides=besides))

    def _other(self, choose: Callable[[], Engine]) -> Engine:
        """The engine to begin with: this one, if there is only one device."""
        self.backend.check_process()
        engine = self
        if self.devices.several:
            if self.devices.ended:
                raise NegotiationError(Code.SHUTTING_DOWN)
            try:
                engine = choose()
            except (VerbsError, OSError) as error:
                raise NegotiationError(Code.DEVICE_FAILURE, str(error)) from error
        engine._check()
        return engine

    @property
    def early_servers(self) -> Collection[tuple[str, int]]:
        """Address and traffic class of the servers that have granted this loop rings."""
        return self.grants.servers

    def open_early(self, sock: socket.socket, peer: str, traffic_class: int) -> SwitchablePipe | None:
        """Client: begin a connection with a ticket, on a new TCP connection to ``peer``.

        None: it must be negotiated in full, on this TCP connection.
        """
        holder, service = self.grants.servers.get((peer, traffic_class), (None, 0))
        if holder is None or self.closed or self.drained is not None:
            return None
        return holder.open(service, sock)

    def grant_rings(self, has_room: Callable[[], bool]) -> GrantingListener | None:
        """Server: let a listener grant rings in advance; None when the settings forbid it.

        :param has_room: whether the listener would take one more connection now.
        """
        if not self.config.tickets or self.closed:
            return None
        return self.grants.new_listener(lambda: self.drained is None and has_room())

    def claim(self, claim: Claim, listener: GrantingListener | None) -> SwitchablePipe:
        """Server: the connection of a Claim that came on a TCP connection of ``listener``.

        :raises NegotiationError: decline with its ``code``.
        """
        # A drained engine takes it: the client has sent on it. It leaves at the next tick.
        self._check(new=False)
        # What the client sent on the link before the Claim is dispatched before it.
        engines = self.devices.engines
        for engine in engines:
            engine.poller.drain()
        # A group that let go of its place in the list may have done so wrongly, and still has its rings out.
        # The claim proves itself, whichever address it comes from.
        wanted = claim.engine_id, "server", claim.traffic_class
        every = [group for engine in engines for group in engine.all_groups if group.key[:3] == wanted]
        granters = [group.granter for group in every if group.granter is not None]
        for granter in granters:
            if granter.granted(claim):
                return granter.claim(claim, listener, proved=True)
        for group in every:
            if group.granter is not None and group.engine.groups.get(group.key) is group:
                return group.granter.claim(claim, listener)  # raises the error that fits
        raise NegotiationError(Code.TICKET_UNKNOWN)

    async def answer(
        self,
        proposal: Proposal,
        peer: str = "",
        listener: GrantingListener | None = None,
        local: Address | None = None,
    ) -> ServerContact:
        """Server: answer a Proposal. :raises NegotiationError: decline with its ``code``.

        :param listener: the one that it came to, if that grants rings; ``local`` is then the server's address
            of the connection.
        """
        if not proposal.is_aiordma:
            raise NegotiationError(Code.MODE_MISMATCH, "the proposal does not come from aiordma")
        self.devices.on_unknown_link(proposal, peer)
        engine = self._other(lambda: self.devices.answering(proposal, peer))
        engine.check_reachable(proposal.host_id)
        if proposal.by_cm != engine.backend.by_cm:
            raise NegotiationError(Code.NEEDS_RDMA_CM)
        contact = ServerContact(engine, proposal, peer, listener, local)
        try:
            await contact.prepare()
        except MemoryLimitError as error:
            contact.abandon()
            raise NegotiationError(error.code, str(error)) from error
        except VerbsError as error:
            contact.abandon()
            raise NegotiationError(Code.DEVICE_FAILURE, str(error)) from error
        except BaseException:
            contact.abandon()
            raise
        return contact

    def kernel_peers(self, peer: str) -> KernelPeers:
        """The end towards kernels' SMC-R, of this device or of another that is better for this peer.

        :raises NegotiationError: the device reaches none of them, or nothing new begins there.
        """
        engine = self._other(lambda: self.devices.best(peer))
        if engine._kernel_peers is None:
            from .smcr.peers import KernelPeers  # for the few programs that have such peers

            engine._kernel_peers = KernelPeers(engine)
        return engine._kernel_peers

    def check_reachable(self, peer_host_id: bytes) -> None:
        """Whether this device can reach a peer of that host: the software device reaches other hosts only
        where the setting allows it, and only software devices.

        :raises NegotiationError:
        """
        check_reachable(self.host_id, peer_host_id, wire=self.config.soft_wire)

    def _check(self, *, new: bool = True) -> None:
        """:raises NegotiationError: nothing (``new``: nothing new) begins here any more."""
        self.backend.check_process()
        if self.closed:
            raise NegotiationError(Code.SHUTTING_DOWN)
        if new and self.drained is not None:
            raise NegotiationError(Code.DRAINED, self.drained)

    # ---- asynchronous events of the device: a QP or port that failed without a completion

    def read_events(self) -> None:
        """Read and handle the device's asynchronous events."""
        events = self._async_events.read()
        if (error := self._async_events.failure) is not None:
            self._rest_from_events(str(error) or "no memory")
        elif self._events_rest is None:
            self._events_failed = ""
        for event in events:
            logger.log(
                logging.WARNING if event.is_fatal else logging.DEBUG, "%s: %s", self.backend.name, event
            )
            if event.type == EventType.PORT_ACTIVE and event.number == self.backend.port:
                self.devices.recovered(self)
            elif event.is_fatal and self._is_of_device(event):
                self.devices.failed(self, str(event), must_reopen=event.source != "port")
            if event.is_fatal:
                for group in list(self.all_groups):
                    if self._concerns(event, group.qp_num):
                        group.link.device_event(event)
                for user in list(self.users):
                    if self._concerns(event, user.qp_num):
                        user.device_event(event)

    def _rest_from_events(self, why: str) -> None:
        """They stay readable. It is said once for each reason, and not each time that it is tried again."""
        level = logging.DEBUG if why == self._events_failed else logging.WARNING
        self._events_failed = why
        logger.log(level, "%s: its events cannot be read now: %s", self.backend.name, why)
        if self._events_rest is None:  # others than the loop ask for events, too
            self.waker.unwatch_fd(self._async_events.fd)
            self._events_rest = self.waker.call_at(self.waker.now() + PAUSE_S, self._watch_events)

    def _watch_events(self) -> None:
        self._events_rest = None
        if not self.closed:
            self.waker.watch_fd(self._async_events.fd, self.read_events)

    def _is_of_device(self, event: DeviceEvent) -> bool:
        """Whether the event concerns the whole engine."""
        return event.source in ("device", "cq") or (
            event.source == "port" and event.number == self.backend.port
        )

    def _concerns(self, event: DeviceEvent, qp_num: int) -> bool:
        if event.source == "qp":
            return event.number == qp_num
        return self._is_of_device(event)

    def change_config(self, config: Config) -> None:
        """Use other settings from now on (called by :class:`Devices`)."""
        self.config = config
        self.poller.set_busy_poll(config.busy_poll_us)
        self.poller.set_max_fragments(config.max_outstanding_wrs)
        self.pool.set_limit(config.memory_limit_bytes)
        self.cache.trim()
        for group in self.all_groups:
            group.link.config_changed()

    # ---- draining

    def drain(self, text: str) -> int:
        """Begin nothing new, and take streams to another device or to TCP; links close when they are unused.
        Connections of calls stay until they are closed. Idempotent.

        :param text: why.
        :return: connections that leave.
        """
        if self.drained is None:
            events.note("device drained", f"{self.backend.name}: {text}" if text else self.backend.name)
        self.drained = text
        for group in list(self.all_groups):
            self.unlist_group(group)
        return self._let_leave()

    def check_not_drained(self) -> None:
        """:raises NegotiationError: nothing new begins on any device of the loop."""
        if self.drained is not None:
            self.devices.check_not_drained()

    def _let_leave(self) -> int:
        members = [member for group in list(self.all_groups) for member in list(group.members)]
        return sum(
            [member.leave(Code.DRAINED, self.drained or "") for member in members if not member.fails_over]
        )

    # ---- the regular timer: keepalive, tickets, idle links and memory

    def _tick_soon(self) -> None:
        keepalive = self.config.keepalive_ms / 4000 or _TICK_SECONDS
        self._timer = self.waker.call_at(self.waker.now() + min(_TICK_SECONDS, keepalive), self._tick)

    @clock.periodic
    def _tick(self) -> None:
        if self.closed:
            return
        now = self.waker.now()
        self.poller.second = int(now)
        for group in list(self.all_groups):
            group.link.look(now)
            group.look(now)
        if self.drained is not None:
            self._let_leave()
        self.retire_idle(now)
        if now >= self._trim_at:
            # Memory that was idle the last time and still is goes back to the system.
            self._trim_at = now + _TRIM_SECONDS
            self.pool.trim()
            self.poller.spare.age()
        self._tick_soon()
        self.devices.look(now)  # which may close this engine

    def retire_idle(self, now: float) -> None:
        """Close links that have had no connection for ``link_idle_ms`` (``LinkGroup.was_unused``)."""
        asked = {contact.host for contact in list(self._contacts) if not (contact.is_over or contact.stands)}
        patience = self.config.link_idle_ms / 1000 if self.drained is None else 0.0
        for group in list(self.all_groups):
            if group.may_close_at(now):
                group.close()
            elif self.groups.get(group.key) is group:
                if group.was_unused(now, patience, asked):
                    group.retire(now)
            elif now - group.idle_since >= patience:  # no connection joins a group that is not listed
                group.retire(now)

    # ---- end

    async def _end(self) -> None:
        """The loop ends. Its connections get some time for what they have accepted, and to end in order: a
        server may not have accepted them yet, and their data waits for it."""
        try:
            parting = self._part()
            while parting.look():
                await anyio.sleep(_LINGER_LOOK_SECONDS)
                self._drain_all()
        finally:
            self.close()

    def _end_now(self, patient: bool) -> None:
        """The same for a loop that is closed, or was dropped, without having been shut down."""
        try:
            parting = self._part()
            while parting.look() and patient:
                time.sleep(_LINGER_LOOK_SECONDS)
                self._drain_all()
        finally:
            self.close()

    def _part(self) -> Parting:
        if self.devices.ended or self.backend.in_forked_child:
            return Parting(())
        self._drain_all()
        return Parting(
            member
            for engine in self.devices.engines
            for group in engine.all_groups
            for member in group.members
        )

    def _drain_all(self) -> None:
        """Send what was put off, and take what has come, on all devices."""
        for engine in self.devices.engines:
            engine.poller.send_deferred()
            engine.poller.drain()

    def close(self) -> None:
        """Break open connections and release everything, also of the loop's other devices. Idempotent; does
        nothing in a forked child."""
        if self.backend.in_forked_child:
            return
        front = self.waker.locals.get(ENGINE)
        if front is not None and front.devices is self.devices:
            del self.waker.locals[ENGINE]
            ENGINES.pop(id(self.waker), None)
        self.devices.close()

    def close_alone(self) -> None:
        """As :meth:`close`, for this engine only: its device is gone."""
        if self.closed or self.backend.in_forked_child:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._ack_timer.close()
        self.loop_watch.stop()
        release_all(
            "the RDMA engine",
            *(group.close for group in self.all_groups),
            *(parts.close for parts in self.cache.take_all()),
            lambda: self.waker.unwatch_fd(self.cq.fd),
            lambda: self.waker.unwatch_fd(self._async_events.fd),
            self.poller.close,
            self.pool.close,
            self.cq.close,
            self.backend.close,
        )

    def statistics(self) -> dict[str, Any]:
        poller = self.poller
        return {
            "device": self.backend.name,
            **self.devices.statistics(),
            "links": [group.statistics() for group in self.all_groups],
            "memory": self.pool.statistics()._asdict(),
            "parked_qps": len(self.cache.parked),
            "completions": poller.completions,
            "polls": poller.polls,
            "empty_polls": poller.empty_polls,
            "slow_polls": poller.slow_polls,
            "slowest_poll_ns": poller.slowest_poll_ns,
            "events": poller.events,
            "arms": poller.arms,
            "busy_polls": poller.busy_polls + poller.between.waits,
            "busy_poll_hits": poller.busy_poll_hits + poller.between.hits,
            "busy_poll_budget_ns": poller.busy_poll_budget_ns,
            "budget_exhausted": poller.budget_exhausted,
            **({"wire": wire} if (wire := self.wire_counters()) else {}),
        }

    def wire_counters(self) -> dict[str, int]:
        """The software device's packets to and from other hosts, of the whole process; empty without."""
        soft = self.backend.soft
        if soft is None or self.config.soft_wire == "off":
            return {}
        return soft.wire_counters()
