"""A program for tests: shows the port of the software device and its GIDs whenever a line arrives.

For the line ``wait`` it waits for the next event of the device, and shows nothing else.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import sys
from typing import Any

from pyverbs.device import Context

LONG = 60_000  # milliseconds, to end a hang


class Event(ctypes.Structure):
    """``struct ibv_async_event``."""

    _fields_ = (("element", ctypes.c_uint64), ("type", ctypes.c_int))


class Events:
    """Of the device, by a context of its own: pyverbs has no function for them that returns."""

    def __init__(self) -> None:
        self._verbs = verbs = ctypes.CDLL(None)
        verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
        verbs.ibv_open_device.restype = ctypes.c_void_p
        devices = verbs.ibv_get_device_list(None)
        self._context = ctypes.c_void_p(verbs.ibv_open_device(ctypes.c_void_p(devices[0])))
        # struct ibv_context: device, ops (32 functions), cmd_fd, async_fd
        self._fd = ctypes.c_int.from_address((self._context.value or 0) + 33 * 8 + 4).value
        os.set_blocking(self._fd, False)

    def wait(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        assert poll.poll(LONG), "no event"

    def take(self) -> list[int]:
        """Types of those that have come."""
        event, types = Event(), []
        while not self._verbs.ibv_get_async_event(self._context, ctypes.byref(event)):
            types.append(event.type)
            self._verbs.ibv_ack_async_event(ctypes.byref(event))
        return types


def address(entry: Any) -> str:
    raw = b"".join(
        half.to_bytes(8, sys.byteorder) for half in (entry.gid_subnet_prefix, entry.gid_interface_id)
    )
    ipv4 = raw[:12] == bytes(10) + b"\xff\xff"
    return socket.inet_ntop(socket.AF_INET if ipv4 else socket.AF_INET6, raw[12:] if ipv4 else raw)


def main() -> None:
    with Context(name="soft0") as context:
        events = Events()
        print("open", flush=True)
        for line in sys.stdin:
            if line == "wait\n":
                events.wait()
                print(json.dumps(events.take()), flush=True)
                continue
            port = context.query_port(1)
            gids = {entry.gid_index: address(entry) for entry in context.query_gid_table(64)}
            shown = {"mtu": 128 << port.active_mtu, "gids": gids, "state": port.state}
            print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
