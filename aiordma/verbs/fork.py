"""Device objects and fork().

A forked child shares its parent's device files. If its garbage collector destroyed the copies of the parent's
pyverbs objects, it would destroy the parent's QPs and regions. So the child keeps them, untouched, for ever.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, TypeVar

_T = TypeVar("_T")
_objects: weakref.WeakSet[Any] = weakref.WeakSet()


def protect(obj: _T) -> _T:
    """Have a forked child leave ``obj`` (a pyverbs object) alone. Returns it."""
    _objects.add(obj)
    return obj


def _immortalise() -> None:
    for obj in list(_objects):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(obj))
    _objects.clear()


os.register_at_fork(after_in_child=_immortalise)
