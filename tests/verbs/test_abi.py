"""Our copies of verbs constants against the header they were copied from, judged by the C compiler."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from aiordma.verbs import abi

if TYPE_CHECKING:
    from pathlib import Path

PREFIXES: dict[type, str] = {
    abi.QpState: "IBV_QPS_",
    abi.Access: "IBV_ACCESS_",
    abi.QpMask: "IBV_QP_",
    abi.Mtu: "IBV_",
    abi.PortState: "IBV_PORT_",
    abi.GidType: "IBV_GID_TYPE_",
    abi.EventType: "IBV_EVENT_",
}


def test_constants_are_those_of_the_header(tmp_path: Path) -> None:
    expected = {
        prefix + member.name: int(member)
        for enumeration, prefix in PREFIXES.items()
        for member in enumeration  # type: ignore[attr-defined]
        if member != abi.Access.NONE or enumeration is not abi.Access
    }
    expected["IBV_QPT_RC"] = abi.IBV_QPT_RC
    expected["IBV_LINK_LAYER_ETHERNET"] = abi.IBV_LINK_LAYER_ETHERNET
    prints = "".join(f'printf("{name} %d\\n", (int){name});' for name in expected)
    source = tmp_path / "constants.c"
    source.write_text(
        f"#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {{ {prints} return 0; }}\n"
    )
    program = tmp_path / "constants"
    subprocess.run(["cc", "-o", program, source], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    found = {name: int(value) for name, value in (line.split() for line in printed.splitlines())}
    assert found == expected


def test_mtu_sizes() -> None:
    assert {mtu.name: mtu.size for mtu in abi.Mtu} == {
        f"MTU_{size}": size for size in (256, 512, 1024, 2048, 4096)
    }
