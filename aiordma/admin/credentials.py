"""Who is at the other end of a Unix socket."""

from __future__ import annotations

import socket
import struct

_CREDENTIALS = struct.Struct("iII")


def credentials(sock: socket.socket) -> tuple[int, int]:
    """Process id and user id, as the kernel saw them when it connected or listened. :raises OSError:"""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid
