"""X-RDMA's QP cache: parts of closed links, kept for reuse, and how many links there may be."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..errors import Code, NegotiationError, VerbsError
from ..verbs.memory.budget import MemoryLimitError
from .link import LinkParts

if TYPE_CHECKING:
    from .contracts import EngineView


class QpCache:
    """Of one engine.

    :param link_completions: completions that a link may have outstanding.
    """

    def __init__(self, engine: EngineView, link_completions: int) -> None:
        self._engine, self._link_completions = engine, link_completions
        #: Links that the completion queue has room for; for more, it grows.
        self.limit = engine.cq.depth // link_completions
        self.parked: list[LinkParts] = []

    def take(self, links: int) -> LinkParts:
        """Parts for one more link.

        :param links: how many the engine has.
        :raises NegotiationError: that is the limit.
        """
        if links >= self.limit and not self._grow():
            raise NegotiationError(Code.LIMIT_REACHED, f"{self.limit} links on one event loop")
        return self.parked.pop() if self.parked else LinkParts(self._engine)

    def _grow(self) -> bool:
        """Make the completion queue longer. It is short at first: entries are used in turn, and a long one
        does not stay in the CPU's cache.
        """
        cq, share = self._engine.cq, self._link_completions
        before, need = cq.depth, cq.depth // share + 1
        if not cq.grow(max(2 * before, need * share)):
            return False
        self.limit += cq.depth // share - before // share
        return True

    def prepare(self) -> None:
        """Make the parts of the engine's first link while its peer is waited for: 0.2 ms. They stay parked if
        the peer declines. What goes wrong is reported by :meth:`take`, if it still goes wrong then.
        """
        engine = self._engine
        if not (self.parked or engine.all_groups or engine.closed) and engine.config.qp_cache:
            with contextlib.suppress(VerbsError, MemoryLimitError, OSError):
                self.parked.append(LinkParts(engine))

    def put(self, parts: LinkParts, *, reusable: bool) -> None:
        """Park the parts of a link that is closed, or close them."""
        engine = self._engine
        if reusable and not engine.closed and len(self.parked) < engine.config.qp_cache:
            # The QP keeps its number: an event of its old life must not be taken for one of the next.
            engine.read_events()
            self.parked.append(parts)
        else:
            parts.close()

    def reserve(self, completions: int, links: int) -> int:
        """Room in the completion queue for another queue pair; pass the result to :meth:`unreserve`.

        :param links: how many the engine has.
        :raises NegotiationError: not enough room.
        """
        share = -(-completions // self._link_completions)
        if self.limit - share < links and not (self._grow() and self.limit - share >= links):
            raise NegotiationError(Code.LIMIT_REACHED, "the completion queue of this event loop is full")
        self.limit -= share
        return share

    def unreserve(self, share: int) -> None:
        """Release that room."""
        self.limit += share

    def close_one(self) -> bool:
        """Close what was parked first: its memory is needed. False: nothing is parked."""
        if self.parked:
            self.parked.pop(0).close()
            return True
        return False

    def trim(self) -> None:
        """Close what is parked beyond ``Config.qp_cache``, which may have been changed."""
        while len(self.parked) > self._engine.config.qp_cache:
            self.close_one()

    def take_all(self) -> list[LinkParts]:
        """Everything that is parked, to be closed."""
        parked, self.parked = self.parked, []
        return parked
