"""Faults on purpose: the process's filter, and the links it applies to.

Rules (``aiordma.proto.filter``) say which messages and work requests of which links are dropped, delayed,
corrupted and so on, for tests and for drills in production; ``docs/howto/testing.md`` says what each act
means. They hold for all links of the process, also for existing ones, from the moment they are added. Without
rules this costs a link one branch.

::

    with aiordma.faults.injected("drop op=write nth=20 ms=50") as faults:
        ...
        assert faults.fired == 1
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from .datapath._faults import LinkFilter
from .proto.filter import Act, Counters, Direction, Filter, Op, Rule, parse, parse_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .datapath._qp import QueuePair
    from .proto.filter import Decision
    from .wake.base import Handle

__all__ = [
    "Act",
    "Counters",
    "Direction",
    "Injected",
    "Op",
    "Rule",
    "add",
    "clear",
    "injected",
    "install",
    "remove",
    "rules",
]

logger = logging.getLogger("aiordma.faults")


class Tap(Protocol):
    """Sees each message and each work request of a link. It must not raise."""

    def __call__(
        self,
        link: Any,
        direction: Direction,
        op: Op,
        data: bytes,
        size: int,
        imm: int | None,
        remote_addr: int,
        /,
    ) -> None:
        """:param data: the first bytes of ``size``.
        :param imm: the immediate data of what is sent, where the link has such.
        :param remote_addr: of a WRITE or READ.
        """


class FilterableLink(Protocol):
    """What the rules need of a link."""

    #: Made when rules hold for the link for the first time.
    filter: LinkFilter | None
    #: The other end, for log messages.
    peer: str
    #: "client" or "server".
    side: str

    @property
    def queue_pair(self) -> QueuePair: ...
    def call_later(self, seconds: float, callback: Callable[[], None]) -> Handle: ...
    def cut(self) -> None:
        """Move the QP to ERROR."""


# Links of several loops, in several threads, share the rules and their counters.
_lock = threading.Lock()
_links: weakref.WeakSet[FilterableLink] = weakref.WeakSet()
_filter = Filter()
_installed: str | None = None
_tap: Tap | None = None
_tap_bytes = 0


def add(rule: Rule | str) -> int:
    """Add a rule behind the others; returns the number by which it can be removed.

    :raises ValueError: text that is no rule; the message names the wrong word.
    """
    rule = parse_rule(rule) if isinstance(rule, str) else rule
    with _lock:
        number = _filter.add(rule)
    logger.warning("fault rule %d added: %s", number, rule)
    _apply()
    return number


def remove(number: int) -> None:
    """Remove a rule. Its delays under way run to their end. :raises KeyError: no rule of this number."""
    with _lock:
        rule = _filter.remove(number)
    logger.warning("fault rule %d removed: %s", number, rule)
    _apply()


def rules() -> dict[int, tuple[Rule, Counters]]:
    """The rules by number, and how often each has matched and fired."""
    with _lock:
        return _filter.rules()


def clear() -> None:
    """Remove all rules."""
    for number in rules():
        with contextlib.suppress(KeyError):
            remove(number)


def install(text: str) -> None:
    """Replace all rules by those of a text (``AIORDMA_FILTER``). The same text again changes nothing, because
    every event loop of a process applies its settings.

    :raises ValueError: the message names the wrong word; the rules stay as they were.
    """
    global _filter, _installed
    seed, wanted = parse(text)
    with _lock:
        if text == _installed:
            return
        _filter, _installed = Filter(seed, wanted), text
    for rule in wanted:
        logger.warning("fault rule from the settings: %s", rule)
    _apply()


class Injected:
    """Rules that hold inside a ``with``."""

    def __init__(self, filter_: Filter) -> None:
        self._filter = filter_

    @property
    def counters(self) -> list[Counters]:
        """Of each rule, in order."""
        with _lock:
            return [counters for _, counters in self._filter.rules().values()]

    @property
    def fired(self) -> int:
        """How often any of the rules acted."""
        return sum(counters.fired for counters in self.counters)


@contextlib.contextmanager
def injected(*texts: str | Rule, seed: int = 0) -> Iterator[Injected]:
    """Only these rules hold inside; afterwards those from before hold again.

    :param texts: rules, or texts in the form of ``AIORDMA_FILTER``; a ``seed=`` in one of them counts.
    :raises ValueError: text that is no rule.
    """
    global _filter
    wanted: list[Rule] = []
    for text in texts:
        if isinstance(text, Rule):
            wanted.append(text)
        else:
            own_seed, found = parse(text)
            seed = own_seed or seed
            wanted += found
    with _lock:
        before, _filter = _filter, Filter(seed, wanted)
        ours = _filter
    _apply()
    try:
        yield Injected(ours)
    finally:
        with _lock:
            _filter = before
        _apply()


# ---- links


def listen_in(tap: Tap | None, most_bytes: int = 0) -> None:
    """Show all links' messages to ``tap`` from now on, as the rules see them; None: to nothing. Links without
    rules and without a tap pay one branch.

    :param most_bytes: of each message.
    """
    global _tap, _tap_bytes
    with _lock:
        _tap, _tap_bytes = tap, most_bytes
    _apply()


def watch(link: FilterableLink) -> None:
    """Apply the rules to a new link, too."""
    with _lock:
        _links.add(link)
        active = bool(_filter) or _tap is not None
    if active:
        _hook_in(link)


def _apply() -> None:
    with _lock:
        links, active = list(_links), bool(_filter) or _tap is not None
    for link in links:
        if active:
            _hook_in(link)
        elif link.filter is not None:
            link.filter.tap = None
            link.filter.detach()


def _hook_in(link: FilterableLink) -> None:
    if link.filter is None:
        link.filter = LinkFilter(link.queue_pair, link, decide)
    link.filter.tap_bytes, link.filter.tap = _tap_bytes, _tap
    link.filter.attach()


def decide(
    direction: Direction, op: Op, size: int, peer: str, side: str, connection: int | None
) -> Decision | None:
    """Called by the links for each request and each message."""
    with _lock:
        return _filter.decide(direction, op, size, peer=peer, side=side, connection=connection)
