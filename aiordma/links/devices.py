"""The RDMA devices of an event loop: an engine on each, made when it is first needed, and which is used.

With one device there is one engine, and nothing here is asked for anything. With several, a peer gets its
second link over another device when the first has failed: streams leave the failed link as they always do
(``failover/leave.py``), and the client of the failed link returns them to RDMA at once
(``failover/rejoin.py``), which negotiates the new link with the messages of any first contact. Should that
fail, they stay on TCP and try again after a while.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any

from ..errors import NegotiationError, VerbsError
from ..proto.health import Health, wait_before
from ..verbs.backend import device_list
from ..verbs.lifetime import give_back
from .link import LinkKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..config import Config
    from ..proto.clc import Proposal
    from ..wake.base import Waker
    from .engine import Engine
    from .failover.framed_pipe import FramedPipe
    from .failover.rejoin import Rejoin
    from .group import LinkGroup
    from .pregranted import Service

__all__ = ["Devices"]

logger = logging.getLogger("aiordma.link")

#: Two GIDs with so many equal bits in front lie in one network: 24 bits of IPv4, 64 of IPv6.
_NEAR_IPV4, _NEAR_IPV6 = 120, 64


def host_of(peer: str) -> str:
    """The host in ``host:port``, as peers are shown."""
    return peer.rpartition(":")[0] or peer


def _equal_bits(one: bytes, other: bytes) -> int:
    return 128 - (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).bit_length()


def _is_near(one: bytes, other: bytes) -> bool:
    ipv4 = one[:12] == bytes(10) + b"\xff\xff"
    return _equal_bits(one, other) >= (_NEAR_IPV4 if ipv4 else _NEAR_IPV6)


class Devices:
    """Of one event loop.

    :param make: makes the engine on a device of the list.
    :raises NegotiationError: there is none of the kind that the settings ask for.
    """

    def __init__(self, waker: Waker, config: Config, make: Callable[[Devices, int], Engine]) -> None:
        self.waker, self.config, self._make = waker, config, make
        self.names = device_list(config.device, config.soft_devices)
        self.health = Health(len(self.names))
        self._engines: list[Engine | None] = [None] * len(self.names)
        #: Engines whose device is gone, until the last stream has left their memory.
        self._spent: set[Engine] = set()
        #: Listeners that hand out tickets, by number; servers that have given us some, by address and
        #: traffic class.
        self.services: dict[int, Service] = {}
        self.open_to: dict[tuple[str, int], tuple[LinkGroup, int]] = {}
        self._service_number = 0
        # Engine ids of one loop differ in their last byte.
        self._loop_id, self._last_byte = secrets.token_bytes(15), 0
        #: Streams that have moved to another link, and those that wait on TCP for one: (when, who, attempt).
        self.moved = 0
        self._waiting: deque[tuple[float, FramedPipe, int]] = deque()
        #: The loop ends.
        self.ended = False

    @property
    def several(self) -> bool:
        """Whether there is another device than the one in use."""
        return len(self.names) > 1

    @property
    def engines(self) -> list[Engine]:
        """Those that are there."""
        return [engine for engine in self._engines if engine is not None]

    def new_engine_id(self) -> bytes:
        """16 bytes."""
        self._last_byte = (self._last_byte + 1) % 256
        return self._loop_id + bytes([self._last_byte])

    def new_service_number(self) -> int:
        """From 1 to 65535, not in use."""
        while True:
            self._service_number = self._service_number % 0xFFFF + 1
            if self._service_number not in self.services:
                return self._service_number

    # ---- which one

    @property
    def _retry(self) -> float:
        return self.config.device_retry_ms / 1000

    def _open(self, index: int) -> Engine:
        """:raises NegotiationError: or VerbsError or OSError: it cannot be used."""
        engine = self._engines[index]
        if engine is None:
            engine = self._engines[index] = self._make(self, index)
        elif self.health.why_down(index):
            engine.backend.check_port()
        return engine

    def _try_open(self, indexes: list[int], problems: list[Exception]) -> Iterator[Engine]:
        for index in indexes:
            try:
                engine = self._open(index)
            except (NegotiationError, VerbsError, OSError) as error:
                problems.append(error)
                if self.several:
                    logger.warning("RDMA device %s cannot be used: %s", self.names[index], error)
                    self.health.failed(index, str(error), self.waker.now(), self._retry)
            else:
                yield engine

    def best(self, peer: str = "") -> Engine:
        """The engine for a new connection.

        :param peer: with whom, if that is known.
        :raises NegotiationError: or VerbsError or OSError: no device can be used.
        """
        problems: list[Exception] = []
        for indexes in self.health.order(host_of(peer), self.waker.now()):
            for engine in self._try_open(indexes, problems):
                return engine
        raise problems[0]

    def hear_unknown(self, proposal: Proposal, peer: str) -> None:
        """The client says of a link that it does not know it: it has failed there, and here nobody has
        noticed."""
        for engine in self.engines if proposal.unknown_qpn else ():
            group = engine.groups.get(LinkKey(proposal.engine_id, "server", proposal.traffic_class))
            if group is not None and group.link.queue_pair.qp_num == proposal.unknown_qpn:
                group.give_up()
                self.way_failed(engine, peer, "the peer does not know the link any more")

    def answering(self, proposal: Proposal, peer: str) -> Engine:
        """The engine to answer a Proposal with: one that works, can reach the client, and is near it.

        :raises NegotiationError: or VerbsError or OSError: there is none.
        """
        for engine in self.engines:
            group = engine.groups.get(LinkKey(proposal.engine_id, "server", proposal.traffic_class))
            if group is not None and (group.active or group.setting_up):
                return engine
        problems: list[Exception] = []
        for indexes in self.health.order(host_of(peer), self.waker.now()):
            there = [index for index in indexes if self._engines[index] is not None]
            engines = list(self._try_open(there, problems))
            if not any(_is_near(engine.backend.gid.raw, proposal.gid) for engine in engines):
                others = [index for index in indexes if index not in there]
                engines += self._try_open(others, problems)
            for engine in sorted(engines, key=lambda each: -_equal_bits(each.backend.gid.raw, proposal.gid)):
                try:
                    engine.check_reachable(proposal.host_id)
                except NegotiationError as error:
                    problems.append(error)
                else:
                    return engine
        raise problems[0]

    # ---- what becomes of them

    def way_failed(self, engine: Engine, peer: str, why: str) -> None:
        """A link to ``peer`` has failed at this engine's device, or could not be set up."""
        if self.several and engine in self._engines:
            index = self._engines.index(engine)
            self.health.way_failed(index, host_of(peer), why, self.waker.now(), self._retry)

    def works(self, engine: Engine, peer: str) -> None:
        """A link to ``peer`` has come up."""
        if self.several and engine in self._engines:
            self.health.works(self._engines.index(engine), host_of(peer))

    def failed(self, engine: Engine, why: str, *, for_good: bool) -> None:
        """The device says that its port is down, or (``for_good``) that it must be opened anew."""
        if not self.several or engine not in self._engines:
            return
        index = self._engines.index(engine)
        self.health.failed(index, why, self.waker.now(), self._retry)
        logger.warning("RDMA device %s is not used for new connections: %s", self.names[index], why)
        if for_good:
            self._engines[index] = None
            self._spent.add(engine)

    def recovered(self, engine: Engine) -> None:
        """The device says that its port is up again."""
        if self.several and engine in self._engines:
            self.health.recovered(self._engines.index(engine))
            waiting, self._waiting = self._waiting, deque()
            for _, framed, attempt in waiting:
                self._ask(framed, attempt)

    def look(self, now: float) -> None:
        """The engines' timer comes by."""
        for engine in list(self._spent):
            if not engine.all_groups:
                self._spent.discard(engine)
                engine.close_alone()
        while self._waiting and self._waiting[0][0] <= now:
            _, framed, attempt = self._waiting.popleft()
            self._ask(framed, attempt)

    def close(self) -> None:
        """Close all engines. Idempotent."""
        self.ended = True
        self._waiting.clear()
        give_back("an RDMA device", *(engine.close_alone for engine in (*self.engines, *self._spent)))
        self._engines = [None] * len(self.names)
        self._spent.clear()

    # ---- streams whose link has failed

    def find_another(self, framed: FramedPipe, why: str) -> None:
        """A stream has left its link, as that has failed, and there may be another."""
        logger.debug("a stream with %s looks for another link: %s", framed.peer, why)
        self.waker.call_soon(lambda: self._ask(framed, 0))

    def _ask(self, framed: FramedPipe, attempt: int) -> None:
        if not framed.may_rejoin:
            return
        rejoin = framed.rejoin()
        rejoin.on_over = lambda: self._over(framed, attempt, rejoin)

    def _over(self, framed: FramedPipe, attempt: int, rejoin: Rejoin) -> None:
        if rejoin.error is None:
            self.moved += 1
            group = rejoin.group
            if group is not None:
                group.moved_here += 1
                if group.moved_here == 1:
                    logger.info(
                        "streams with %s go on over RDMA, on device %s", group.peer, group.engine.backend.name
                    )
            return
        logger.debug("no other link to %s yet: %s", framed.peer, rejoin.error)
        wait = wait_before(attempt + 1, self._retry)
        if not wait:
            self.waker.call_soon(lambda: self._ask(framed, attempt + 1))
            return
        entry = self.waker.now() + wait, framed, attempt + 1
        at = len(self._waiting)
        while at and self._waiting[at - 1][0] > entry[0]:
            at -= 1
        self._waiting.insert(at, entry)

    def statistics(self) -> dict[str, Any]:
        """Of all devices in the list."""
        now = self.waker.now()
        rows = []
        for index, name in enumerate(self.names):
            engine, why = self._engines[index], self.health.why_down(index)
            rows.append(
                {
                    "device": name if engine is None else engine.backend.name,
                    "state": "down" if why else "not opened" if engine is None else "open",
                    "why": why,
                    "retry_in_s": max(0.0, self.health.tried_again_at(index) - now) if why else 0.0,
                    "links": 0 if engine is None else len(engine.all_groups),
                }
            )
        return {"devices": rows, "streams_moved": self.moved, "streams_waiting": len(self._waiting)}
