"""The set-up of a host for SMC's TCP option: the kernel's program, attached to all processes, and its map.

Both are kept by a small file system of BPF objects of its own. (Others, systemd's among them, are closed to
ordinary users.) They last until they are taken back, or the host is booted.
"""

from __future__ import annotations

import contextlib
import ctypes
import grp
import os
import re
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ...negotiation.smc_map import PINNED_AT
from ...negotiation.sockops import SynProgram, open_pinned

if TYPE_CHECKING:
    from collections.abc import Iterator

MAP = Path(PINNED_AT)
"""The map's name."""
_DETACH = 2
#: The first Linux whose programs of this kind write options of TCP.
_LEAST_LINUX = (5, 10)
#: What it takes to load and attach the program, and to mount its file system, by number.
_CAPABILITIES = {39: "CAP_BPF", 12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN"}
_UNIT = """\
[Unit]
Description=SMC's TCP option for programs with aiordma
After=local-fs.target
Before=network.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={command} smcr enable{group}
ExecStop={command} smcr disable

[Install]
WantedBy=multi-user.target
"""


def find_cgroup() -> Path:
    """The root of cgroup version 2.

    :raises LookupError: it is not mounted.
    """
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    raise LookupError("cgroup version 2 is not mounted: mount -t cgroup2 none /sys/fs/cgroup")


@contextlib.contextmanager
def _root() -> Iterator[Path]:
    """The root of cgroup version 2. Where it is not mounted (``ip netns exec`` mounts /sys anew), it is for a
    moment. What is attached to it stays.

    :raises OSError: it cannot be mounted, either.
    """
    try:
        yield find_cgroup()
        return
    except LookupError:
        place = tempfile.mkdtemp(prefix="aiordma-cgroup2-")
    try:
        _libc("mount", b"none", os.fsencode(place), b"cgroup2", 0, None)
        try:
            yield Path(place)
        finally:
            _libc("umount2", os.fsencode(place), _DETACH)
    finally:
        os.rmdir(place)


def enable(cgroup: Path | None, group: str | None) -> None:
    """Load the program, attach it to the processes below ``cgroup``, and keep it.

    :param cgroup: None: all processes.
    :param group: whose members may use it; None: root alone.
    :raises FileExistsError: that is so already. :raises OSError: no privilege, or an older kernel.
    :raises LookupError: there is no such group.
    """
    if MAP.exists():
        raise FileExistsError(
            f"{MAP} is there: the host is set up; to set it up otherwise, aiordma smcr disable first"
        )
    gid = None if group is None else _number_of(group)
    MAP.parent.mkdir(mode=0o755, exist_ok=True)
    _mount(MAP.parent)
    try:
        with _root() if cgroup is None else contextlib.nullcontext(cgroup) as place:
            program = SynProgram(str(place))
            try:
                program.keep(str(MAP), str(MAP.with_name("link")))
            finally:
                program.close()
        if gid is not None:
            os.chown(MAP, -1, gid)
            MAP.chmod(0o660)
    except BaseException:
        disable()
        raise


def _number_of(group: str) -> int:
    """:raises LookupError: there is none."""
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise LookupError(
            f"there is no group {group}: name one of the user whose programs use it (id -gn), or make it: "
            f"groupadd --system {group}, and usermod -aG {group} USER"
        ) from None


def bounds() -> str:
    """Where the set-up that this process has made is not seen, in words; empty: nowhere."""
    try:
        own, of_host = (os.readlink(f"/proc/{process}/ns/mnt") for process in ("self", "1"))
    except OSError:
        return ""
    if own == of_host:
        return ""
    return (
        "this command has mounts of its own (ip netns exec, a container): programs beside it do not find the "
        "map, which ends with it. On the host, or by nsenter --net, it is for all"
    )


def disable() -> None:
    """Take it back, for processes that run, too. Idempotent. :raises OSError: no privilege."""
    if not MAP.parent.exists():
        return
    for path in (MAP.with_name("link"), MAP):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody looks into it
        _libc("umount2", os.fsencode(MAP.parent), _DETACH)
    with contextlib.suppress(OSError):
        MAP.parent.rmdir()


def problem() -> str:
    """Why this user's programs cannot use it, in words; empty: they can."""
    if not os.path.lexists(MAP):
        return (
            f"the host is not set up (aiordma smcr enable, as root), or {MAP.parent} is not among the mounts "
            "of this process (a container, ip netns exec)"
        )
    try:
        os.close(open_pinned(str(MAP)))
    except OSError as error:
        if isinstance(error, PermissionError):
            return f"{MAP} is not open to this user: {_who_may()}"
        return str(error)
    return ""


def _who_may() -> str:
    """Who may open the map, and what others can do."""
    again = "aiordma smcr disable, then enable --group with a group of this user, as root"
    number = MAP.stat().st_gid
    if number == 0:
        return f"it is for root alone ({again})"
    try:
        name = grp.getgrgid(number).gr_name
    except KeyError:  # a container has other names
        name = str(number)
    if number in (os.getegid(), *os.getgroups()):  # something else forbids it
        return f"it is for the group {name}, and bpf(2) is refused: CAP_BPF, or a filter of system calls"
    return f"it is for the group {name}: usermod -aG {name} USER and a new login, or {again}"


def obstacles() -> list[str]:
    """Why :func:`enable` would fail in this process, each with what to do."""
    found = []
    release = os.uname().release
    if (version := _version(release)) is not None and version < _LEAST_LINUX:
        found.append(f"Linux {release} is too old for SMC's TCP option: it takes 5.10")
    if not _has_cgroups():
        found.append("this kernel has no cgroup version 2 (cgroup2 in /proc/filesystems)")
    if os.geteuid() == 0 and (missing := _missing_capabilities()):
        found.append(
            f"root has no {', '.join(missing)} here (in a container, perhaps): run aiordma smcr enable on "
            f"the host, and give containers {MAP.parent}"
        )
    return found


def _has_cgroups() -> bool:
    try:
        return "cgroup2" in Path("/proc/filesystems").read_text(encoding="utf-8").split()
    except OSError:
        return True


def _version(release: str) -> tuple[int, ...] | None:
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def _missing_capabilities() -> list[str]:
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return []
    effective = re.search(r"(?m)^CapEff:\s*([0-9a-f]+)", status)
    has = int(effective[1], 16) if effective else -1
    return [name for number, name in _CAPABILITIES.items() if not has >> number & 1]


def unit(command: str, group: str | None) -> str:
    """A unit of systemd that sets the host up at each boot.

    :param command: how to call aiordma.
    """
    return _UNIT.format(command=command, group="" if group is None else f" --group {shlex.quote(group)}")


def _mount(place: Path) -> None:
    _libc("mount", b"bpf", os.fsencode(place), b"bpf", 0, b"mode=0755")


def _libc(function: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
