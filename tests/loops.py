"""The event loops that the library runs on, as ``anyio.run`` wants them. Apart, so that the processes
of tests know them without pytest."""

from __future__ import annotations

from typing import Any

LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {}),
    "asyncio+uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}
