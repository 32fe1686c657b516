"""A switch's settings as `set` commands of Junos, for switches of the QFX series with Broadcom's chips.

Written by Juniper's public guides to class of service. Junos has thresholds of marking in percents of what
a queue may hold, so small ones cannot be set: `fills` says what comes out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .targets import power

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .targets import PortTarget, Target

__all__ = ["MULTICAST", "commands", "fills", "partitions"]

#: Percent: Junos' least part for lossy traffic, and what multicast gets at the egress.
_LEAST, MULTICAST = 5, 5
#: Of the watchdog.
_LOOK_MS = 100
#: Of `dynamic-threshold`: the number of alpha 1; each step is a factor of two.
_ALPHA_ONE = 7


def partitions(target: Target) -> tuple[int, int, int]:
    """Percents of the ingress memory: headroom, lossless and lossy traffic."""
    headroom = math.ceil(100 * target.reserved / target.total)
    lossy = max(_LEAST, target.shares[target.other] // 2)
    return headroom, max(0, 100 - headroom - lossy), lossy


def fills(target: Target, port: PortTarget) -> tuple[int, int]:
    """Kmin and Kmax in percents of the memory that lossless queues share: whole ones, different ones."""
    queue = target.total * (100 - MULTICAST - partitions(target)[2]) / 100
    low = min(98, max(1, round(100 * port.kmin / queue)))
    return low, min(99, max(low + 1, round(100 * port.kmax / queue)))


def _classes(target: Target) -> Iterator[str]:
    for queue, dscps in target.dscps.items():
        more = f" no-loss pfc-priority {queue}" if queue in target.lossless else ""
        yield f"forwarding-classes class queue{queue} queue-num {queue}{more}"
        for dscp in dscps:
            yield (
                f"classifiers dscp roce forwarding-class queue{queue} loss-priority low "
                f"code-points {dscp:06b}"
            )


def _pauses(target: Target) -> Iterator[str]:
    for port in target.cables():
        begin = f"congestion-notification-profile {port.cable}"
        for queue in target.lossless:
            for dscp in target.dscps.get(queue, ()):
                yield f"{begin} input dscp code-point {dscp:06b} pfc"
            yield f"{begin} output ieee-802.1 code-point {queue:03b} flow-control-queue {queue}"
        yield f"{begin} input cable-length {port.meters}"
        yield f"{begin} pfc-watchdog poll-interval {_LOOK_MS}"
        yield f"{begin} pfc-watchdog detection {math.ceil(target.watchdog_ms / _LOOK_MS)}"
        yield f"{begin} pfc-watchdog recovery {2 * target.watchdog_ms}"


def _buffers(target: Target) -> Iterator[str]:
    headroom, lossless, lossy = partitions(target)
    alpha = power(target.alpha) + _ALPHA_ONE
    yield f"shared-buffer ingress buffer-partition lossless percent {lossless}"
    yield f"shared-buffer ingress buffer-partition lossless dynamic-threshold {alpha}"
    yield f"shared-buffer ingress buffer-partition lossless-headroom percent {headroom}"
    yield f"shared-buffer ingress buffer-partition lossy percent {lossy}"
    yield f"shared-buffer egress buffer-partition lossless percent {100 - MULTICAST - lossy}"
    yield f"shared-buffer egress buffer-partition lossy percent {lossy}"
    yield f"shared-buffer egress buffer-partition multicast percent {MULTICAST}"


def _scheduling(target: Target) -> Iterator[str]:
    for queue, share in sorted(target.shares.items()):
        if queue not in target.lossless:
            yield f"schedulers queue{queue} transmit-rate percent {share}"
    yield f"schedulers queue{target.cnp} priority strict-high"
    yield f"schedulers queue{target.cnp} shaping-rate {target.cap_kbps}k"
    for port in target.kinds():
        low, high = fills(target, port)
        yield f"drop-profiles {port.kind} interpolate fill-level {low} fill-level {high}"
        yield f"drop-profiles {port.kind} interpolate drop-probability 0 drop-probability {port.pmax}"
        for queue in target.lossless:
            begin = f"schedulers queue{queue}-{port.kind}"
            yield f"{begin} transmit-rate percent {target.shares[queue]}"
            yield f"{begin} explicit-congestion-notification"
            yield f"{begin} drop-profile-map loss-priority any protocol any drop-profile {port.kind}"
        for queue in target.dscps:
            own = f"queue{queue}-{port.kind}" if queue in target.lossless else f"queue{queue}"
            yield f"scheduler-maps {port.kind} forwarding-class queue{queue} scheduler {own}"


def _port(port: PortTarget) -> Iterator[str]:
    begin = f"interfaces {port.name}"
    yield f"{begin} congestion-notification-profile {port.cable}"
    yield f"{begin} scheduler-map {port.kind}"
    yield f"{begin} unit 0 classifiers dscp roce"


def commands(target: Target) -> str:
    """For `load set`: look at `show | compare`, then `commit confirmed`."""
    lines: list[str] = []
    for each in (_classes, _pauses, _buffers, _scheduling):
        lines += each(target)
    for port in target.ports:
        lines += _port(port)
    return "".join(f"set class-of-service {line}\n" for line in lines)
