"""What goes on at links to kernels while the event loop does not poll: a thread answers what cannot wait."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...datapath._stand_in import StandIn

if TYPE_CHECKING:
    from ...datapath._smcr import SmcrQueuePair
    from ..contracts import EngineView

logger = logging.getLogger("aiordma.link")

#: The thread answers when the loop has not polled for once to twice this time. Linux waits two seconds.
_PERIOD_MS = 500


class Absence:
    """Of one engine's loop. The thread runs while there are links to kernels."""

    def __init__(self, engine: EngineView) -> None:
        self._engine = engine
        self._pairs: set[SmcrQueuePair] = set()
        #: Made for the first link. It may keep what has come on other links, so it lasts as the engine does.
        self.stand_in: StandIn | None = None

    def cover(self, pair: SmcrQueuePair) -> None:
        """Have this link's requests answered from now on."""
        if not self._engine.waker.clock.real:
            return  # such a loop is never late
        if not self._pairs:
            try:
                self._begin()
            except OSError as error:
                logger.warning("links to kernels will not outlast a blocked event loop: %s", error)
                return
        assert self.stand_in is not None
        self._pairs.add(pair)
        pair.stand_in_by(self.stand_in)

    def _begin(self) -> None:
        if self.stand_in is None:
            self.stand_in = StandIn(self._engine.poller, _PERIOD_MS)
        self.stand_in.begin()
        self._engine.waker.watch_fd(self.stand_in.fd, self.stand_in.on_readable)

    def leave(self, pair: SmcrQueuePair) -> None:
        """The link has ended. Idempotent."""
        pair.stand_alone()
        if pair in self._pairs:
            self._pairs.remove(pair)
            if not self._pairs and self.stand_in is not None:
                self._engine.waker.unwatch_fd(self.stand_in.fd)
                self.stand_in.end()
