"""What begins with the first connection of an event loop: the search for leaks, the memory of warnings, and
the admin endpoint.

The endpoint belongs to a higher layer. It is found by its name, as plug-ins are, so that nothing below it
depends on it. Its module and its files are prepared in a thread, a moment later; the rest is done in the
loop.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from ..wake.beside import Beside
from . import leak_watch, warned

if TYPE_CHECKING:
    from ..config import Config
    from ..wake.base import Waker

_log = logging.getLogger("aiordma.admin")

#: Module with three functions that raise nothing: ``prepare(loop_name)``, which may return None,
#: ``begin(waker, prepared)``, and ``tidy()``.
_ADMIN = "aiordma.admin.endpoint"
#: The config of the last call, in a loop.
_BEGUN = "begun by this config"
#: The loop's first connection is made before that: no tool looks at a process this early.
_SOON_SECONDS = 0.01


def begin(waker: Waker, config: Config) -> None:
    """In the loop, which has an RDMA device or found none. Only the first call of a config has an effect."""
    if waker.locals.get(_BEGUN) is config:
        return  # as for each connection to a plain server, before any device is opened
    waker.locals[_BEGUN] = config
    warned.begin()
    leak_watch.begin(waker, config)
    if config.admin == "on" and _ADMIN not in waker.locals:
        waker.locals[_ADMIN] = None  # not yet
        timer = waker.call_at(waker.now() + _SOON_SECONDS, partial(_begin_endpoint, waker))
        waker.at_loop_end(timer.cancel, lambda _patient: timer.cancel())


def _begin_endpoint(waker: Waker) -> None:
    waker.locals[_ADMIN] = Beside(
        waker, partial(_prepare, waker.name), partial(_adopt, waker), discard=_discard, after=_tidy
    )


def _prepare(loop: str) -> Any:
    """In a thread: the module, and its files. None: there is no endpoint."""
    try:
        return importlib.import_module(_ADMIN).prepare(loop)
    except OSError as error:  # no descriptor to read the module with
        _log.warning("this process cannot be seen by `aiordma stat`: %s", error)
        return None


def _adopt(waker: Waker, prepared: Any) -> Any:
    return None if prepared is None else importlib.import_module(_ADMIN).begin(waker, prepared)


def _discard(prepared: Any) -> None:
    if prepared is not None:
        prepared.discard()


def _tidy() -> None:
    """In a thread, when nothing waits for it any more: remove what killed processes have left."""
    with contextlib.suppress(OSError):  # no descriptor to read the module with, which _prepare() has said
        importlib.import_module(_ADMIN).tidy()
