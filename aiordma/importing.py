"""What is done before or after a program imports a module: one finder for all of aiordma.

It finds no module of its own. It stays among the import system's finders when its work is done: removing one
while the import system iterates over them would make it skip the next one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .running import is_loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _Finder:
    """The first of ``sys.meta_path``, as far as nothing comes before it later."""

    def __init__(self) -> None:
        #: By top-level package: called with the name of the module that is about to be imported.
        self.before: dict[str, Callable[[str], None]] = {}
        #: By module: called with it, complete.
        self.after: dict[str, Callable[[Any], None]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the others find, with a loader that calls what was wanted afterwards."""
        if self.before and (call := self.before.get(name.partition(".")[0])) is not None:
            call(name)
        if name not in self.after:
            return None
        for finder in list(sys.meta_path):
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self.after[name])  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """Loads as the loader that was found does, and then makes the call."""

    def __init__(self, loader: Any, call: Callable[[Any], None]) -> None:
        self._loader, self._call = loader, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._call(module)


_finder = _Finder()


def _listed() -> _Finder:
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    return _finder


def before(package: str, call: Callable[[str], None]) -> None:
    """Have ``call(name)`` made whenever this top-level package or a module in it is about to be imported."""
    _listed().before[package] = call


def after(module: str, call: Callable[[Any], None]) -> None:
    """Have ``call(module)`` made once this module is imported: now, if it has been."""
    present = sys.modules.get(module)
    # While it is being imported, its spec says so, and it is not complete.
    if present is not None and is_loaded(module):
        call(present)
    else:
        _listed().after[module] = call


def forget(*names: str) -> None:
    """Call nothing for these any more."""
    for name in names:
        _finder.before.pop(name, None)
        _finder.after.pop(name, None)
