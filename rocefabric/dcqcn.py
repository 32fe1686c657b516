"""Named parameter sets of DCQCN: a simulation takes one of them, since adapters differ from the paper."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

__all__ = ["NONE", "PROFILES", "Profile", "fixed_point", "profile", "scaled", "stretched"]

#: Senders that stay at line rate, in a network without marks: pauses alone hold them back.
NONE = "none"


@dataclass(frozen=True)
class Profile:
    """Parameters of senders. Names and values as in the software device."""

    name: str
    #: g: weight of the newest notification in alpha.
    gain: float
    #: K: alpha falls after each such period without a notification.
    alpha_ns: int
    #: T: the rate rises after each such period,
    step_ns: int
    #: B: or after so many bytes.
    step_bytes: int
    #: F: steps that halve the distance to the old rate, before the rate exceeds it.
    fast_steps: int
    add_bps: float
    hyper_bps: float
    least_bps: float
    #: 0 in a simulation: the rate of each host's own port.
    line_bps: float
    #: Whether the first notification cuts the line rate, as in the paper, or the rate measured lately.
    from_line: bool = False
    #: The shortest time between two cuts.
    cut_ns: int = 50000
    #: alpha of a sender at line rate: the first cut takes half of this.
    first_alpha: float = 1.0
    #: Gb/s: on faster lines the steps grow in proportion to this one. 0: they are the same on all lines.
    steps_for_gbps: float = 0


PROFILES = {
    # The paper chose its steps for lines of 40 Gb/s.
    "sigcomm15": Profile(
        "sigcomm15", 1 / 256, 55000, 55000, 10_000_000, 5, 40e6, 400e6, 1e6, 100e9, steps_for_gbps=40
    ),
    "connectx": Profile("connectx", 5 / 1024, 1000, 300000, 32767, 1, 5e6, 50e6, 1e6, 100e9),
    # The same with the steps that the authors of HPCC (SIGCOMM 2019) give adapters in their simulator: 5 and
    # 50 Mb/s for each 25 Gb/s of the line.
    "connectx-scaled": Profile(
        "connectx-scaled", 5 / 1024, 1000, 300000, 32767, 1, 5e6, 50e6, 1e6, 100e9, steps_for_gbps=25
    ),
    # The sample configuration of the authors' ns-3 model. Its reaction point obeys every notification, and
    # exceeds the old rate with the fifth step.
    "ns3": Profile(
        "ns3", 1 / 256, 55000, 60000, 300_000_000, 4, 40e6, 200e6, 100e6, 100e9, cut_ns=0, first_alpha=0.5
    ),
}


def profile(name: str, line_gbps: float = 0, *, from_line: bool = True) -> Profile:
    """A named profile for hosts with ports of `line_gbps`; 0: for each host the rate of its own port.

    :raises KeyError: if there is no such profile.
    """
    return dataclasses.replace(PROFILES[name], line_bps=line_gbps * 1e9, from_line=from_line)


def scaled(using: Profile, line_gbps: float) -> Profile:
    """A profile for faster lines than those it was made for: steps that are the same share of the line.

    With steps of 40 Mb/s, four senders at 100G use half of a port in their first 20 ms. Profiles that say
    what one adapter or model does stay as they are; so do those of slower lines.
    """
    if not using.steps_for_gbps or line_gbps <= using.steps_for_gbps:
        return using
    factor = line_gbps / using.steps_for_gbps
    return dataclasses.replace(using, add_bps=using.add_bps * factor, hyper_bps=using.hyper_bps * factor)


def stretched(using: Profile, factor: float) -> Profile:
    """The profile for a network that is `factor` times slower: longer times, smaller steps.

    The software device does this on its own (`slowness` in `softdev/src/roce/rate.c`).
    """
    return dataclasses.replace(
        using,
        alpha_ns=int(using.alpha_ns * factor),
        step_ns=int(using.step_ns * factor),
        cut_ns=int(using.cut_ns * factor),
        add_bps=using.add_bps / factor,
        hyper_bps=using.hyper_bps / factor,
    )


def fixed_point(line_bps: float, flows: int, wire: int, using: Profile, interval_s: float = 50e-6) -> float:
    """The share of packets that is marked when `flows` senders share a line and nothing changes any more.

    The closed form for small shares in "ECN or Delay: Lessons Learnt from Analysis of DCQCN and TIMELY" (Zhu
    and others, CoNEXT 2016): the cube root of R_AI N^2 / (tau C^2) x (1/B + N/(T C))^2, with rates in packets
    per second and B in packets. Above a few percent it is too high.
    """
    capacity, more = line_bps / 8 / wire, using.add_bps / 8 / wire
    pace = wire / using.step_bytes + flows / (using.step_ns * 1e-9 * capacity)
    cubed: float = more * flows**2 / (interval_s * capacity**2) * pace**2
    return float(cubed ** (1 / 3))
