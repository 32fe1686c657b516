"""Looking names up by the running event loop, also where a program has replaced how it does that."""

from __future__ import annotations

import asyncio
import functools
import socket
import sys
from typing import Any


async def getaddrinfo(
    host: str | bytes | None,
    port: int | str | bytes | None,
    *,
    family: int = 0,
    type: int = socket.SOCK_STREAM,
    proto: int = 0,
    flags: int = 0,
) -> list[Any]:
    """`socket.getaddrinfo()` beside the loop. Its IPv6 addresses have all four fields: without the last one a
    link-local address belongs to no interface.

    :raises OSError: the name is not known, or what a program has put in its place knows no address of it.
    """
    found = await _look_up(host, port, family, type, proto, flags)
    if not found:
        raise socket.gaierror(socket.EAI_NONAME, f"getaddrinfo({host!r}) returned empty list")
    return found


async def _look_up(
    host: str | bytes | None, port: int | str | bytes | None, family: int, type: int, proto: int, flags: int
) -> list[Any]:
    in_trio_task = getattr(sys.modules.get("trio.lowlevel"), "in_trio_task", None)
    if in_trio_task is not None and in_trio_task():
        import trio

        return await trio.socket.getaddrinfo(host, port, family, type, proto, flags)
    loop = asyncio.get_running_loop()
    if isinstance(host, str) and "%" in host:  # uvloop's own look-up drops the scope
        call = functools.partial(socket.getaddrinfo, host, port, family, type, proto, flags)
        return await loop.run_in_executor(None, call)
    return await loop.getaddrinfo(host, port, family=family, type=type, proto=proto, flags=flags)
