"""The engine: everything RDMA of one event loop on one device (``devices.py`` has those of several).

It owns the device context, the completion queue, the memory pool, the links and one timer, and none of it
is shared
with another loop, so the data path takes no locks (X-RDMA's run to completion). :func:`current` makes it on
first use;
it ends with its loop.
"""

from __future__ import annotations

import hashlib
import logging
import os
import weakref
from typing import TYPE_CHECKING, Any

import anyio

from .. import faults, wake
from .._cq import CompletionPoller
from ..config import Config
from ..errors import Code, NegotiationError, VerbsError
from ..observe.trace import recorder
from ..verbs.abi import EventType
from ..verbs.backend import open_backend
from ..verbs.cq import CompletionQueue
from ..verbs.events import AsyncEvents, DeviceEvent
from ..verbs.lifetime import give_back
from ..verbs.memory import MemoryLimitError, MemoryPool
from .contact import ClientOffer, ServerOffer
from .devices import Devices
from .link import LinkKey, LinkParts
from .pregranted import Holder, Issuer, Service

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from ..addresses import Address
    from ..pipes._switchable import SwitchablePipe
    from ..proto.clc import Claim, Proposal
    from ..wake.base import Handle, Waker
    from .group import LinkGroup

logger = logging.getLogger("aiordma.link")

#: Completions a link may have outstanding: its receives and its signalled sends.
_CQ_DEPTH = 16384
_TICK_SECONDS = 1.0
_TRIM_SECONDS = 30.0
#: Longest time that the end of a loop waits for peers to take leave, and how often it looks.
_LINGER_SECONDS = 1.0
_LINGER_LOOK_SECONDS = 0.0005
_KIND_SOFT, _KIND_DEVICE = b"\x01", b"\x02"


def host_id(is_soft: bool) -> bytes:
    """16 bytes that are equal for ends whose software devices can share memory: same boot, same network
    namespace.
    """
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        boot = file.read().strip()
    namespace = os.stat("/proc/self/ns/net").st_ino
    digest = hashlib.sha256(
        b"aiordma host" + boot + str(namespace).encode() + str(os.getuid()).encode()
    ).digest()
    return (_KIND_SOFT if is_soft else _KIND_DEVICE) + digest[:15]


