"""The device of a datagram endpoint: it makes the queue pair, and another one when that has failed.

The first attempts follow one another at once, on another device if there is one. After some failures in a
row, or with no device to go to, the endpoint goes on by UDP, and tries again after a while and when a port is
up again.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from .. import wake
from ..errors import Code, FallbackReason, NegotiationError
from ..proto.health import EAGER, wait_before
from .ud_resources import UdParts

if TYPE_CHECKING:
    from collections import deque

    from ..addresses import Address
    from ..config import Config
    from ..links.contracts import EngineView
    from ..wake.base import Handle

_log = logging.getLogger("aiordma.datagram")

_COUNTERS = ("sent", "received", "dropped_full", "dropped_unknown", "malformed")


class DeviceUser(Protocol):
    """The endpoint, as its device sees it."""

    def device_changed(self, parts: UdParts | None, reason: FallbackReason | None) -> None:
        """From now on this is its queue pair, or it has none for this reason. The former one still exists."""


class EndpointDevice:
    """Of one endpoint.

    :param engine: the one to begin with.
    :param queue, most: as in :class:`aiordma.datapath._ud.UdPort`.
    :raises NegotiationError: it cannot have a queue pair.
    """

    def __init__(
        self,
        home: DeviceUser,
        engine: EngineView,
        config: Config,
        queue: deque[tuple[bytes, Address]],
        most: int,
    ) -> None:
        self._home = home
        self._config = config
        self._queue, self._most = queue, most
        self._waker = wake.current()
        #: How often the endpoint got another queue pair.
        self.moves = 0
        #: Counters of former queue pairs.
        self._past: Counter[str] = Counter()
        self._failures = 0
        self._timer: Handle | None = None
        self._closed = False
        self._engine = engine
        self._made_at = self._waker.now()
        self.parts: UdParts | None = self._make(engine)
        engine.devices.on_recovered.add(self._on_recovered)

    def _make(self, engine: EngineView) -> UdParts:
        parts = UdParts(engine, self._config.traffic_class, self._queue, self._most)
        parts.port.on_failed = self._on_failed
        self._engine, self._made_at = engine, self._waker.now()
        return parts

    @property
    def counts(self) -> Counter[str]:
        """Counters of all queue pairs, by the names that they have in ``UdPort``."""
        counts = Counter(self._past)
        if self.parts is not None:
            counts.update({name: getattr(self.parts.port, name) for name in _COUNTERS})
        return counts

    # -- what happens

    def _on_failed(self, reason: BaseException) -> None:
        # Not from inside a completion: this takes things down.
        self._waker.call_soon(lambda: self._leave(reason))

    def _leave(self, reason: BaseException) -> None:
        """The queue pair has failed."""
        old = self.parts
        if self._closed or old is None or not old.port.failed:
            return
        retry = self._config.device_retry_ms / 1000
        # A device that has failed says so, and is not chosen. What is sent may have broken a queue pair.
        if old.device_failed or self._waker.now() - self._made_at >= retry:
            self._failures = 0
        name, problem = self._engine.backend.name, reason
        if not wait_before(self._failures, retry):
            self._failures += 1
            try:
                new = self._make(self._engine.best(self._engine))
            except NegotiationError as error:
                problem = error
            else:
                _log.warning(
                    "%r: its queue pair on %s failed, it has another one on %s: %s",
                    self._home,
                    name,
                    self._engine.backend.name,
                    reason,
                )
                self._replace(new, None)
                return
        _log.warning("%r: its queue pair on %s failed, going on by UDP: %s", self._home, name, reason)
        text = str(reason) if problem is reason else f"{reason}; {problem}"
        self._replace(None, FallbackReason.of_local(Code.DEVICE_FAILURE, text))
        self._failures = max(self._failures, EAGER)
        self._retry_later()

    def _retry_later(self) -> None:
        wait = wait_before(self._failures, self._config.device_retry_ms / 1000)
        self._timer = self._waker.call_at(self._waker.now() + wait, self._return)

    def _on_recovered(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._return()

    def _return(self) -> None:
        """An endpoint on UDP looks for a device."""
        self._timer = None
        if self._closed:
            return
        self._failures += 1
        try:
            new = self._make(self._engine.best())
        except NegotiationError as error:
            _log.debug("%r: no device yet: %s", self._home, error)
            self._retry_later()
            return
        _log.info("%r: it has a queue pair again, on %s", self._home, self._engine.backend.name)
        self._replace(new, None)

    def _replace(self, new: UdParts | None, reason: FallbackReason | None) -> None:
        old = self.parts
        self._past = self.counts
        self.parts = new
        if new is not None:
            self.moves += 1
        try:
            self._home.device_changed(new, reason)
        finally:
            if old is not None:
                old.close()

    # -- the end

    def close(self) -> None:
        """Release everything. Idempotent."""
        self._closed = True
        self._engine.devices.on_recovered.discard(self._on_recovered)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.parts is not None:
            self.parts.close()
