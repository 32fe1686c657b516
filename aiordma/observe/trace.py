"""What took how long: calls by stage, slow requests, slow handlers, slow polls.

One recorder for the process, with X-RDMA's two modes. *Bare* adds nothing to a message; each end takes the
time of one of its calls in 64. *Req-res* sends a trace block with one call in ``trace_sample`` (1: with
every call), and the client learns the time of each stage (see ``aiordma.proto.trace``); a server answers
such calls in either mode. The last 1024 calls of each side can be read, and percentiles of them.
Thresholds, which work in both modes, log what is slower, at most a few warnings a second.

::

    trace.configure(sample=1, slow_request_us=5000)
    ...
    for record in trace.recent(10):
        print(record.method, record.total, record.stages)
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
import weakref
from collections import deque
from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from ..proto.trace import STAGES, ClientTrace, Histogram, RateLimit, ServerTrace, Stages, Tracer

try:
    from ._clock import ClockTracer
except ImportError:  # built without RDMA
    ClockTracer = Tracer  # type: ignore[misc, assignment]

if TYPE_CHECKING:
    from ..config import Config

__all__ = [
    "Record",
    "Settings",
    "Spread",
    "Summary",
    "configure",
    "recent",
    "reset",
    "settings",
    "slow_counts",
    "slow_polls",
    "summary",
]

logger = logging.getLogger("aiordma.trace")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What holds now; see the settings of the same names in ``aiordma.Config``. Times in microseconds."""

    sample: int = 0
    keep: int = 1024
    """Calls of each side that can be read. No setting of a connection: :func:`configure` changes it."""
    slow_request_us: int = 0
    slow_handler_us: int = 0
    slow_poll_us: int = 0


#: Of each end's calls, the times of one in so many are taken in bare mode.
_BARE_SAMPLE = 64
_MOST_KEPT = 1_000_000

#: Names here, and in ``Config``.
_SETTINGS = {
    "sample": "trace_sample",
    "slow_request_us": "slow_request_us",
    "slow_handler_us": "slow_handler_us",
    "slow_poll_us": "slow_poll_us",
}


class Record(NamedTuple):
    """One call, as one end saw it. Times in nanoseconds."""

    side: str
    """``"client"`` or ``"server"``."""
    number: int
    """The same at both ends; 0 at a server whose client does not trace."""
    method: str
    peer: str
    code: int
    """``rpc.Code``."""
    began: float
    """When, in seconds since the epoch, by this end's clock."""
    total: int
    """Client: from the call to its result. Server: from the arrival to the reply."""
    stages: Stages | None
    """Client, if the server sent its times."""
    waited: int | None
    """Server: from the arrival to the handler's first step."""
    handler: int | None


class Spread(NamedTuple):
    """Of many times, in nanoseconds."""

    calls: int
    mean: float
    p50: int
    p90: int
    p99: int
    highest: int


class Summary(NamedTuple):
    """Of one method at one side."""

    total: Spread
    """Of all calls whose time was taken since the start or :func:`reset`."""
    stages: dict[str, Spread]
    """By name, of those that are still kept: traced calls, and handlers where a threshold is set for them."""


class Recorder(ClockTracer):
    """The process's tracer, with its settings, its log and its readers."""

    def __init__(self) -> None:
        self.settings = Settings()
        # Numbers of different processes meet in one server's records.
        super().__init__(monotonic_ns, secrets.randbits(31) << 32, self.settings.keep)
        self._engines: weakref.WeakSet[Any] = weakref.WeakSet()
        self._limits = {name: RateLimit() for name in ("request", "handler", "poll")}
        #: calls and handlers that were slow, also those that were not logged
        self.slow_counts = {"request": 0, "handler": 0}

    # ---- settings

    def configure(self, settings: Settings) -> None:
        self.settings = settings
        self.on_wire = settings.sample > 0
        self.sample = settings.sample or _BARE_SAMPLE
        self.slow_request = settings.slow_request_us * 1000
        self.slow_handler = settings.slow_handler_us * 1000
        if settings.keep != self.calls.maxlen:
            self.calls = deque(self.calls, settings.keep)
            self.handled = deque(self.handled, settings.keep)
        for engine in list(self._engines):
            engine.loop_watch.watch(settings.slow_poll_us * 1000, self.slow_poll)
        self.handlers = self.slow_handler > 0
        self.requests = self.on_wire or self.slow_request > 0

    def install(self, config: Config) -> None:
        """What a connection's settings ask for; those at their default change nothing."""
        defaults = Settings()
        changes = {
            name: value
            for name, field in _SETTINGS.items()
            if (value := getattr(config, field)) != getattr(defaults, name)
        }
        if any(getattr(self.settings, name) != value for name, value in changes.items()):
            self.configure(dataclasses.replace(self.settings, **changes))

    def change(self, before: Config, config: Config) -> None:
        """Settings of an engine were changed: of these, what belongs to tracing is changed here, too."""
        changes = {
            name: getattr(config, field)
            for name, field in _SETTINGS.items()
            if getattr(config, field) != getattr(before, field)
        }
        if changes:
            self.configure(dataclasses.replace(self.settings, **changes))

    def watch(self, engine: Any) -> None:
        """A new engine; its ``poller`` is the completion queue, its ``loop_watch`` watches the event loop."""
        self._engines.add(engine)
        if self.settings.slow_poll_us:
            engine.loop_watch.watch(self.settings.slow_poll_us * 1000, self.slow_poll)

    # ---- what is slow

    def slow_call(self, trace: ClientTrace, took: int) -> None:
        self.slow_counts["request"] += 1
        if not self._limits["request"].allow(time.monotonic()):
            return
        text = "its stages are known in req-res mode only"
        stages = trace.stages(trace.offset)
        if stages is not None:
            text = ", ".join(f"{name} {_ms(value)}" for name, value in zip(STAGES, stages, strict=True))
        elif trace.sent:
            text = "no reply carried its stages"
        method, peer, more = trace.method, trace.peer, self._more("request")
        logger.warning("slow request: %s to %s took %s (%s)%s", method, peer, _ms(took), text, more)

    def slow_handling(self, trace: ServerTrace, took: int) -> None:
        self.slow_counts["handler"] += 1
        if self._limits["handler"].allow(time.monotonic()):
            method, peer, more = trace.method, trace.peer, self._more("handler")
            waited = _ms(trace.started - trace.received)
            text = "slow handler: %s for %s took %s, after waiting %s%s"
            logger.warning(text, method, peer, _ms(took), waited, more)

    def slow_poll(self, nanoseconds: int, where: str) -> None:
        """An event loop came by its engine so late."""
        if self._limits["poll"].allow(time.monotonic()):
            logger.warning("slow poll: %s took %s%s", where, _ms(nanoseconds), self._more("poll"))

    # ---- reading

    def _more(self, name: str) -> str:
        refused = self._limits[name].take_refused()
        return f"; {refused} more were not logged" if refused else ""

    def recent(self, count: int | None) -> list[Record]:
        epoch = time.time_ns() - monotonic_ns()
        found = [_client_record(trace, epoch) for trace in list(self.calls)]
        found += [_server_record(trace, epoch) for trace in list(self.handled)]
        found.sort(key=lambda record: record.began)
        return found if count is None else found[max(0, len(found) - count) :]

    def summary(self) -> dict[tuple[str, str], Summary]:
        stages: dict[tuple[str, str], dict[str, Histogram]] = {}
        for record in self.recent(None):
            known: dict[str, int] = record.stages._asdict() if record.stages is not None else {}
            if record.waited is not None and record.handler is not None:
                known = {"waited": record.waited, "handler": record.handler}
            own = stages.setdefault((record.side, record.method), {})
            for name, value in known.items():
                own.setdefault(name, Histogram()).add(value)
        return {
            (side, method): Summary(
                _spread(histogram),
                {name: _spread(each) for name, each in stages.get((side, method), {}).items()},
            )
            for side, times in (("client", self.call_times), ("server", self.handler_times))
            for method, histogram in list(times.items())
        }

    def reset(self) -> None:
        self.calls.clear()
        self.handled.clear()
        self.call_times.clear()
        self.handler_times.clear()


