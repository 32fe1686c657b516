"""What `aiordma doctor` says of a network: from files like those of the kernel, and of this machine."""

from __future__ import annotations

import os
import pwd
import socket
from typing import TYPE_CHECKING

import pytest

from aiordma.cli.doctor import network
from aiordma.verbs import hardware
from aiordma.verbs.hardware import HardwareDevice

if TYPE_CHECKING:
    from pathlib import Path

IPV4 = "0000:0000:0000:0000:0000:ffff:c0a8:0107"
LOCAL = "fe80:0000:0000:0000:5054:00ff:fe12:3456"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A card with one active port on interface eth7; the directory of that port."""
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    interface = tmp_path / "net" / "eth7"
    for directory in (port / "gids", port / "gid_attrs" / "types", port / "gid_attrs" / "ndevs", interface):
        directory.mkdir(parents=True)
    (interface / "mtu").write_text("1500\n")
    monkeypatch.setattr(network, "_SYSFS", tmp_path / "infiniband")
    monkeypatch.setattr(network, "_INTERFACES", tmp_path / "net")
    monkeypatch.setattr(hardware, "scan", lambda: [HardwareDevice("mlx5_0", "")])
    monkeypatch.setattr(hardware, "active_ports", lambda _: [1])
    return port


def give(port: Path, *table: tuple[str, str]) -> None:
    for slot, (gid, kind) in enumerate(table):
        (port / "gids" / str(slot)).write_text(gid)
        if kind:
            (port / "gid_attrs" / "types" / str(slot)).write_text(kind)
            (port / "gid_attrs" / "ndevs" / str(slot)).write_text("eth7")


def test_gids(card: Path) -> None:
    give(card, (LOCAL, "RoCE v2"), (EMPTY, ""), (IPV4, "RoCE v2"))
    found = network.gids()
    assert found.state == "ok"
    assert found.text == (
        "mlx5_0:1 has fe80::5054:ff:fe12:3456 (RoCE v2, slot 0), 192.168.1.7 (RoCE v2, slot 2)"
    )


def test_a_port_without_a_gid_or_with_old_ones_only(card: Path) -> None:
    give(card, (EMPTY, ""))
    assert network.gids().remedy == "mlx5_0:1 has no GID: give its interface an IP address"
    give(card, (IPV4, "IB/RoCE v1"))
    found = network.gids()
    assert found.state == "note"
    assert "without RoCE v2 packets cannot be routed" in found.remedy


def test_mtus(card: Path) -> None:
    give(card, (IPV4, "RoCE v2"))
    found = network.mtus()
    assert (found.state, found.text) == ("note", "eth7 has 1500, so RDMA has 1024")
    assert "ip link set eth7 mtu 4196" in found.remedy
    (network._INTERFACES / "eth7" / "mtu").write_text("9000")
    assert (network.mtus().state, network.mtus().text) == ("ok", "eth7 has 9000, so RDMA has 4096")


@pytest.mark.parametrize(
    ("shown", "state", "text"),
    [
        ({"prio_pfc": [False] * 3 + [True] + [False] * 4}, "ok", "eth7: PFC on priorities 3"),
        ({"prio_pfc": [False] * 8}, "note", "eth7: PFC on priorities none"),
        (None, "ok", "eth7: the kernel shows no PFC"),
        ([], "ok", "eth7: the kernel shows no PFC"),
        ({"prio_pfc": "on"}, "ok", "eth7: the kernel shows no PFC"),
    ],
)
def test_pauses(card: Path, shown: object, state: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    give(card, (IPV4, "RoCE v2"))
    monkeypatch.setattr(network, "_dcb", lambda *_: shown)
    found = network.lossless()
    assert found.state == state
    assert found.text == f"aiordma sends DSCP 46; {text}"
    assert ("drops RoCE's packets" in found.remedy) == (state == "note")


def test_who_has_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("::1", 0))
        monkeypatch.setattr(network, "_PORT", holder.getsockname()[1])
        found = network.udp_port()
        assert pwd.getpwuid(os.getuid()).pw_name in found.text
        assert "the software device does not use it (SOFTDEV_WIRE=off)" in found.text
        monkeypatch.setenv("SOFTDEV_WIRE", "auto")
        assert "a second software device shares it" in network.udp_port().text
        monkeypatch.setattr(hardware, "scan", lambda: [HardwareDevice("rxe0", "")])
        assert network.udp_port().state == "note"
    assert "is free (SOFTDEV_WIRE=auto)" in network.udp_port().text


def test_namespaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = network.namespaces()
    assert found.state == "ok"
    assert f"network namespace {os.stat('/proc/self/ns/net').st_ino}, user " in found.text
    monkeypatch.setattr(network, "_PROC", tmp_path)
    assert network.namespaces().remedy.startswith("mount /proc")
