"""Putting the methods into asyncio, uvloop, trio and anyio: at once, or as soon as a program imports them.

Programs and libraries make their event loops by many ways (policies, factories, classes of their own), so it
is the classes' methods that are replaced. Every Python that inherits `aiordma run` loads this module, so it
imports little.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from .. import importing
from ..borrowed import ENABLED
from ..compat import claims, own_methods

if TYPE_CHECKING:
    from collections.abc import Callable

    from .methods import Methods
    from .policy import Policy
    from .raw_sockets import RawSockets
    from .report import Report
    from .trio_methods import TrioMethods

__all__ = ["install", "uninstall"]

#: twisted's, which use no event loop of asyncio.
_REACTORS = [f"twisted.internet.{name}reactor" for name in ("epoll", "poll", "select")]


class _Installed:
    """What :func:`install` has changed."""

    def __init__(self, make: Callable[[], tuple[Policy, Report]], *, watches: bool = False) -> None:
        """`watches`: what programs do with sockets themselves is for the report, too."""
        self._make, self._watches = make, watches
        #: What other modules had, in the order of replacement.
        self._before: list[tuple[Any, str, Any]] = []
        self._streams: dict[str, Any] = {}
        self._classes: set[type] = set()
        self._patches: dict[str, Callable[[Any], None]] = {
            "asyncio.base_events": self._patch_asyncio,
            "asyncio.selector_events": self._patch_selector_loop,
            "asyncio.streams": self._patch_streams,
            "uvloop": self._patch_uvloop,
            "trio": self._patch_trio,
            "anyio._backends._trio": self._patch_anyio,
        }
        if watches:
            # Also for what the program does by functions of aiordma, before it has loaded anything else.
            self._patches["aiordma.negotiation.peer_cache"] = self._hear_of_paths
            self._patches.update(dict.fromkeys(_REACTORS, self._patch_reactor))

    def begin(self) -> None:
        for name, patch in self._patches.items():
            importing.after(name, patch)

    @functools.cached_property
    def _made(self) -> tuple[Policy, Report]:
        # Most programs that inherit `aiordma run` use neither asyncio nor trio, and none of this.
        return self._make()

    @functools.cached_property
    def _methods(self) -> Methods:
        from .methods import Methods

        return Methods(*self._made)

    @functools.cached_property
    def _trio_methods(self) -> TrioMethods:
        from .trio_methods import TrioMethods

        return TrioMethods(*self._made, self._raw_sockets if self._watches else None)

    @property
    def report(self) -> Report:
        return self._made[1]

    @functools.cached_property
    def _raw_sockets(self) -> RawSockets:
        from .raw_sockets import RawSockets

        return RawSockets(self.report)

    def _patch(self, cls: type) -> None:
        self._classes.add(cls)
        for name, method in self._methods.of_loops().items():
            own_methods.replace(cls, name, method)

    def _patch_asyncio(self, module: Any) -> None:
        self._patch(module.BaseEventLoop)

    def _patch_uvloop(self, module: Any) -> None:
        self._patch(module.Loop)
        if self._watches:
            claims.protect(module.Loop, self._raw_sockets.watching)
            self._watch(module.Loop)
        else:
            claims.protect(module.Loop)

    def _hear_of_paths(self, module: Any) -> None:
        module.observe(self.report.count)

    def _patch_selector_loop(self, module: Any) -> None:
        if self._watches:
            self._watch(module.BaseSelectorEventLoop)

    def _watch(self, cls: type) -> None:
        self._classes.add(cls)
        for name, method in self._raw_sockets.of_loops(cls).items():
            own_methods.replace(cls, name, method)

    def _patch_streams(self, module: Any) -> None:
        new = self._methods.of_streams(module.open_connection, module.start_server)
        self._streams = {name: getattr(module, name) for name in new}
        _set_everywhere(new)

    def _patch_trio(self, module: Any) -> None:
        self._replace(self._trio_methods.of_trio(module))
        if self._watches:
            self._replace(self._raw_sockets.of_trio(module))

    def _patch_reactor(self, module: Any) -> None:
        self._replace(self._raw_sockets.of_reactor(module))

    def _patch_anyio(self, module: Any) -> None:
        if ENABLED:
            self._replace(self._trio_methods.of_anyio(module))

    def _replace(self, patches: dict[Any, dict[str, Any]]) -> None:
        for owner, new in patches.items():
            for name, replacement in new.items():
                self._before.append((owner, name, vars(owner).get(name)))
                setattr(owner, name, replacement)

    def end(self) -> None:
        importing.forget(*self._patches)
        while self._before:
            owner, name, before = self._before.pop()
            if before is None:  # it was inherited
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        own_methods.restore(self._classes)
        _set_everywhere(self._streams)


def _set_everywhere(functions: dict[str, Any]) -> None:
    """In the module asyncio.streams, and in the package, if it is complete."""
    for module in (sys.modules.get("asyncio.streams"), sys.modules.get("asyncio")):
        for name, function in functions.items():
            if module is not None and (module.__name__ != "asyncio" or hasattr(module, name)):
                setattr(module, name, function)


_installed: _Installed | None = None


def install(
    rules: str | None = None, *, report: bool = False, remember: bool = True, outside_tls: bool = False
) -> None:
    """Have the TCP connections of asyncio, uvloop and trio in this process negotiate RDMA.

    From now on `loop.create_connection()`, `create_server()`, `connect_accepted_socket()` and `start_tls()`,
    and asyncio's `open_connection()` and `start_server()`, are aiordma's; on trio, `open_tcp_stream()` and
    all listeners on TCP sockets; of anyio, `connect_tcp()` and `create_tcp_listener()`. Plain peers are
    served as before. Call it before other modules do ``from asyncio import open_connection``. A second call
    changes nothing.

    :param rules: which connections may be negotiated, see ``aiordma run --help``; default: the environment's
        (``AIORDMA_RUN_RULES``).
    :param report: print at exit which connections went which way.
    :param remember: keep the plain servers that are found in a file of the user's, for an hour.
    :param outside_tls: payload of connections with TLS may travel over RDMA, unencrypted, if the peer agrees.
    :raises ValueError: a rule is none, with the reason.
    """
    global _installed
    if _installed is not None:
        return
    text = os.environ.get("AIORDMA_RUN_RULES", "") if rules is None else rules

    def make() -> tuple[Policy, Report]:
        from ..negotiation.peers import Peers
        from ..negotiation.plain_peers import PlainPeers, cache_file
        from .policy import Policy
        from .report import Report
        from .rules import Rules

        counts = Report()
        if report:
            counts.print_at_exit()
        peers = Peers(PlainPeers(cache_file()) if remember else None)
        return Policy(Rules.parse(text), peers, outside_tls=outside_tls), counts

    installed = _Installed(make, watches=report)
    installed.begin()
    _installed = installed


def uninstall() -> None:
    """Undo :func:`install`. Connections and servers that exist stay what they are."""
    global _installed
    if _installed is not None:
        _installed.end()
        _installed = None
        negotiations = sys.modules.get("aiordma.negotiation.peer_cache")
        if negotiations is not None:
            negotiations.observe(None)  # the report ends, and the log has paths at its usual level again
