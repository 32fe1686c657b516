"""Whether a program listens, seen without connecting to it: many test programs take one client only."""

from __future__ import annotations

import os
from pathlib import Path

#: State of a listening socket in /proc/net/tcp (include/net/tcp_states.h).
_LISTEN = "0A"


def listens(session: int) -> bool:
    """Whether a process of the session listens: on a TCP port, or by rdma_cm on the software device."""
    return any(_sockets(pid) & _listeners(pid) for pid in members(session))


def members(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.getsid(int(name)) == session and not _is_dead(name):
                found.append(int(name))
        except OSError:
            continue  # it has ended
    return found


def _is_dead(pid: str) -> bool:
    """It has ended, and its parent has not asked for its status yet."""
    return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0] in {"Z", "X"}


def _sockets(pid: int) -> set[str]:
    """Inodes of its sockets."""
    found: set[str] = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found  # it has ended
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            found.add(target[len("socket:[") : -1])
    return found


def _listeners(pid: int) -> set[str]:
    """Inodes of what listens in its network namespace, as far as programs are concerned."""
    tcp = [*_table(pid, "tcp"), *_table(pid, "tcp6")]
    found = {line[9] for line in tcp if len(line) > 9 and line[3] == _LISTEN}
    # softdev/src/cm/names.c: a listener's name ends in ".listen".
    return found | {line[6] for line in _table(pid, "unix") if len(line) > 7 and line[7].endswith(".listen")}


def _table(pid: int, name: str) -> list[list[str]]:
    try:
        text = Path(f"/proc/{pid}/net/{name}").read_text("ascii", "replace")
    except OSError:
        return []  # it has ended, or there is no IPv6
    return [line.split() for line in text.splitlines()[1:]]
