"""Device objects at the two moments when Python's garbage collector must not destroy them.

After fork(), the child shares its parent's device files. If its collector destroyed the copies of the
parent's verbs objects, it would destroy the parent's QPs and regions. And when an interpreter ends with
objects still open, its collector takes them in any order, where verbs allow only one (a PD goes after its QPs
and regions); the kernel, and the software device's peers, clean up after a process by themselves. So they are
kept both times.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import weakref
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("aiordma.link")


class _Closes(Protocol):
    def close(self) -> object: ...


_T = TypeVar("_T", bound=_Closes)
_objects: weakref.WeakSet[Any] = weakref.WeakSet()


def protect(obj: _T) -> _T:
    """Have a forked child, and the interpreter's end, leave ``obj`` (of a binding) alone. Returns it.

    :raises MemoryError: ``obj`` is closed then: the caller frees the memory under it.
    """
    try:
        _objects.add(obj)
    except BaseException:
        obj.close()
        raise
    return obj


def release_all(what: str, *steps: Callable[[], object]) -> None:
    """Run every step of a release, in order, also after one has failed.

    The caller could not handle a failure, and one resource that cannot be released must not keep the others.
    Failures are logged.
    """
    for step in steps:
        try:
            step()
        except Exception:
            _log.exception("%s was not released completely", what)


def _immortalise() -> None:
    for obj in list(_objects):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(obj))
    _objects.clear()


os.register_at_fork(after_in_child=_immortalise)
atexit.register(_immortalise)
