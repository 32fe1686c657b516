"""What `aiordma doctor` looks at in the network of RDMA: GIDs, MTUs, UDP port 4791, namespaces, PFC."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config import Config
from ...verbs import hardware
from .findings import note, ok

if TYPE_CHECKING:
    from .findings import Finding

#: Of RoCEv2.
_PORT = 4791
#: An RDMA MTU with RoCEv2's headers (IP, UDP, BTH, RETH, ICRC, at most) needs so much of the interface's.
_HEADERS = 100
_MTUS = (4096, 2048, 1024, 512, 256)
_SYSFS = Path("/sys/class/infiniband")
_INTERFACES = Path("/sys/class/net")
_PROC = Path("/proc")
_PATIENCE_S = 5


def gids() -> Finding:
    """The addresses of the kernel's devices."""
    found, without = [], []
    for device in hardware.scan():
        for port in hardware.active_ports(device.name):
            table = _gid_table(device.name, port)
            found.append(f"{device.name}:{port} has {', '.join(table) or 'none'}")
            if not table:
                without.append(f"{device.name}:{port}")
    if not found:
        return ok("no port of the kernel's is active; the software device makes its own")
    text = "; ".join(found)
    if without:
        return note(text, f"{', '.join(without)} has no GID: give its interface an IP address")
    if all("RoCE v2" not in each and "RoCE v1" in each for each in found):
        return note(text, f"{text}: without RoCE v2 packets cannot be routed; see the card's driver")
    return ok(text)


def mtus() -> Finding:
    """The MTU of each interface under a device of the kernel, and the RDMA MTU that fits into it."""
    texts, small = [], []
    for name in _interfaces():
        size = int(_read(_INTERFACES / name / "mtu") or 0)
        fits = next((mtu for mtu in _MTUS if mtu + _HEADERS <= size), 256)
        texts.append(f"{name} has {size}, so RDMA has {fits}")
        if fits < _MTUS[0]:
            small.append(name)
    if not texts:
        return ok("no interface belongs to a device of the kernel; the software device has 4096 on one host")
    if small:
        remedy = f"ip link set {small[0]} mtu {_MTUS[0] + _HEADERS}, and the same in the switches"
        return note("; ".join(texts), f"for the largest RDMA MTU: {remedy}")
    return ok("; ".join(texts))


def udp_port() -> Finding:
    """Who has the port of RoCEv2: the kernel's rxe, another program, or none."""
    wire = _config().soft_wire
    holders = [_user(uid) for table in ("udp", "udp6") for uid in _holders(_PROC / "net" / table)]
    if not holders:
        return ok(f"UDP {_PORT} is free (SOFTDEV_WIRE={wire})")
    text = f"UDP {_PORT} is in use by a program of {', '.join(sorted(set(holders)))}, or by the kernel's rxe"
    if wire == "off":
        return ok(f"{text}; the software device does not use it (SOFTDEV_WIRE=off)")
    if hardware.scan():
        return note(text, f"{text}: where it is rxe, use that device, or SOFTDEV_WIRE=off")
    return ok(f"{text}; a second software device shares it")


def namespaces() -> Finding:
    """Which ends can share memory with this one."""
    user = _user(os.getuid())
    try:
        mine = os.stat(_PROC / "self/ns/net").st_ino
    except OSError as error:
        return note(f"{error.filename}: {error.strerror}", "mount /proc: ends find each other by it")
    where = f"network namespace {mine}, user {user}"
    try:
        first = os.stat(_PROC / "1/ns/net").st_ino
    except OSError:
        known = "whether it is the host's cannot be seen by this user"
    else:
        known = "that of process 1" if first == mine else "not that of process 1"
    return ok(f"{where} ({known}); the software device shares memory with ends of both")


def lossless() -> Finding:
    """DSCP of aiordma's packets, and the priorities that the interfaces pause instead of dropping."""
    dscp = _config().traffic_class >> 2
    names = _interfaces()
    if not names:
        return ok(f"aiordma sends DSCP {dscp}; no interface belongs to a device of the kernel")
    texts, lossy = [f"aiordma sends DSCP {dscp}"], []
    for name in names:
        paused = pfc_priorities(_dcb("pfc", name))
        if paused is None:
            texts.append(f"{name}: the kernel shows no PFC")
            continue
        texts.append(f"{name}: PFC on priorities {', '.join(map(str, paused)) or 'none'}")
        if not paused:
            lossy.append(name)
    if lossy:
        plan = "`aiordma fabric` plans a lossless class"
        return note("; ".join(texts), f"{', '.join(lossy)} drops RoCE's packets when full: {plan}")
    return ok("; ".join(texts))


def pfc_priorities(shown: Any) -> list[int] | None:
    """Priorities with PFC of what ``dcb -j pfc show`` printed; None: it shows none."""
    switches = shown.get("prio_pfc") if isinstance(shown, dict) else None
    if not isinstance(switches, list):
        return None
    return [priority for priority, on in enumerate(switches) if on is True]


def _config() -> Config:
    try:
        return Config.from_env()
    except ValueError:  # the step "settings" says it
        return Config()


def _dcb(what: str, interface: str) -> Any:
    """What iproute2's dcb prints about it; None: nothing."""
    tool = shutil.which("dcb") or shutil.which("dcb", path="/usr/sbin:/sbin")
    if tool is None:
        return None
    command = [tool, "-j", what, "show", "dev", interface]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=True)
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _gid_table(device: str, port: int) -> list[str]:
    where = _SYSFS / device / "ports" / str(port)
    table = []
    for slot in sorted(_names(where / "gids"), key=int):
        words = _read(where / "gids" / slot)
        if words.replace(":", "").strip("0"):
            kind = _read(where / "gid_attrs" / "types" / slot)
            table.append(f"{_short(words)} ({kind or 'no type'}, slot {slot})")
    return table


def _short(words: str) -> str:
    raw = bytes.fromhex(words.replace(":", ""))
    if raw[:12] == bytes(10) + b"\xff\xff":
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    return socket.inet_ntop(socket.AF_INET6, raw)


def _interfaces() -> list[str]:
    """Of the kernel's devices with an active port."""
    found = []
    for device in hardware.scan():
        for port in hardware.active_ports(device.name):
            where = _SYSFS / device.name / "ports" / str(port) / "gid_attrs" / "ndevs"
            found += [_read(where / slot) for slot in sorted(_names(where))]
    return list(dict.fromkeys(name for name in found if name))


def _holders(table: Path) -> list[int]:
    """Users of the sockets that are bound to the port."""
    lines = _read(table).splitlines()[1:]
    fields = [line.split() for line in lines]
    return [int(each[7]) for each in fields if len(each) > 7 and int(each[1].rpartition(":")[2], 16) == _PORT]


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # also EINVAL, of an empty slot
        return ""
