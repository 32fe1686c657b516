"""What begins with the first connection of an event loop: the search for leaks, the memory of warnings, and
the admin endpoint.

The endpoint belongs to a higher layer. It is found by its name, as plug-ins are, so that nothing below it
depends on it.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

from .. import wake
from . import leak_watch, warned

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["begin"]

_log = logging.getLogger("aiordma.admin")

#: Module with a function ``begin(waker)``, which raises nothing.
_ADMIN = "aiordma.admin.endpoint"


def begin(config: Config) -> None:
    """Called when a loop opens an RDMA device, or finds none. Only the first call has an effect."""
    waker = wake.current()
    warned.begin()
    leak_watch.begin(waker, config)
    if config.admin == "on" and _ADMIN not in waker.locals:
        try:
            waker.locals[_ADMIN] = importlib.import_module(_ADMIN).begin(waker)
        except OSError as error:  # no descriptor to read the module with
            _log.warning("this process cannot be seen by `aiordma stat`: %s", error)
