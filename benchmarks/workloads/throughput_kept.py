"""As `throughput`, but both processes keep freed memory. Runs last: this cannot be undone."""

from __future__ import annotations

from typing import Any

from ..conversation import keep_freed_memory
from . import Bench
from .throughput import flood


async def measure(bench: Bench) -> dict[str, Any]:
    connection = await bench.connect()
    await connection.keep_freed_memory()
    keep_freed_memory()
    found = await flood(connection, bench.slice_seconds)
    await connection.close()
    return found