def _client_record(trace: ClientTrace, epoch: int) -> Record:
    began = (trace.created + epoch) / 1e9
    total, stages = trace.done - trace.created, trace.stages(trace.offset)
    return Record(
        "client", trace.number, trace.method, trace.peer, trace.code, began, total, stages, None, None
    )


def _server_record(trace: ServerTrace, epoch: int) -> Record:
    began = (trace.received + epoch) / 1e9
    total, waited = trace.replied - trace.received, trace.started - trace.received
    handler = trace.finished - trace.started
    return Record(
        "server", trace.number, trace.method, trace.peer, trace.code, began, total, None, waited, handler
    )


def _spread(histogram: Histogram) -> Spread:
    return Spread(
        histogram.count,
        histogram.total / histogram.count if histogram.count else 0.0,
        histogram.percentile(0.5),
        histogram.percentile(0.9),
        histogram.percentile(0.99),
        histogram.highest,
    )


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3f} ms"


#: The process's recorder.
recorder = Recorder()


def settings() -> Settings:
    """What holds now."""
    return recorder.settings


def configure(**changes: Any) -> Settings:
    """Change settings while the program runs, for all connections of the process; what holds then.

    :param changes: ``sample`` (0: bare mode; N: req-res mode, one call in N), ``keep``, ``slow_request_us``,
        ``slow_handler_us``, ``slow_poll_us``.
    :raises ValueError: a name or a value that is not allowed; nothing is changed then.
    """
    from ..config import Config

    for name in changes:
        if name not in Settings.__dataclass_fields__:
            raise ValueError(
                f"unknown setting {name!r}: known are {', '.join(Settings.__dataclass_fields__)}"
            )
    keep = changes.get("keep", 1)
    if type(keep) is not int or not 1 <= keep <= _MOST_KEPT:
        raise ValueError(f"keep={keep!r} is not valid: it must be a whole number from 1 to {_MOST_KEPT}")
    # The settings of connections know what else is allowed.
    Config(**{_SETTINGS[name]: value for name, value in changes.items() if name in _SETTINGS})
    recorder.configure(dataclasses.replace(recorder.settings, **changes))
    return recorder.settings


def recent(count: int | None = None) -> list[Record]:
    """The calls that are kept, of both sides, in the order in which they began.

    :param count: only the last ones.
    """
    return recorder.recent(count)


def summary() -> dict[tuple[str, str], Summary]:
    """By (side, method). The server's ``total`` is the handler's time alone."""
    return recorder.summary()


def slow_counts() -> dict[str, int]:
    """Since the process began: calls (``"request"``) and handlers (``"handler"``) above their thresholds."""
    return dict(recorder.slow_counts)


def slow_polls() -> dict[str, int]:
    """Of all engines of the process: how many polls were slow, and the slowest, in nanoseconds."""
    pollers = [engine.poller for engine in list(recorder._engines)]
    return {
        "slow_polls": sum(poller.slow_polls for poller in pollers),
        "slowest_poll_ns": max((poller.slowest_poll_ns for poller in pollers), default=0),
    }


def reset() -> None:
    """Forget all records and counts."""
    recorder.reset()
