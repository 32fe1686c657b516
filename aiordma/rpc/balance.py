"""Which of several servers gets the next call: states, health, ejection. No I/O: time is passed in.

A server is connected or not, reports whether it is serving, and has a record of how its calls end. One
whose calls fail again and again is *ejected* for a while although its connection is fine (it hangs, its disk
is full), but never more than a share of all servers: when everything fails, the servers are not the problem.
``pool.py`` makes the connections and the calls.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from .errors import Code, RpcError
from .retry import Backoff

Client = TypeVar("Client")


class Picking(enum.StrEnum):
    """How a server is chosen for a call."""

    #: One server as long as it lasts, in the order they are given; the others are not even connected.
    PICK_FIRST = "pick_first"
    #: One after the other.
    ROUND_ROBIN = "round_robin"
    #: The one with the fewest calls in flight from this client; among equals one after the other.
    LEAST_LOADED = "least_loaded"


class State(enum.Enum):
    """What there is of a connection to a server."""

    #: Nothing, and nothing is under way.
    IDLE = "idle"
    CONNECTING = "connecting"
    READY = "ready"
    #: It could not be reached or was lost; waiting for the next attempt.
    BACKOFF = "backoff"


@dataclass(frozen=True, slots=True)
class Ejection:
    """When a server that is connected gets no calls for a while."""

    #: So many calls in a row must have failed with one of ``codes``. 0: never eject.
    failures: int = 5
    codes: frozenset[Code] = frozenset(
        {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.INTERNAL, Code.DATA_LOSS}
    )
    #: How long, growing with each ejection that follows the one before without a success between.
    pause: Backoff = field(default_factory=lambda: Backoff(first_s=2.0, factor=2.0, most_s=60.0))
    #: At most this share of all servers is ejected at a time, rounded down.
    most_share: float = 0.5

    def __post_init__(self) -> None:
        if self.failures < 0:
            raise ValueError(f"failures={self.failures}: must be at least 0 (0: never eject)")
        if not 0 <= self.most_share <= 1:
            raise ValueError(f"most_share={self.most_share}: must be from 0 to 1")


class TargetStatistics(NamedTuple):
    """One server, as this client sees it."""

    address: str
    state: State
    #: Whether it reports that it takes calls.
    serving: bool
    #: Whether it gets none for a while because its calls failed.
    ejected: bool
    in_flight: int
    calls: int
    failed: int
    connects: int
    ejections: int


class Target(Generic[Client]):
    """One server."""

    __slots__ = (
        "_ejections_in_a_row",
        "_errors_in_a_row",
        "address",
        "calls",
        "client",
        "connect_failures",
        "connects",
        "ejected_until",
        "ejections",
        "failed",
        "in_flight",
        "last_error",
        "retry_at",
        "serving",
        "state",
    )

    def __init__(self, address: Any) -> None:
        self.address = address
        self.state = State.IDLE
        #: What calls are made with while ``state`` is READY.
        self.client: Client | None = None
        #: What its health service reports; True when it has none.
        self.serving = True
        self.in_flight = 0
        #: Why it could not be reached or was lost, the last time.
        self.last_error: BaseException | None = None
        #: Attempts to connect that failed in a row.
        self.connect_failures = 0
        #: When to connect again (BACKOFF); until when it is ejected. Seconds of the owner's clock.
        self.retry_at = -math.inf
        self.ejected_until = -math.inf
        self.calls = self.failed = self.connects = self.ejections = 0
        self._errors_in_a_row = self._ejections_in_a_row = 0

    def usable(self, now: float) -> bool:
        """Whether it is to get calls now."""
        return self.state is State.READY and self.serving and self.ejected_until <= now

    def __repr__(self) -> str:
        return f"<Target {self.address}: {self.state.value}, {self.in_flight} in flight>"


class Targets(Generic[Client]):
    """All servers of a client.

    :param addresses: at least one; in the order of preference for ``PICK_FIRST``.
    :param draw: gives numbers from 0 to 1, for the jitter of pauses.
    """

    def __init__(
        self,
        addresses: Sequence[Any],
        picking: Picking = Picking.PICK_FIRST,
        *,
        reconnect: Backoff | None = None,
        ejection: Ejection | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        if not addresses:
            raise ValueError("no addresses: a client needs at least one server")
        self.all: list[Target[Client]] = [Target(address) for address in addresses]
        self.picking = Picking(picking)
        self._reconnect = reconnect if reconnect is not None else Backoff(first_s=0.05, most_s=10.0)
        self._ejection = ejection if ejection is not None else Ejection()
        self._draw = draw
        self._turn = 0

    # ---- picking -------------------------------------------------------------------------------------------

    def pick(self, now: float) -> Target[Client] | None:
        """The server for a call that begins now; None: there is none that could take it.

        Does not count the call: see :meth:`begin`.
        """
        everyone = self.all
        if len(everyone) == 1:
            only = everyone[0]
            return only if only.state is State.READY and only.serving else None
        usable = [target for target in everyone if target.usable(now)]
        if not usable:
            # Ejected ones are better than none: they are connected, and something has to show that they heal.
            usable = [target for target in everyone if target.state is State.READY and target.serving]
            if not usable:
                return None
        if self.picking is Picking.PICK_FIRST:
            return usable[0]
        self._turn += 1
        first = self._turn % len(usable)
        if self.picking is Picking.ROUND_ROBIN:
            return usable[first]
        return min(usable[first:] + usable[:first], key=_in_flight)

    def wanted(self, now: float) -> list[Target[Client]]:
        """The servers to which a connection is to be made now."""
        due = [
            target
            for target in self.all
            if target.state is State.IDLE or (target.state is State.BACKOFF and target.retry_at <= now)
        ]
        if self.picking is not Picking.PICK_FIRST:
            return due
        if any(t.state is State.CONNECTING or t.usable(now) for t in self.all):
            return []
        # Those that failed less often first: a server that is down does not hide the one behind it.
        due.sort(key=_connect_failures)
        return due[:1]

    def may_come_soon(self) -> bool:
        """Whether a call without a server should wait: some connection is being made, or about to be, that
        did not just fail."""
        return any(t.state is not State.READY and t.connect_failures == 0 for t in self.all)

    def next_change(self, now: float) -> float:
        """When something changes by itself (a pause ends); infinity when nothing does."""
        times = [t.retry_at for t in self.all if t.state is State.BACKOFF]
        times += [t.ejected_until for t in self.all if t.ejected_until > now]
        return min(times, default=math.inf)

    # ---- connections ---------------------------------------------------------------------------------------

    def connecting(self, target: Target[Client]) -> None:
        target.state = State.CONNECTING

    def connected(self, target: Target[Client], client: Client) -> None:
        """A connection is there."""
        target.state = State.READY
        target.client = client
        target.serving = True
        target.connects += 1
        target.connect_failures = 0
        target.last_error = None
        target._errors_in_a_row = 0

    def lost(self, target: Target[Client], error: BaseException | None, now: float) -> None:
        """It could not be made (CONNECTING), or was lost or closed by the server (READY).

        What was fine until now is tried again at once, with jitter for each client but without the pause of a
        server that is down.
        """
        if target.state is not State.READY:
            target.connect_failures += 1
        target.state = State.BACKOFF
        target.client = None
        target.last_error = error
        pause = self._reconnect.pause(max(1, target.connect_failures), self._draw)
        target.retry_at = now + (pause if target.connect_failures else pause * self._draw())

    # ---- calls ---------------------------------------------------------------------------------------------

    def begin(self, target: Target[Client]) -> None:
        """A call to ``target`` begins."""
        target.in_flight += 1
        target.calls += 1

    def end(self, target: Target[Client], error: BaseException | None, now: float) -> None:
        """It ended: with a result, with ``error``, or cancelled (any other exception)."""
        target.in_flight -= 1
        if error is None:
            target._errors_in_a_row = target._ejections_in_a_row = 0
            return
        if not isinstance(error, RpcError):
            return
        target.failed += 1
        if error.code not in self._ejection.codes:
            # It answered, if only with an error of its own.
            target._errors_in_a_row = 0
            return
        target._errors_in_a_row += 1
        if self._ejection.failures and target._errors_in_a_row >= self._ejection.failures:
            self._eject(target, now)

    def _eject(self, target: Target[Client], now: float) -> None:
        if target.ejected_until > now:
            return
        out = sum(other.ejected_until > now for other in self.all)
        if out + 1 > len(self.all) * self._ejection.most_share:
            return
        target._errors_in_a_row = 0
        target._ejections_in_a_row += 1
        target.ejections += 1
        target.ejected_until = now + self._ejection.pause.pause(target._ejections_in_a_row, self._draw)

    def statistics(self, now: float) -> list[TargetStatistics]:
        """All servers, in the order they were given."""
        return [
            TargetStatistics(
                address=str(t.address),
                state=t.state,
                serving=t.serving,
                ejected=t.ejected_until > now,
                in_flight=t.in_flight,
                calls=t.calls,
                failed=t.failed,
                connects=t.connects,
                ejections=t.ejections,
            )
            for t in self.all
        ]


def _in_flight(target: Target[Any]) -> int:
    return target.in_flight


def _connect_failures(target: Target[Any]) -> int:
    return target.connect_failures
