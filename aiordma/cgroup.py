"""How much memory the kernel lets this process have: the limit of its cgroup, or of one around it.

In version 2 that is ``memory.max``, in version 1 ``memory.limit_in_bytes`` (cgroups(7); the kernel's
Documentation/admin-guide/cgroup-v2.rst, "Memory Interface Files"). In a container the process often sees its
cgroup as the root, or by a path that its mount does not have: each directory up to the mount's root is read.
"""

from __future__ import annotations

import os

MEMBERSHIP, MOUNT = "/proc/self/cgroup", "/sys/fs/cgroup"
#: What version 1 has in place of no limit is just below that: the largest multiple of a page.
_UNLIMITED = 1 << 62
#: Bytes that are read at a time.
_PART = 4096


def memory_limit(membership: str = MEMBERSHIP, mount: str = MOUNT) -> int | None:
    """Bytes, the least of all limits that hold for this process; None: none is known."""
    limits = []
    for line in _lines(membership):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += _upwards(mount, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _upwards(f"{mount}/memory", path, "memory.limit_in_bytes")
    return min(limits, default=None)


def _lines(path: str) -> list[str]:
    return [line for line in _text(path).splitlines() if line.count(":") >= 2]


def _upwards(mount: str, path: str, name: str) -> list[int]:
    """The limits of a cgroup and of those around it. One outside of the namespace has ``..`` in its path."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    texts = [_text(os.path.join(mount, *parts[:count], name)) for count in range(len(parts), -1, -1)]
    return [int(text) for text in texts if text.isdecimal() and 0 < int(text) < _UNLIMITED]


def _text(path: str) -> str:
    """What the kernel says in a file that is on no disk, so that reading cannot block.

    It may be read by an event loop, where the first connection is what imports aiordma. The descriptor says
    so, too: what looks for blocking calls in a program's loop (blockbuster) asks it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return b"".join(iter(lambda: os.read(descriptor, _PART), b"")).decode("ascii", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)
