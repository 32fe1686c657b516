"""Which versions of the libraries the adapters work with, and the error that says so."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, version

__all__ = ["LEAST", "check_version", "unusable"]

#: The least version of each, by the name that it has on the package index. (The extras ask for the same.)
LEAST = {
    "aiohttp": "3.10",
    "grpclib": "0.4.7",
    "httpcore": "1.0",
    "httpx": "0.27",
    "hypercorn": "0.17",
    "nats-py": "2.9",
    "redis": "5.1",
    "uvicorn": "0.36",
    "valkey": "6.1",
    "websockets": "15",
}


def unusable(library: str) -> ImportError:
    """The error for an adapter that cannot import what it needs of `library`."""
    extra = library.removesuffix("-py")
    text = f"aiordma.integrations.{extra} works with {library} {LEAST[library]} and newer; "
    installed = _installed(library)
    found = "it is not installed" if installed is None else f"this is {library} {installed}"
    kind = ModuleNotFoundError if installed is None else ImportError
    return kind(f"{text}{found}: pip install 'aiordma[{extra}]'", name=extra)


def check_version(library: str) -> None:
    """For an adapter that could import all it needs, or needs nothing: an old version fails later.

    :raises ImportError: it is an old version.
    """
    installed = _installed(library)
    if installed is not None and _release(installed) < _release(LEAST[library]):
        raise unusable(library)


def _installed(library: str) -> str | None:
    # What the library says of itself needs no file: an adapter may be imported in a loop that runs.
    said = getattr(sys.modules.get(library.removesuffix("-py")), "__version__", None)
    if isinstance(said, str):
        return said
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _release(text: str) -> list[int]:
    """What counts of a version: `1.2rc1` and `1.2.post3` are 1.2 here."""
    found = re.match(r"\d+(\.\d+)*", text)
    return [int(part) for part in found.group().split(".")] if found else []
