"""The RDMA devices of an event loop: an engine on each, made when it is first needed, and the choice of one.

With one device there is one engine, and this module is bypassed. With several, a peer gets its second link
over another device when the first has failed: streams leave the failed link as always
(:mod:`.failover.leave`), and the client of the link returns them to RDMA at once (:mod:`.failover.rejoin`),
which negotiates the new link like any first contact. If that fails, they stay on TCP and try again after a
while.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .. import faults
from ..addresses import host_of
from ..errors import Code, NegotiationError, VerbsError
from ..observe import events, leak_watch
from ..observe.trace import recorder
from ..proto.health import Health, wait_before
from ..verbs.lifetime import release_all
from .contracts import EngineView, server_key
from .pregranted import Grants

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ..config import Config
    from ..proto.clc import Proposal
    from ..wake.base import Waker
    from .contracts import RejoinView, SwitchedStream

logger = logging.getLogger("aiordma.link")

#: Two GIDs with so many equal bits in front lie in one network: 24 bits of IPv4, 64 of IPv6.
_NEAR_IPV4, _NEAR_IPV6 = 120, 64


def _equal_bits(one: bytes, other: bytes) -> int:
    return 128 - (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).bit_length()


def _is_near(one: bytes, other: bytes) -> bool:
    ipv4 = one[:12] == bytes(10) + b"\xff\xff"
    return _equal_bits(one, other) >= (_NEAR_IPV4 if ipv4 else _NEAR_IPV6)


E = TypeVar("E", bound=EngineView)


class Devices(Generic[E]):
    """Of one event loop.

    :param names: the list of devices (:func:`aiordma.verbs.backend.device_list`).
    :param make: makes the engine on a device of the list.
    """

    def __init__(
        self,
        waker: Waker,
        config: Config,
        names: list[str | None],
        make: Callable[[Devices[E], int], E],
    ) -> None:
        self.waker, self.config, self.names, self._make = waker, config, names, make
        self.health = Health(len(self.names))
        self._engines: list[E | None] = [None] * len(self.names)
        #: Engines whose device is gone, until the last stream has left their memory.
        self._spent: set[E] = set()
        #: Pre-granted rings.
        self.grants = Grants()
        # Engine ids of one loop differ in their last byte.
        self._loop_id, self._last_byte = secrets.token_bytes(15), 0
        #: Streams that have moved to another link.
        self.moved = 0
        #: Streams that wait on TCP for another link: (when, stream, attempt).
        self._waiting: deque[tuple[float, SwitchedStream, int]] = deque()
        #: Called when a device reports that its port is up again.
        self.on_recovered: set[Callable[[], None]] = set()
        #: Devices on which nothing new begins, by their place in the list, and why.
        self._drained: dict[int, str] = {}
        #: The loop ends.
        self.ended = False

    @property
    def several(self) -> bool:
        """Whether there is another device than the one in use."""
        return len(self.names) > 1

    @property
    def engines(self) -> list[E]:
        """Those that exist now."""
        return [engine for engine in self._engines if engine is not None]

    @property
    def waiting(self) -> int:
        """Streams on TCP that wait for another link."""
        return len(self._waiting)

    def new_engine_id(self) -> bytes:
        """16 bytes."""
        self._last_byte = (self._last_byte + 1) % 256
        return self._loop_id + bytes([self._last_byte])

    def change_config(self, config: Config) -> None:
        """Use other settings from now on, of which only the online ones differ (``Config.changed()``)."""
        before, self.config = self.config, config
        for engine in self.engines:
            engine.change_config(config)
        recorder.change(before, config)
        leak_watch.configure(self.waker, config)
        if config.filter != before.filter:
            faults.install(config.filter or "")

    # ---- which one

    @property
    def _retry(self) -> float:
        return self.config.device_retry_ms / 1000

    def _index(self, engine: EngineView) -> int | None:
        """Its place in the list; None: there is one device only, or the engine is not in use any more."""
        if self.several:
            for index, each in enumerate(self._engines):
                if each is engine:
                    return index
        return None

    def add(self, index: int, engine: E) -> E:
        """The engine on a device that was opened beforehand."""
        self._engines[index] = engine
        return engine

    def cannot_open(self, index: int, error: Exception) -> None:
        """A device could not be opened: another one is used for a while, if there is one."""
        if self.several and index not in self._drained:
            logger.warning("RDMA device %s cannot be used: %s", self.names[index], error)
            self.health.failed(index, str(error), self.waker.now(), self._retry)

    def _open(self, index: int) -> E:
        """:raises NegotiationError: or VerbsError or OSError: it cannot be used."""
        engine = self._engines[index]
        if engine is None:
            engine = self._engines[index] = self._make(self, index)
        elif self.health.why_down(index):
            engine.backend.check_port()
        return engine

    def _try_open(self, indexes: list[int], problems: list[Exception]) -> Iterator[E]:
        for index in indexes:
            try:
                if index in self._drained:
                    raise NegotiationError(Code.DRAINED, self._drained[index])
                engine = self._open(index)
            except (NegotiationError, VerbsError, OSError) as error:
                problems.append(error)
                self.cannot_open(index, error)
            else:
                yield engine

    def best(self, peer: str = "", besides: EngineView | None = None) -> E:
        """The engine for a new connection.

        :param peer: the other end, if that is known.
        :param besides: of devices that are equally good, the one of this engine is the last choice.
        :raises NegotiationError: or VerbsError or OSError: no device can be used.
        """
        problems: list[Exception] = []
        for indexes in self.health.order(host_of(peer), self.waker.now()):
            if besides is not None:
                indexes.sort(key=lambda index: self._engines[index] is besides)
            for engine in self._try_open(indexes, problems):
                return engine
        raise problems[0]

    def on_unknown_link(self, proposal: Proposal, peer: str) -> None:
        """The client may report that it does not know a link: it has failed there, unnoticed here."""
        for engine in self.engines if proposal.unknown_qpn else ():
            group = engine.groups.get(server_key(proposal, peer))
            if group is not None and group.qp_num == proposal.unknown_qpn:
                group.give_up()
                self.path_failed(engine, peer, "the peer does not know the link any more")

    def answering(self, proposal: Proposal, peer: str) -> E:
        """The engine to answer a Proposal with: one that works, can reach the client, and is near it.

        :raises NegotiationError: or VerbsError or OSError: there is none.
        """
        for engine in self.engines:
            group = engine.groups.get(server_key(proposal, peer))
            if group is not None and (group.active or group.setting_up) and engine.drained is None:
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

    def path_failed(self, engine: EngineView, peer: str, why: str) -> None:
        """A link to ``peer`` has failed at this engine's device, or could not be set up."""
        index = self._index(engine)
        if index is not None:
            self.health.way_failed(index, host_of(peer), why, self.waker.now(), self._retry)

    def path_works(self, engine: EngineView, peer: str) -> None:
        """A link to ``peer`` has come up."""
        index = self._index(engine)
        if index is not None:
            self.health.works(index, host_of(peer))

    def failed(self, engine: E, why: str, *, must_reopen: bool) -> None:
        """The device reports that its port is down, or (``must_reopen``) that it must be opened again."""
        events.note("device down", f"{engine.backend.name}: {why}")
        index = self._index(engine)
        if index is None:
            return
        self.health.failed(index, why, self.waker.now(), self._retry)
        logger.warning("RDMA device %s is not used for new connections: %s", self.names[index], why)
        if must_reopen:
            self._engines[index] = None
            self._spent.add(engine)

    def recovered(self, engine: EngineView) -> None:
        """The device reports that its port is up again."""
        events.note("device up", engine.backend.name)
        index = self._index(engine)
        if index is not None:
            self.health.recovered(index)
            waiting, self._waiting = self._waiting, deque()
            for _, framed, attempt in waiting:
                self._ask(framed, attempt)
        for callback in list(self.on_recovered):
            callback()

    def look(self, now: float) -> None:
        """Called by the engines' timers."""
        for engine in list(self._spent):
            if not engine.all_groups and not engine.users:
                self._spent.discard(engine)
                engine.close_alone()
        while self._waiting and self._waiting[0][0] <= now:
            _, framed, attempt = self._waiting.popleft()
            self._ask(framed, attempt)

    def close(self) -> None:
        """Close all engines. Idempotent."""
        self.ended = True
        self._waiting.clear()
        release_all("an RDMA device", *(engine.close_alone for engine in (*self.engines, *self._spent)))
        self._engines = [None] * len(self.names)
        self._spent.clear()

    # ---- draining

    def drain(self, names: Collection[str] | None, text: str) -> int:
        """Let devices become idle, while the program runs: nothing new begins there, streams go to another
        device or to TCP, links close when they are unused.

        :param names: of the devices; None: all.
        :param text: why, for people.
        :return: connections that leave.
        :raises LookupError: no such device; nothing has happened.
        """
        indexes = self._named(names)
        self._drained.update(dict.fromkeys(indexes, text))
        chosen = [engine for index in indexes if (engine := self._engines[index]) is not None]
        return sum([engine.drain(text) for engine in chosen])

    def revoke_drain(self, names: Collection[str] | None) -> int:
        """Use these devices again (None: all); how many were drained. :raises LookupError: no such device."""
        count = 0
        for index in self._named(names):
            count += self._drained.pop(index, None) is not None
            engine = self._engines[index]
            if engine is not None:
                engine.drained = None
        return count

    def check_not_drained(self) -> None:
        """:raises NegotiationError: all devices are drained."""
        if len(self._drained) == len(self.names):
            raise NegotiationError(Code.DRAINED, next(iter(self._drained.values())))

    def _named(self, names: Collection[str] | None) -> list[int]:
        """:raises LookupError:"""
        known = [row["device"] for row in self.statistics()["devices"]]
        for name in names or ():
            if name not in known:
                raise LookupError(f"there is no RDMA device {name!r} here: there is {', '.join(known)}")
        return [index for index, name in enumerate(known) if names is None or name in names]

    def _state(self, index: int, engine: E | None) -> str:
        if index in self._drained:
            return "draining" if engine is not None and engine.all_groups else "drained"
        if self.health.why_down(index):
            return "down"
        return "not opened" if engine is None else "open"

    # ---- streams whose link has failed

    def find_another(self, framed: SwitchedStream, why: str) -> None:
        """A stream has left its link because that failed, and another link may be possible."""
        logger.debug("a stream with %s looks for another link: %s", framed.peer, why)
        self.waker.call_soon(lambda: self._ask(framed, 0))

    def _ask(self, framed: SwitchedStream, attempt: int) -> None:
        if not framed.may_rejoin:
            return
        rejoin = framed.rejoin()
        rejoin.on_over = lambda: self._over(framed, attempt, rejoin)

    def _over(self, framed: SwitchedStream, attempt: int, rejoin: RejoinView) -> None:
        if rejoin.error is None:
            self.moved += 1
            events.note("back on RDMA", f"streams with {host_of(framed.peer)}")
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
                    "state": self._state(index, engine),
                    "why": self._drained.get(index, why),
                    "retry_in_s": max(0.0, self.health.tried_again_at(index) - now) if why else 0.0,
                    "links": 0 if engine is None else len(engine.all_groups),
                }
            )
        return {"devices": rows, "streams_moved": self.moved, "streams_waiting": self.waiting}
