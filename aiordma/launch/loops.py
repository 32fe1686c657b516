"""Event loops whose connections negotiate RDMA, for programs that choose their loop.

``asyncio.Runner(loop_factory=aiordma.new_event_loop)``, ``uvicorn --loop aiordma:new_event_loop``. Other
loops of the process stay as they are; :func:`aiordma.install` changes all.
"""

from __future__ import annotations

import asyncio
import functools
import os
from typing import TYPE_CHECKING, Any

from ..compat import claims, own_methods

if TYPE_CHECKING:
    from .methods import Methods


@functools.cache
def _methods() -> Methods:
    from ..negotiation.peers import Peers
    from ..negotiation.plain_peers import PlainPeers, cache_file
    from .methods import Methods
    from .policy import Policy
    from .report import Report
    from .rules import Rules

    rules = Rules.parse(os.environ.get("AIORDMA_RUN_RULES", ""))
    return Methods(Policy(rules, Peers(PlainPeers(cache_file()))), Report())


@functools.cache
def _class_of(base: type) -> type:
    """A class of event loops beside `base`, with our methods."""
    cls = type(
        f"Rdma{base.__name__}", (base,), {"__doc__": f"{base.__name__}, over RDMA.", "__module__": __name__}
    )
    for name, method in _methods().of_loops().items():
        own_methods.replace(cls, name, method)
    claims.protect(cls)
    return cls


def new_event_loop(*, uvloop: bool = False) -> asyncio.AbstractEventLoop:
    """A new event loop whose TCP connections negotiate RDMA, with TCP for everybody else.

    Which connections: as with `aiordma run`, and the rules in ``AIORDMA_RUN_RULES``.

    :param uvloop: one of uvloop's; default: asyncio's.
    :raises ImportError: uvloop is not installed.
    :raises ValueError: a rule in the environment is none.
    """
    base: Any
    if uvloop:
        import uvloop as module

        base = module.Loop
    else:
        base = asyncio.SelectorEventLoop
    loop: asyncio.AbstractEventLoop = _class_of(base)()
    return loop
