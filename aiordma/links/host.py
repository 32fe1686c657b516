"""Where a process is, in 16 bytes: by it two ends see whether their software devices can share memory."""

from __future__ import annotations

import hashlib
import os
from typing import Literal

from ..errors import Code, NegotiationError

_KIND_SOFT, _KIND_DEVICE = 1, 2
#: The kind of device, with the layout of its shared memory, counted from the first one (four bits); then
#: digests of the boot, of the network namespace in it, and of the user in that.
_BOOT, _NAMESPACE = slice(1, 7), slice(7, 12)
_SAME_USER = slice(1, 16)
_FIRST_LAYOUT = 0x53524C33
_BOOT_ID, _NET = "/proc/sys/kernel/random/boot_id", "/proc/self/ns/net"


def whereabouts() -> bytes:
    """Of this process, from files of /proc: what :func:`host_id` needs.

    :raises NegotiationError: there is no /proc.
    """
    try:
        boot = _read(_BOOT_ID).strip()
        namespace = str(os.stat(_NET).st_ino).encode()
    except OSError as error:
        raise NegotiationError(
            Code.CONFIGURATION,
            f"{error.filename} cannot be read ({error.strerror}), by which two ends see whether they are on "
            "one host: mount /proc (a chroot or container needs its own: mount -t proc proc /proc)",
        ) from error
    user = str(os.getuid()).encode()
    return _digest(boot)[:6] + _digest(boot, namespace)[:5] + _digest(boot, namespace, user)[:4]


def _read(path: str) -> bytes:
    """A small file, without `builtins.open`, which a program's tests may have replaced."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def host_id(layout: int | None, here: bytes) -> bytes:
    """Equal for ends whose software devices can share memory.

    :param layout: of the memory that software devices share; None: it is another device.
    :param here: :func:`whereabouts`.
    """
    kind = _KIND_DEVICE if layout is None else _KIND_SOFT | (layout - _FIRST_LAYOUT & 15) << 4
    return bytes([kind]) + here


def check_reachable(own: bytes, peer: bytes, *, wire: Literal["off", "auto", "only"]) -> None:
    """Whether the devices of the two ends can reach each other.

    :param own, peer: their ids. :param wire: whether software devices use the network, or nothing else.
    :raises NegotiationError: they cannot; the code tells the peer why.
    """
    its_kind = peer[0] & 15 if peer else 0
    if own[0] & 15 != _KIND_SOFT:
        if its_kind == _KIND_SOFT:
            raise NegotiationError(
                Code.PEER_UNREACHABLE, "the peer has the software device, this end has not"
            )
        return
    if its_kind != _KIND_SOFT:
        raise NegotiationError(
            Code.PEER_UNREACHABLE, "this end has the software device, the peer has another kind"
        )
    if wire == "only":
        return
    if own[0] != peer[0] and own[_SAME_USER] == peer[_SAME_USER]:
        # They would try, and find out when no message comes. Packets are the same in all versions.
        raise NegotiationError(
            Code.VERSION_MISMATCH,
            "the two ends' software devices are of versions that cannot share memory: install the same one",
        )
    if own == peer or wire != "off":
        return
    if own[_BOOT] != peer[_BOOT]:
        raise NegotiationError(
            Code.PEER_UNREACHABLE,
            "this end has the software device, and the peer is on another host; "
            "SOFTDEV_WIRE=auto on both lets them talk over UDP",
        )
    same_namespace = own[_NAMESPACE] == peer[_NAMESPACE]
    raise NegotiationError(Code.OTHER_USER if same_namespace else Code.OTHER_NAMESPACE)


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"aiordma host" + b"\0".join(parts)).digest()
