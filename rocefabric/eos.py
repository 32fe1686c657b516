"""A switch's settings as configuration of Arista EOS, for switches with Trident and Tomahawk chips.

Written by what is public of EOS' commands: the user manual, and the schemas of Arista's AVD. EOS has one
headroom for all ports of a profile of the memory: it is the largest that a port needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .targets import fraction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .targets import PortTarget, Target

__all__ = ["commands"]


def _global(target: Target) -> Iterator[str]:
    for queue, dscps in target.dscps.items():
        yield f"qos map dscp {' '.join(map(str, dscps))} to traffic-class {queue}"
    for queue in range(8):
        yield f"qos map traffic-class {queue} to uc-tx-queue {queue}"
    over, under = fraction(target.alpha)
    yield "!"
    yield "platform trident mmu queue profile ROCE"
    yield f"   ingress threshold {over}" + (f"/{under}" if under > 1 else "")
    yield f"   ingress headroom {max(port.headroom for port in target.ports)}"
    yield "!"
    yield "platform trident mmu queue profile ROCE apply"
    yield "!"
    seconds = target.watchdog_ms / 1000
    yield "priority-flow-control pause watchdog action drop"
    yield f"priority-flow-control pause watchdog default timeout {seconds:g}"
    yield f"priority-flow-control pause watchdog default recovery-time {2 * seconds:g}"
    # EOS wants it at most half of both.
    yield f"priority-flow-control pause watchdog default polling-interval {seconds / 2:g}"


def _profile(target: Target, port: PortTarget) -> Iterator[str]:
    yield "!"
    yield f"qos profile {port.kind.upper()}"
    yield "   qos trust dscp"
    yield "   priority-flow-control on"
    for queue in target.lossless:
        yield f"   priority-flow-control priority {queue} no-drop"
    yield "   priority-flow-control pause watchdog"
    for queue, share in sorted(target.shares.items()):
        yield "   !"
        yield f"   uc-tx-queue {queue}"
        yield "      no priority"
        yield f"      bandwidth percent {share}"
        if queue in target.lossless:
            yield (
                f"      random-detect ecn minimum-threshold {port.kmin} bytes maximum-threshold {port.kmax} "
                f"bytes max-mark-probability {port.pmax} weight 0"
            )
    yield "   !"
    yield f"   uc-tx-queue {target.cnp}"
    yield "      priority strict"
    yield f"      shape rate {target.cap_kbps} kbps"


def commands(target: Target) -> str:
    """For `configure session`: look at `show session-config diffs` before `commit`."""
    lines = ["! For `configure session`. Look at `show session-config diffs` before `commit`."]
    lines += _global(target)
    for port in target.kinds():
        lines += _profile(target, port)
    for port in target.ports:
        lines += ["!", f"interface {port.name}", f"   service-profile {port.kind.upper()}"]
    return "\n".join([*lines, "!"]) + "\n"
