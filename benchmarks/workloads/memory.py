"""The cost of an idle stream in each process: resident memory of many open streams, divided.

Every stream has done one round trip, so memory allocated on first use is included. On the software device
rings are shared memory and counted separately: "anonymous" is the cost of a stream beyond its rings.
"""

from __future__ import annotations

from array import array
from typing import Any

from ..conversation import resident_bytes
from . import Bench

SIZE = 64
# Fill pools and free lists before the first measurement, so that their growth is not attributed to streams.
WARM = 32


async def measure(bench: Bench) -> dict[str, Any]:
    count = 64 if bench.quick else 400
    control = await bench.connect()
    opened = []

    async def open_streams(how_many: int) -> None:
        for _ in range(how_many):
            connection = await bench.connect()
            await connection.start_echo(SIZE)
            await connection.ping(SIZE, 0.0, array("d"))
            opened.append(connection)

    await open_streams(WARM)
    server_before, client_before = await control.memory(), resident_bytes()
    await open_streams(count)
    server_after, client_after = await control.memory(), resident_bytes()
    for connection in opened:
        await connection.close()
    await control.close()

    def each(before: tuple[int, int], after: tuple[int, int], which: int) -> float:
        return (after[which] - before[which]) / count

    return {
        "streams": count,
        "client_anonymous_bytes": each(client_before, client_after, 0),
        "client_shared_bytes": each(client_before, client_after, 1),
        "server_anonymous_bytes": each(server_before, server_after, 0),
        "server_shared_bytes": each(server_before, server_after, 1),
    }
