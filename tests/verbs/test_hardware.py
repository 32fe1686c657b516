"""What is read from sysfs about the kernel's devices, on made-up trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiordma.verbs.hardware import HardwareDevice, scan

if TYPE_CHECKING:
    from pathlib import Path


def make(
    root: Path, name: str, *, state: str = "4: ACTIVE", uverbs: str | None = "uverbs0", node: bool = True
) -> None:
    port = root / "sys" / "infiniband" / name / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    if uverbs is not None:
        entry = root / "sys" / "infiniband_verbs" / uverbs
        entry.mkdir(parents=True)
        (entry / "ibdev").write_text(f"{name}\n")
        if node:
            (root / "dev").mkdir(exist_ok=True)
            (root / "dev" / uverbs).touch()


def scanned(root: Path) -> list[HardwareDevice]:
    return scan(root / "sys", root / "dev")


def test_no_rdma_in_the_kernel(tmp_path: Path) -> None:
    assert scanned(tmp_path) == []


def test_usable_devices_come_by_name(tmp_path: Path) -> None:
    make(tmp_path, "rxe1", uverbs="uverbs1")
    make(tmp_path, "mlx5_0", uverbs="uverbs0")
    assert scanned(tmp_path) == [HardwareDevice("mlx5_0", ""), HardwareDevice("rxe1", "")]


@pytest.mark.parametrize(
    ("state", "uverbs", "node", "problem"),
    [
        ("1: DOWN", "uverbs0", True, "no active port"),
        ("4: ACTIVE", None, True, "ib_uverbs is not loaded"),
        ("4: ACTIVE", "uverbs0", False, "is not there"),
    ],
)
def test_a_device_that_cannot_be_used_says_why(
    tmp_path: Path, state: str, uverbs: str | None, node: bool, problem: str
) -> None:
    make(tmp_path, "mlx5_0", state=state, uverbs=uverbs, node=node)
    (found,) = scanned(tmp_path)
    assert problem in found.problem


def test_one_active_port_is_enough(tmp_path: Path) -> None:
    make(tmp_path, "mlx5_0", state="1: DOWN")
    second = tmp_path / "sys" / "infiniband" / "mlx5_0" / "ports" / "2"
    second.mkdir()
    (second / "state").write_text("4: ACTIVE\n")
    assert scanned(tmp_path) == [HardwareDevice("mlx5_0", "")]


def test_a_node_without_permission_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "mlx5_0")
    # Root may open anything, so the answer is given for it.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    (found,) = scanned(tmp_path)
    assert "no permission" in found.problem
