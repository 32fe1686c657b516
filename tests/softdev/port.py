"""A program for tests: shows the port of the software device and its GIDs whenever a line arrives."""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

from pyverbs.device import Context


def address(entry: Any) -> str:
    raw = b"".join(
        half.to_bytes(8, sys.byteorder) for half in (entry.gid_subnet_prefix, entry.gid_interface_id)
    )
    ipv4 = raw[:12] == bytes(10) + b"\xff\xff"
    return socket.inet_ntop(socket.AF_INET if ipv4 else socket.AF_INET6, raw[12:] if ipv4 else raw)


def main() -> None:
    with Context(name="soft0") as context:
        print("open", flush=True)
        for _line in sys.stdin:
            port = context.query_port(1)
            gids = {entry.gid_index: address(entry) for entry in context.query_gid_table(64)}
            shown = {"mtu": 128 << port.active_mtu, "gids": gids}
            print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
