"""Deregistering memory that peers could write into: it is the owner's again when none of them is inside.

A card's driver waits for that. The software device refuses (EBUSY) while the process of a peer is stopped in
the middle of an access by the memory's address: nothing can be put in the way of it, so the memory is kept
until that process goes on or ends. (See ``softdev/src/shm/outside.c``.)
"""

from __future__ import annotations

import contextlib
import logging
from errno import EBUSY
from typing import TYPE_CHECKING, Any

from ..errors import VerbsError
from ..verbs.device import translated

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..verbs.device import Backend
    from ..wake.base import Waker

_log = logging.getLogger("aiordma.memory")

_AGAIN_S = 0.02
#: What waits, also when its event loop is no more: the memory must not be freed.
_waiting: set[_TakingBack] = set()


def take_back(backend: Backend, waker: Waker, mr: Any, keep: object, on_end: Callable[[], object]) -> None:
    """Deregister, mostly at once.

    :param keep: what keeps the memory; held until then.
    :param on_end: called when no peer has access any more.
    :raises VerbsError: the device refuses, for another reason.
    """
    _TakingBack(backend, waker, mr, keep, on_end).attempt()


class _TakingBack:
    """One memory region on its way."""

    def __init__(
        self, backend: Backend, waker: Waker, mr: Any, keep: object, on_end: Callable[[], object]
    ) -> None:
        self._backend, self._waker, self._mr, self._keep, self._on_end = backend, waker, mr, keep, on_end

    def attempt(self) -> None:
        """:raises VerbsError: see :func:`take_back`."""
        if not self._backend.in_forked_child:
            try:
                with translated(self._backend.binding, "ibv_dereg_mr"):
                    self._mr.close()
            except VerbsError as error:
                if error.errno != EBUSY or self._backend.soft is None:
                    raise
                self._wait()
                return
        _waiting.discard(self)
        self._keep = None
        self._on_end()

    def _wait(self) -> None:
        if self not in _waiting:
            _log.warning(
                "a peer's process is stopped in the middle of an access to memory that is taken back: the "
                "memory is not free before that process goes on or ends"
            )
            _waiting.add(self)
        with contextlib.suppress(RuntimeError):  # the loop has ended: the memory is kept
            self._waker.call_at(self._waker.now() + _AGAIN_S, self._again)

    def _again(self) -> None:
        try:
            self.attempt()
        except VerbsError as error:
            _log.error("memory that was taken back is kept: %s", error)
