"""What begins with the first connection of an event loop: the search for leaks, the memory of warnings, and
the admin endpoint.

The endpoint belongs to a higher layer. It is found by its name, as plug-ins are, so that nothing below it
depends on it. Its module and its files are prepared in a thread; the rest is done in the loop.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from typing import TYPE_CHECKING, Any

from ..wake.beside import Beside, LoopEndedError
from . import leak_watch, warned

if TYPE_CHECKING:
    from ..config import Config
    from ..wake.base import Waker

__all__ = ["Prepared", "begin", "begin_alone", "discard", "is_wanted", "prepare", "tidy"]

_log = logging.getLogger("aiordma.admin")

#: Module with three functions that raise nothing: ``prepare(loop_name)``, which may return None,
#: ``begin(waker, prepared)``, and ``tidy()``.
_ADMIN = "aiordma.admin.endpoint"

Prepared = Any
"""What :func:`prepare` has made: it has a ``close()``. None: there is no endpoint."""


def is_wanted(waker: Waker, config: Config) -> bool:
    """Whether the loop is to have an endpoint, and has none."""
    return config.admin == "on" and _ADMIN not in waker.locals


def prepare(loop: str) -> Prepared:
    """In a thread. Pass the result to :func:`begin` or to :func:`discard`.

    :param loop: name of the kind of loop.
    """
    try:
        return importlib.import_module(_ADMIN).prepare(loop)
    except OSError as error:  # no descriptor to read the module with
        _log.warning("this process cannot be seen by `aiordma stat`: %s", error)
        return None


def tidy() -> None:
    """In a thread, when nothing waits for it any more: remove what killed processes have left."""
    importlib.import_module(_ADMIN).tidy()


def discard(prepared: Prepared) -> None:
    """It is not needed after all."""
    if prepared is not None:
        prepared.close()


def begin(waker: Waker, config: Config, prepared: Prepared) -> None:
    """In the loop, which has an RDMA device or found none. Only the first call has an effect."""
    warned.begin()
    leak_watch.begin(waker, config)
    if prepared is None or _ADMIN in waker.locals:
        discard(prepared)
    else:
        waker.locals[_ADMIN] = importlib.import_module(_ADMIN).begin(waker, prepared)


async def begin_alone(waker: Waker, config: Config) -> None:
    """For a loop that finds no RDMA device: a look from outside must show that."""
    key = f"{_ADMIN} is prepared"
    if not is_wanted(waker, config):
        begin(waker, config, None)
    elif key not in waker.locals:
        waker.locals[key] = work = Beside(
            waker,
            lambda: prepare(waker.name),
            lambda made: begin(waker, config, made),
            discard=discard,
            after=tidy,
        )
        with contextlib.suppress(LoopEndedError):
            await work.wait()
