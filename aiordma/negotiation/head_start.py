"""The head start of a negotiation with an unknown peer.

A plain server may never answer a Proposal. So the client waits a moment for the answer, and then opens a
plain connection beside the first one: the user of a plain server hardly notices the attempt. A far server
gets more time than a near one.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..proto.events import Event
    from ..proto.handshake import ClientHandshake
    from .clc_io import Carrier, ClcIO

__all__ = ["head_start_s", "receive_or_connect"]

#: A Proposal's answer takes one round trip; the second contact on a link that the server has forgotten, two.
#: Twice that: the kernel has measured one round trip only, that of the SYN.
_ROUND_TRIPS = 4
#: Where `tcp_info` of Linux has the round trip time, in microseconds.
_RTT = struct.Struct("=68xI")


def head_start_s(sock: socket.socket, milliseconds: int) -> float:
    """Seconds for the answer of an unknown server.

    :param milliseconds: what a server has that is near; the round trips to this one are added.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT.size)
    except OSError:  # it is broken: then no answer comes
        info = b""
    microseconds: int = _RTT.unpack(info)[0] if len(info) == _RTT.size else 0
    return milliseconds / 1000 + _ROUND_TRIPS * microseconds / 1e6


async def receive_or_connect(
    io: ClcIO, handshake: ClientHandshake, head_start_s: float, connect: Callable[[], Awaitable[Carrier]]
) -> tuple[list[Event], Carrier | None]:
    """Wait for the answer; after the head start, open a plain connection at the same time.

    :returns: the answer's events; or none, and the plain connection, which was there before the answer.
    """
    with anyio.move_on_after(head_start_s):
        return await io.receive(handshake), None
    events: list[Event] = []
    with contextlib.ExitStack() as stack:
        plain: Carrier | None = None

        async def receive(scope: anyio.CancelScope) -> None:
            events.extend(await io.receive(handshake))
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive, tasks.cancel_scope)
            # If there is no second connection, the first one's answer or its time limit decides.
            with contextlib.suppress(OSError):
                plain = await connect()
                stack.callback(plain.close)
                tasks.cancel_scope.cancel()
        if plain is None or events:
            return events, None
        # On a busy loop both may be noticed late: what has arrived counts, not what was noticed first.
        if io.has_data():
            return await io.receive(handshake), None
        stack.pop_all()
        return [], plain