class Engine:
    """Use :func:`current`. :raises NegotiationError: no device, with the reason in words."""

    def __init__(self, devices: Devices, index: int) -> None:
        self.devices = devices
        self.waker, self.config = waker, config = devices.waker, devices.config
        if config.filter is not None:
            faults.install(config.filter)
        self.engine_id = devices.new_engine_id()
        #: Groups that new connections can join, by (peer's engine id, our role); and all, failed too.
        self.groups: dict[LinkKey, LinkGroup] = {}
        self.all_groups: set[LinkGroup] = set()
        #: Connections that this end is about to begin.
        self.asking: weakref.WeakSet[ClientOffer] = weakref.WeakSet()
        #: Listeners that hand out tickets, by number; servers that have given us some: address -> link group
        #: and number of the listener there. Of all engines of the loop.
        self.services, self.open_to = devices.services, devices.open_to
        self.closed = False
        self._parked: list[LinkParts] = []
        self._timer: Handle | None = None
        self._trim_at = waker.now() + _TRIM_SECONDS
        self.backend = open_backend(devices.names[index])
        try:
            self.host_id = host_id(self.backend.is_soft)
            self.cq = CompletionQueue(self.backend, _CQ_DEPTH)
        except BaseException:
            self.backend.close()
            raise
        self._link_completions = config.window + config.recv_reserve + 32
        self.links_limit = self.cq.depth // self._link_completions
        self.pool = MemoryPool(
            slab_bytes=config.slab_bytes, limit_bytes=config.memory_limit_bytes, call_soon=waker.call_soon
        )
        self.poller = CompletionPoller(
            self.cq.cq_pointer,
            self.cq.channel_pointer,
            self.backend.symbol("ibv_get_cq_event"),
            self.backend.symbol("ibv_ack_cq_events"),
            waker.call_soon,
            waker.ready,
            config.busy_poll_us,
            config.max_outstanding_wrs,
            self.cq,
        )
        recorder.install(config)
        recorder.watch(self)
        self._async_events = AsyncEvents(self.backend)
        waker.watch_fd(self.cq.fd, self.poller.on_readable)
        waker.watch_fd(self._async_events.fd, self.read_events)
        self.poller.begin()
        waker.at_loop_end(self._end)
        self._tick_soon()

    # ---- parts of links, reused (QP cache)

    def take_parts(self) -> LinkParts:
        if len(self.all_groups) >= self.links_limit:
            raise NegotiationError(Code.LIMIT_REACHED, f"{self.links_limit} links on one event loop")
        return self._parked.pop() if self._parked else LinkParts(self)

    def reserve_completions(self, count: int) -> int:
        """Room in the completion queue for a queue pair that is no link's; give the result to
        :meth:`return_completions`.

        :raises NegotiationError: there is not enough.
        """
        links = -(-count // self._link_completions)
        if self.links_limit - links < len(self.all_groups):
            raise NegotiationError(Code.LIMIT_REACHED, "the completion queue of this event loop is full")
        self.links_limit -= links
        return links

    def return_completions(self, links: int) -> None:
        """Give the room back."""
        self.links_limit += links

    def give_parts(self, parts: LinkParts, *, reusable: bool) -> None:
        if reusable and not self.closed and len(self._parked) < self.config.qp_cache:
            # The QP keeps its number: an event of its old life must not be taken for one of the next.
            self.read_events()
            self._parked.append(parts)
        else:
            parts.close()

    # ---- negotiation

    async def propose(
        self, kind: int = 0, *, peer: str = "", unknown_qpn: int = 0, traffic_class: int | None = None
    ) -> ClientOffer:
        """Client: begin a negotiation, on this device or on another that is better for this peer.

        :param kind: what the connection will carry (``Proposal.kind``).
        :param unknown_qpn: it begins a second time, as the server named a link that is not known here.
        :param traffic_class: of the link; default: as in the engine's settings.
        :raises NegotiationError:
        """
        engine = self._other(lambda: self.devices.best(peer))
        if traffic_class is None:
            traffic_class = self.config.traffic_class
        offer = ClientOffer(engine, kind, unknown_qpn, traffic_class)
        engine.asking.add(offer)
        return offer

    @property
    def max_links(self) -> int:
        """Links that this end can have with a peer, as the negotiation says it: 2 is more than one."""
        return 2 if self.devices.several else 1

    def best(self) -> Engine:
        """Of several devices, the one for something new.

        :raises NegotiationError: none can be used now.
        """
        return self._other(self.devices.best)

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

    def open_at_once(self, sock: socket.socket, peer: str, traffic_class: int) -> SwitchablePipe | None:
        """Client: begin a connection without waiting for an answer, on a new TCP connection to ``peer``.

        None: it must be negotiated in full, on this TCP connection.
        """
        group, service = self.open_to.get((peer, traffic_class), (None, 0))
        if group is None or self.closed or not isinstance(group.tickets, Holder):
            return None
        return group.tickets.open(service, sock)

    def open_service(self, has_room: Callable[[], bool]) -> Service | None:
        """Server: let a listener hand out tickets; None when the settings say that there are none.

        :param has_room: whether the listener would take one more connection now.
        """
        if not self.config.tickets or self.closed:
            return None
        number = self.devices.new_service_number()
        service = self.services[number] = Service(self.devices, number, has_room)
        return service

    def claim(self, claim: Claim, service: Service | None) -> SwitchablePipe:
        """Server: the connection of a Claim that came on a TCP connection of ``service``.

        :raises NegotiationError: decline with its ``code``.
        """
        self._check()
        key = LinkKey(claim.engine_id, "server", claim.traffic_class)
        # What the client said on the link before it claimed comes first.
        engines = self.devices.engines
        for engine in engines:
            engine.poller.drain()
        listed = [engine.groups[key] for engine in engines if key in engine.groups]
        # One that is given up is not listed, and may be so wrongly.
        for groups in (listed, [group for engine in engines for group in engine.all_groups]):
            for group in groups:
                if group.key == key and isinstance(group.tickets, Issuer) and group.tickets.gave(claim):
                    return group.tickets.claim(claim, service)
        for group in listed:
            if isinstance(group.tickets, Issuer):
                return group.tickets.claim(claim, service)  # which says what is wrong
        raise NegotiationError(Code.TICKET_UNKNOWN)

    async def answer(
        self,
        proposal: Proposal,
        peer: str = "",
        service: Service | None = None,
        local: Address | None = None,
    ) -> ServerOffer:
        """Server: answer a Proposal. :raises NegotiationError: decline with its ``code``.

        :param service: the listener it came to, if that hands out tickets; ``local`` is then the server's
            address of the connection.
        """
        if not proposal.is_aiordma:
            raise NegotiationError(Code.MODE_MISMATCH, "the proposal does not come from aiordma")
        self.devices.hear_unknown(proposal, peer)
        engine = self._other(lambda: self.devices.answering(proposal, peer))
        engine.check_reachable(proposal.host_id)
        if proposal.by_cm != engine.backend.by_cm:
            raise NegotiationError(Code.NEEDS_RDMA_CM)
        offer = ServerOffer(engine, proposal, peer, service, local)
        try:
            await offer.prepare()
        except MemoryLimitError as error:
            offer.abandon()
            raise NegotiationError(Code.OUT_OF_MEMORY, str(error)) from error
        except VerbsError as error:
            offer.abandon()
            raise NegotiationError(Code.DEVICE_FAILURE, str(error)) from error
        except BaseException:
            offer.abandon()
            raise
        return offer

    def check_reachable(self, peer_host_id: bytes) -> None:
        """Beyond this host the software device goes only where the setting allows it, and to its like.

        :raises NegotiationError:
        """
        if self.backend.is_soft and peer_host_id != self.host_id:
            if peer_host_id[:1] != _KIND_SOFT:
                raise NegotiationError(
                    Code.PEER_UNREACHABLE, "this end has the software device, the peer has another kind"
                )
            if self.config.soft_wire == "off":
                raise NegotiationError(
                    Code.PEER_UNREACHABLE,
                    "this end has the software device, and the peer is on another host; "
                    "AIORDMA_SOFT_WIRE=auto on both lets them talk over UDP",
                )
        if not self.backend.is_soft and peer_host_id[:1] == _KIND_SOFT:
            raise NegotiationError(
                Code.PEER_UNREACHABLE, "the peer has the software device, this end has not"
            )

    def _check(self) -> None:
        self.backend.check_process()
        if self.closed:
            raise NegotiationError(Code.SHUTTING_DOWN)

    # ---- what the device says by itself: a QP or port that failed without a completion

    def read_events(self) -> None:
        """Look at what the device has to say."""
        for event in self._async_events.read():
            logger.log(
                logging.WARNING if event.is_fatal else logging.DEBUG, "%s: %s", self.backend.name, event
            )
            if event.type == EventType.PORT_ACTIVE and event.number == self.backend.port:
                self.devices.recovered(self)
            elif event.is_fatal and self._is_of_device(event):
                self.devices.failed(self, str(event), for_good=event.source != "port")
            if event.is_fatal:
                for group in list(self.all_groups):
                    if self._concerns(event, group):
                        group.link.device_event(event)

    def _is_of_device(self, event: DeviceEvent) -> bool:
        """Nothing on this engine works any more."""
        return event.source in ("device", "cq") or (
            event.source == "port" and event.number == self.backend.port
        )

    def _concerns(self, event: DeviceEvent, group: LinkGroup) -> bool:
        if event.source == "qp":
            return event.number == group.link.queue_pair.qp_num
        return self._is_of_device(event)

    # ---- the one timer: keepalive, late acknowledgements, idle memory

    def _tick_soon(self) -> None:
        keepalive = self.config.keepalive_ms / 4000 or _TICK_SECONDS
        self._timer = self.waker.call_at(self.waker.now() + min(_TICK_SECONDS, keepalive), self._tick)

    def _tick(self) -> None:
        if self.closed:
            return
        now = self.waker.now()
        for group in list(self.all_groups):
            group.link.look(now)
            group.look(now)
        self.retire_idle(now)
        if now >= self._trim_at:
            # What was idle the last time and still is, goes back to the system.
            self._trim_at = now + _TRIM_SECONDS
            self.pool.trim()
            self.poller.spare.age()
        self._tick_soon()
        self.devices.look(now)  # which may close this engine

    def retire_idle(self, now: float) -> None:
        """Close links that have had no connection for ``link_idle_ms``. The client's side does it, since it
        is the one that begins connections: so it cannot close a link that is being joined. Nor does it while
        a server may be answering that a new connection shall join one."""
        asking = any(not offer.is_over for offer in list(self.asking))
        for group in list(self.all_groups):
            if group.may_close_at(now):
                group.close()
            elif now - group.idle_since >= self.config.link_idle_ms / 1000:
                # One that was given up is joined by nobody any more.
                listed = self.groups.get(group.key) is group
                if not listed or (group.key.side == "client" and not asking):
                    group.retire(now)

    # ---- end

    async def _end(self) -> None:
        """The loop ends. Streams that were closed in order have their time: what was sent on them may be
        waiting for a server that has not even accepted them."""
        deadline = self.waker.now() + _LINGER_SECONDS
        try:
            while not self.devices.ended and self._is_parting() and self.waker.now() < deadline:
                await anyio.sleep(_LINGER_LOOK_SECONDS)
                for engine in self.devices.engines:
                    engine.poller.drain()
        finally:
            self.close()

    def _is_parting(self) -> bool:
        return any(
            group.active and member.pipe.is_closed and member.pipe.error is None
            for engine in self.devices.engines
            for group in engine.all_groups
            for member in group.members
        )

    def close(self) -> None:
        """Break what is left and give everything back, also of the loop's other devices. Idempotent; does
        nothing in a forked child."""
        if self.backend.in_forked_child:
            return
        front = _engines.get(self.waker)
        if front is not None and front.devices is self.devices:
            del _engines[self.waker]
        self.devices.close()

    def close_alone(self) -> None:
        """As :meth:`close`, this one only: its device is gone."""
        if self.closed or self.backend.in_forked_child:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        parked, self._parked = self._parked, []
        give_back(
            "the RDMA engine",
            *(group.close for group in self.all_groups),
            *(parts.close for parts in parked),
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
            "parked_qps": len(self._parked),
            "completions": poller.completions,
            "polls": poller.polls,
            "empty_polls": poller.empty_polls,
            "slow_polls": poller.slow_polls,
            "slowest_poll_ns": poller.slowest_poll_ns,
            "events": poller.events,
            "arms": poller.arms,
            "spins": poller.spins,
            "spin_hits": poller.spin_hits,
            "spin_budget_ns": poller.spin_budget_ns,
            "budget_exhausted": poller.budget_exhausted,
            **self._wire_statistics(),
        }

    def _wire_statistics(self) -> dict[str, Any]:
        """The software device's packets to and from other hosts, of the whole process."""
        soft = self.backend.soft
        if soft is None or self.config.soft_wire == "off":
            return {}
        return {"wire": soft.wire_counters()}


#: The engine that a loop began with, or that took its place.
_engines: dict[Waker, Engine] = {}
_refusals: dict[str | None, NegotiationError] = {}


async def current(config: Config | None = None) -> Engine:
    """The running loop's engine, made on first use with the offline settings of ``config``.

    :raises NegotiationError: RDMA is not to be had here; the reason is remembered for the life of the
    process.
    """
    waker = wake.current()
    engine = _engines.get(waker)
    if engine is not None:
        return engine if not engine.devices.several else engine.best()
    config = config or Config.from_env()
    refusal = _refusals.get(config.device)
    if refusal is not None:
        raise NegotiationError(refusal.code, refusal.detail)
    try:
        engine = Devices(waker, config, Engine).best()
    except NegotiationError as error:
        _refusals[config.device] = error
        raise
    except (VerbsError, OSError) as error:
        raise NegotiationError(Code.DEVICE_FAILURE, str(error)) from error
    _engines[waker] = engine
    return engine
