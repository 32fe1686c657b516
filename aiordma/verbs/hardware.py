"""The RDMA devices the kernel has, read from sysfs.

libibverbs is not asked, on purpose: whether it will be interposed is decided with what is found here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_SYSFS = Path("/sys/class")
_NODES = Path("/dev/infiniband")


class HardwareDevice(NamedTuple):
    """One device of the kernel: a NIC, or one of its software drivers (rdma_rxe, siw)."""

    name: str
    #: Why it cannot be used, empty when it can.
    problem: str


def scan(sysfs: Path = _SYSFS, nodes: Path = _NODES) -> list[HardwareDevice]:
    """All devices, by name. A container may see a device in sysfs without being allowed to open it."""
    character_devices = {}
    for entry in _listdir(sysfs / "infiniband_verbs"):
        name = _read(sysfs / "infiniband_verbs" / entry / "ibdev")
        if name:
            character_devices[name] = nodes / entry
    return [
        HardwareDevice(name, _problem(sysfs / "infiniband" / name / "ports", character_devices.get(name)))
        for name in _listdir(sysfs / "infiniband")
    ]


def active_ports(name: str) -> list[int]:
    """Numbers of the device's ports that are active."""
    ports = _SYSFS / "infiniband" / name / "ports"
    numbers = [int(port) for port in _listdir(ports) if port.isdecimal()]
    return [n for n in sorted(numbers) if _read(ports / str(n) / "state").endswith("ACTIVE")]


def _problem(ports: Path, node: Path | None) -> str:
    if node is None:
        return "the kernel module ib_uverbs is not loaded"
    if not node.exists():
        return f"{node} is not there (pass it into the container)"
    if not os.access(node, os.R_OK | os.W_OK):
        return f"no permission for {node}"
    states = [_read(ports / port / "state") for port in _listdir(ports)]
    if not any(state.endswith("ACTIVE") for state in states):
        return "no active port"
    return ""


def _listdir(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
