"""Loads the software device before pyverbs, wherever in the program pyverbs is imported.

The software device must be loaded before pyverbs, but ``import aiordma`` should not load a library that the
program may never need. So importing aiordma only has pyverbs' import watched: when it is about to begin, the
software device is loaded if that is the device that would be used.
"""

from __future__ import annotations

import importlib
import os
import sys

from .. import importing

#: pyverbs' constants, and what that module looks for. They refer to no function of libibverbs.
_CONSTANTS = ("pyverbs", "pyverbs.enums", "pyverbs.enum", "pyverbs.collections")


def watch() -> None:
    """Begin to watch; no effect when pyverbs has been imported already."""
    if "pyverbs.device" not in sys.modules:
        importing.before("pyverbs", _load_device)


def stop() -> None:
    """Stop watching: the device has been chosen with more knowledge than the environment gives."""
    importing.forget("pyverbs")


def _load_device(name: str) -> None:
    if name in _CONSTANTS:
        return
    stop()
    if os.environ.get("AIORDMA_MODE") != "tcp":
        from .choice import preload  # not with aiordma itself: most imports of it need no device

        preload(os.environ.get("AIORDMA_DEVICE") or None)


def import_constants() -> None:
    """The half of pyverbs' import that needs no order: 6 to 9 ms, in which it makes classes of constants.

    :raises ImportError: there is no pyverbs, or not this module of it.
    """
    if os.environ.get("AIORDMA_VERBS", "auto") != "own":
        importlib.import_module("pyverbs.enums")
