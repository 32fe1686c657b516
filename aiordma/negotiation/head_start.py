"""The head start of a negotiation: how long a peer has to answer before a plain connection is opened.

A far server gets more time than a near one.
"""

from __future__ import annotations

import socket
import struct

__all__ = ["head_start_s"]

#: A Proposal's answer takes one round trip; the second contact on a link that the server has forgotten, two.
#: Twice that: the kernel has measured one round trip only, that of the SYN.
_ROUND_TRIPS = 4
#: Where `tcp_info` of Linux has the round trip time, in microseconds.
_RTT = struct.Struct("=68xI")


def head_start_s(sock: socket.socket, milliseconds: float) -> float:
    """Seconds for the answer of an unknown server.

    :param milliseconds: what a server has that is near; the round trips to this one are added.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT.size)
    except OSError:  # it is broken: then no answer comes
        info = b""
    microseconds: int = _RTT.unpack(info)[0] if len(info) == _RTT.size else 0
    return milliseconds / 1000 + _ROUND_TRIPS * microseconds / 1e6
