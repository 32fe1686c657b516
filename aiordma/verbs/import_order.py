"""Loads the software device before pyverbs, wherever in the program pyverbs is imported.

The software device must be loaded before pyverbs, but ``import aiordma`` should not load a library that the
program may never need. So importing aiordma only adds a watcher to the import system's finders. The watcher
never finds a module; when pyverbs is about to be imported, it loads the software device if that is the device
that would be used.
"""

from __future__ import annotations

import importlib
import os
import sys

#: pyverbs' constants, and what that module looks for. They refer to no function of libibverbs.
_CONSTANTS = ("pyverbs", "pyverbs.enums", "pyverbs.enum", "pyverbs.collections")


class _Watcher:
    """A finder (``sys.meta_path``) that never finds anything.

    It stays there when its work is done: removing a finder while the import system iterates over the list
    would make it skip the next one.
    """

    active = True

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if self.active and name.partition(".")[0] == "pyverbs" and name not in _CONSTANTS:
            self.active = False
            if os.environ.get("AIORDMA_MODE") != "tcp":
                from .choice import preload  # not with aiordma itself: most imports of it need no device

                preload(os.environ.get("AIORDMA_DEVICE") or None)


_watcher = _Watcher()


def watch() -> None:
    """Begin to watch; no effect when pyverbs has been imported already."""
    if "pyverbs.device" not in sys.modules and _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)


def stop() -> None:
    """Stop watching: the device has been chosen with more knowledge than the environment gives."""
    _watcher.active = False


def import_constants() -> None:
    """The half of pyverbs' import that needs no order: 6 to 9 ms, in which it makes classes of constants.

    :raises ImportError: there is no pyverbs, or not this module of it.
    """
    if os.environ.get("AIORDMA_VERBS", "auto") != "own":
        importlib.import_module("pyverbs.enums")
