"""Who holds registered memory: the arenas of links, and the regions of ``aiordma.memory``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..verbs.memory.budget import Purpose
from .messages import Holder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..wake.base import Waker

_PURPOSES = {Purpose.SOURCES: "messages out", Purpose.SINKS: "messages in"}


def holders(waker: Waker, engines: Iterable[Any]) -> Iterator[Holder]:
    """Of one event loop."""
    for engine in engines:
        device = engine.backend.name
        known: dict[object, tuple[str, str]] = {}
        for group in list(engine.all_groups):
            known[group.rings] = "rings", group.peer
            known[group.link.parts.local] = "receives", group.peer
        for arena in engine.pool.arenas:
            kind, peer = known.get(arena, (_PURPOSES.get(arena.purpose, "other"), ""))
            yield Holder(device, kind, peer, arena.registered_bytes, arena.used_bytes)
    yield from _regions(waker)


def _regions(waker: Waker) -> Iterator[Holder]:
    module = sys.modules.get("aiordma.memory.region")
    registry = None if module is None else module.Registry.of(waker)
    for region in [] if registry is None else sorted(registry.regions, key=id):
        grants = list(region._grants)
        opened = sum(len(grant.openings) for grant in (*grants, *region._ending))
        yield Holder("", "region", "", region.nbytes, region.nbytes, len(grants), opened)
