"""The kernel's own SMC-R: AF_SMC sockets, and proof that they did not fall back to TCP.

From Linux' include/uapi/linux/smc.h and smc_diag.h (6.12). :func:`allow_v2` needs root, once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

AF_SMC = 43
_NETLINK_SOCK_DIAG, _NETLINK_GENERIC = 4, 16
_REQUEST, _ACK, _DUMP = 1, 4, 0x300
_ERROR, _DONE = 2, 3
_SOCK_DIAG_BY_FAMILY = 20
_CTRL_ID, _CTRL_GETFAMILY = 16, 3
_SMC_ADD_UEID = 10
_PNETID_ADD = 2
#: Mode of a socket: smc_diag_msg.diag_mode.
_MODES = {0: "SMC-R", 1: "TCP", 2: "SMC-D"}
_LISTEN = 10


def smc_socket() -> socket.socket:
    """A stream socket of the kernel's SMC. Python uses IPv4 addresses with it, as the kernel does."""
    made = socket.socket(AF_SMC, socket.SOCK_STREAM, 0)
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=made.detach())


def allow_v2(name: str = "AIORDMA-TEST-EID") -> None:
    """Set an enterprise id on this host: without one the kernel offers no SMC-Rv2, and RoCEv2 needs v2.

    :raises OSError: not root, or a kernel without SMC.
    """
    family = _family("SMC_GEN_NETLINK")
    body = struct.pack("<BBH", _SMC_ADD_UEID, 1, 0) + _attribute(1, name.ljust(32).encode() + b"\0")
    with contextlib.suppress(FileExistsError):
        list(_ask(_NETLINK_GENERIC, family, body, _ACK))


def name_networks() -> None:
    """Say of each RDMA port which interface is on its network, as Linux before 6.12 has to be told."""
    family = _family("SMC_PNETID")
    for number, device in enumerate(sorted(Path("/sys/class/infiniband").iterdir())):
        interface = (device / "ports/1/gid_attrs/ndevs/0").read_text(encoding="ascii").strip()
        names = f"NET{number}", interface, device.name
        body = struct.pack("<BBH", _PNETID_ADD, 1, 0)
        for kind, name in enumerate(names, 1):
            body += _attribute(kind, name.encode() + b"\0")
        with contextlib.suppress(FileExistsError):
            list(_ask(_NETLINK_GENERIC, family, body + _attribute(4, b"\1"), _ACK))


def modes(port: int) -> set[str]:
    """Return what the connected SMC sockets with local or remote ``port`` use: "SMC-R" or "TCP"."""
    found = set()
    request = struct.pack("<BBBB", AF_SMC, 0, 0, 0x1F) + bytes(48)
    for message in _ask(_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, request, _DUMP):
        _, state, mode, _ = struct.unpack_from("<BBBB", message)
        if state != _LISTEN and port in struct.unpack_from(">HH", message, 4):
            found.add(_MODES.get(mode, str(mode)))
    return found


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("<HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _family(name: str) -> int:
    body = struct.pack("<BBH", _CTRL_GETFAMILY, 1, 0) + _attribute(2, name.encode() + b"\0")
    for message in _ask(_NETLINK_GENERIC, _CTRL_ID, body, 0):
        at = 4
        while at + 4 <= len(message):
            length, kind = struct.unpack_from("<HH", message, at)
            if kind == 1:
                return int(struct.unpack_from("<H", message, at + 4)[0])
            at += max(4, (length + 3) & ~3)
    raise OSError(errno.ENOENT, f"the kernel has no netlink family {name}: is the module smc loaded?")


def _ask(protocol: int, kind: int, body: bytes, flags: int) -> Iterator[bytes]:
    """Return the responses to one netlink request, without headers."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as asked:
        asked.bind((0, 0))
        asked.settimeout(10)
        asked.send(struct.pack("<IHHII", 16 + len(body), kind, _REQUEST | flags, 1, 0) + body)
        while True:
            data = asked.recv(65536)
            while data:
                length, answer, _, _, _ = struct.unpack_from("<IHHII", data)
                message, data = data[16:length], data[(length + 3) & ~3 :]
                if answer == _ERROR:
                    code = -struct.unpack_from("<i", message)[0]
                    if code:
                        raise OSError(code, os.strerror(code))
                    return
                if answer == _DONE:
                    return
                yield message
            if not flags:
                return
