"""Keeps the promise that aiordma may be imported long before it is used, and pyverbs in between.

The software device must be loaded before pyverbs, but ``import aiordma`` shall not load a library that nobody
may need. So importing aiordma only puts a watcher among the import system's finders: it finds nothing, and
the
moment anybody imports pyverbs it loads the software device, if that is the one that would be used.
"""

from __future__ import annotations

import os
import sys


class _Watcher:
    """A finder (``sys.meta_path``) that never finds anything.

    It stays there when its work is done: taking a finder away while the import system goes through the list
    would make it skip the next one.
    """

    active = True

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if self.active and name.partition(".")[0] == "pyverbs":
            self.active = False
            if os.environ.get("AIORDMA_MODE") != "tcp":
                from .backend import preload

                preload(os.environ.get("AIORDMA_DEVICE") or None)


_watcher = _Watcher()


def watch() -> None:
    """Begin to watch; without effect when it is too late, because pyverbs is there already."""
    if "pyverbs.device" not in sys.modules and _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)


def stop() -> None:
    """The choice has been made, by somebody who knows more than the environment."""
    _watcher.active = False
