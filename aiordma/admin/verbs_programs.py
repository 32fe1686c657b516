"""Programs that have an RDMA device open, by aiordma or not: found in ``/proc``, as far as it may be read.

A kernel's device shows as an open ``/dev/infiniband/uverbsN``, the software device as memory of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import TYPE_CHECKING

from . import directory
from .messages import VerbsProgram

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

_SOFT = "/memfd:softdev-"
_NODE = re.compile(r"/dev/infiniband/(uverbs\d+)$")
#: Processes that are looked at, and descriptors of each.
_MOST, _MOST_FDS = 32_768, 65_536


def verbs_programs(known: Container[int], only: int | None = None) -> list[VerbsProgram]:
    """Those besides this process.

    :param known: process ids with aiordma.
    :param only: this process.
    """
    found = []
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    for pid in pids[:_MOST]:
        if pid == os.getpid() or only not in (None, pid):
            continue
        with contextlib.suppress(OSError):
            devices = sorted(set(_devices(pid)))
            if devices:
                found.append(VerbsProgram(pid, directory.user(pid) or 0, _name(pid), devices, pid in known))
    return found


def _devices(pid: int) -> Iterator[str]:
    """:raises OSError: it is another user's, or gone."""
    for fd in os.listdir(f"/proc/{pid}/fd")[:_MOST_FDS]:
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
            if target.startswith(_SOFT):
                yield "software device"
            node = _NODE.match(target)
            if node is not None and stat.S_ISCHR(os.stat(f"/proc/{pid}/fd/{fd}").st_mode):
                yield _ibdev_of(node[1])


def _ibdev_of(node: str) -> str:
    """The device's name, as ``ibv_devices`` prints it; else that of its node."""
    with contextlib.suppress(OSError), open(f"/sys/class/infiniband_verbs/{node}/ibdev") as file:
        return file.read().strip() or node
    return node


def _name(pid: int) -> str:
    with open(f"/proc/{pid}/comm", "rb") as file:
        return file.read().strip().decode("utf-8", "replace")
