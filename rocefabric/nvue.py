"""A switch's settings as commands of NVUE, which Cumulus Linux 5.6 and newer has.

Written by NVIDIA's public user guide and NVUE reference. What NVIDIA advises to leave to the switch, the
sizes of port buffers, follows from the length of the cable there; the planned headroom is a comment.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .targets import fraction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .targets import PortTarget, Target

__all__ = ["LEAST_LOSSY", "commands"]

#: Percent of the memory that lossy traffic keeps at least.
LEAST_LOSSY = 5
#: Between two looks of the watchdog.
_LOOK_MS = 100


def _maps(target: Target) -> Iterator[str]:
    yield "mapping default-global trust l3"
    for queue, dscps in target.dscps.items():
        for dscp in dscps:
            yield f"mapping default-global dscp {dscp} switch-priority {queue}"
    for queue in range(8):
        yield f"egress-queue-mapping default-global switch-priority {queue} traffic-class {queue}"


def _buffers(target: Target) -> Iterator[str]:
    lossy = max(LEAST_LOSSY, target.shares[target.other] // 2)
    yield f"traffic-pool default-lossless memory-percent {100 - lossy}"
    yield f"traffic-pool default-lossy memory-percent {lossy}"
    over, under = fraction(target.alpha)
    alpha = f"alpha_{over}" if under == 1 else f"alpha_{over}_{under}"
    yield f"advance-buffer-config default-global ingress-lossless-buffer shared-alpha {alpha}"


def _pauses(target: Target) -> Iterator[str]:
    for port in target.cables():
        for queue in target.lossless:
            yield f"pfc {port.cable} switch-priority {queue}"
        yield f"pfc {port.cable} tx enable"
        yield f"pfc {port.cable} rx enable"
        yield f"pfc {port.cable} cable-length {port.meters}"
    yield f"pfc-watchdog polling-interval {_LOOK_MS}"
    yield f"pfc-watchdog robustness {math.ceil(target.watchdog_ms / _LOOK_MS)}"


def _marks(target: Target) -> Iterator[str]:
    for port in target.kinds():
        for queue in target.lossless:
            begin = f"congestion-control {port.kind} traffic-class {queue}"
            yield f"{begin} ecn enable"
            yield f"{begin} red disable"
            yield f"{begin} min-threshold {port.kmin}"
            yield f"{begin} max-threshold {port.kmax}"
            yield f"{begin} probability {port.pmax}"


def _scheduling(target: Target) -> Iterator[str]:
    for queue, share in sorted(target.shares.items()):
        yield f"egress-scheduler roce traffic-class {queue} mode dwrr"
        yield f"egress-scheduler roce traffic-class {queue} bw-percent {share}"
    yield f"egress-scheduler roce traffic-class {target.cnp} mode strict"
    yield f"egress-shaper roce traffic-class {target.cnp} max-rate {target.cap_kbps}"


def _port(port: PortTarget) -> Iterator[str]:
    yield f"pfc profile {port.cable}"
    yield f"congestion-control profile {port.kind}"
    yield "egress-scheduler profile roce"
    yield "egress-shaper profile roce"
    yield "pfc-watchdog state enable"


def commands(target: Target) -> str:
    """A shell script of `nv set`; it applies nothing."""
    lines = [
        "#!/bin/sh",
        "# For Cumulus Linux 5.6 and newer. Look at `nv config diff`, then run `nv config apply`.",
        "set -e",
    ]
    for each in (_maps, _buffers, _pauses, _marks, _scheduling):
        lines += [f"nv set qos {line}" for line in each(target)]
    for port in target.cables():
        lines.append(f"# {port.cable}: the plan's headroom is {port.headroom} bytes for each lossless class.")
    for port in target.ports:
        lines += [f"nv set interface {port.name} qos {line}" for line in _port(port)]
    return "\n".join(lines) + "\n"
