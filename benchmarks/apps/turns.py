"""Two ways to do the same work, by turns: what each made of it, and the ratio."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

RDMA, TCP = "rdma", "tcp"


class Sample(NamedTuple):
    """One run."""

    per_second: float
    #: CPU time of the processes concerned, in microseconds, for each request
    cpu_us: float


class Outcome(NamedTuple):
    """All runs of one row; `rdma[n]` and `tcp[n]` followed each other."""

    title: str
    goal: float
    rdma: list[Sample]
    tcp: list[Sample]
    #: the goal holds for the CPU time, too
    cpu_goal: bool = False

    @property
    def rate_ratio(self) -> float:
        """How many times the requests of TCP: the median of the rounds' ratios."""
        return statistics.median(
            one.per_second / other.per_second for one, other in zip(self.rdma, self.tcp, strict=True)
        )

    @property
    def cpu_ratio(self) -> float:
        """How many times the CPU time of TCP."""
        return statistics.median(
            one.cpu_us / other.cpu_us for one, other in zip(self.rdma, self.tcp, strict=True)
        )

    @property
    def reached(self) -> bool:
        return self.rate_ratio >= self.goal and (not self.cpu_goal or self.cpu_ratio <= 1.0)


def by_turns(
    title: str, goal: float, rounds: int, run: Callable[[str], Sample], *, cpu_goal: bool = False
) -> Outcome:
    """`run` is called with RDMA or TCP; who begins changes. Raises what it raises."""
    samples: dict[str, list[Sample]] = {RDMA: [], TCP: []}
    for turn in range(rounds):
        for path in (RDMA, TCP) if turn % 2 == 0 else (TCP, RDMA):
            samples[path].append(run(path))
    return Outcome(title, goal, samples[RDMA], samples[TCP], cpu_goal)


HEADER = "| work | at least | requests/s | CPU a request | RDMA | TCP | reached |\n"
RULE = "| --- | ---: | ---: | ---: | ---: | ---: | --- |\n"


def table_row(outcome: Outcome) -> str:
    """One row of the table that HEADER begins."""

    def path(samples: list[Sample]) -> str:
        rate = statistics.median(sample.per_second for sample in samples)
        return f"{rate:,.0f}/s, {statistics.median(sample.cpu_us for sample in samples):.3g} us"

    return (
        f"| {outcome.title} | {outcome.goal:g}x | {outcome.rate_ratio:.2f}x | {outcome.cpu_ratio:.2f}x "
        f"| {path(outcome.rdma)} | {path(outcome.tcp)} | {'yes' if outcome.reached else '**no**'} |\n"
    )
