"""The three small goals of the article, for the outcome of one simulation and for many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .model import Goals
    from .simulate import Outcome

__all__ = ["Judged", "calm", "judge", "reasons", "summary"]

#: Share of the time, and of the traffic models, that the goals speak of.
USUAL_TIME = 0.99
USUAL_MODELS = 0.9


@dataclass(frozen=True)
class Judged:
    """Whether one outcome meets each goal; `None`: the traffic does not ask."""

    throughput: bool | None
    #: In 99 % of the windows all ports together sent no more pauses than the goal allows for their length.
    pauses: bool
    latency: bool
    usual_latency: bool
    #: Nothing of the lossless class was dropped.
    lossless: bool


def calm(outcome: Outcome, goals: Goals) -> float:
    """The share of windows with at most `pauses_per_second`: at 5, none in a window of microseconds."""
    most = goals.pauses_per_second * outcome.sample_us / 1e6
    windows = outcome.pauses_by_window
    return sum(count <= most for count in windows) / len(windows)


def judge(outcome: Outcome, goals: Goals) -> Judged:
    """Compare an outcome with the goals."""
    return Judged(
        None if outcome.throughput < 0 else 100 * outcome.throughput >= goals.throughput_percent,
        calm(outcome, goals) >= USUAL_TIME,
        outcome.latency_most_us <= goals.latency_us,
        outcome.latency_most_us <= goals.usual_latency_us,
        outcome.lossless_drops + outcome.watchdog_drops == 0,
    )


def reasons(outcome: Outcome, goals: Goals) -> list[str]:
    """What is missed and by how much, one text for each goal; empty if nothing is."""
    judged, found = judge(outcome, goals), []
    if judged.throughput is False:
        text = f"busy ports used {100 * outcome.throughput:.1f} % of {goals.throughput_percent:g} %"
        before, after = _speeds(outcome)
        if after > SPEEDING * before:
            text += (
                f", with senders that still sped up at the end ({before:.1f} to {after:.1f} Gb/s in the "
                "second half): a longer run shows where they settle"
            )
        found.append(text)
    if not judged.pauses:
        share, most = 100 * calm(outcome, goals), goals.pauses_per_second
        found.append(f"at most {most:g} pauses/s in {share:.1f} % of the time, not in 99 %")
    if not judged.latency:
        found.append(f"a packet took {outcome.latency_most_us:.1f} of {goals.latency_us:g} us")
    if outcome.lossless_drops:
        found.append(f"{outcome.lossless_drops} lossless packets were dropped")
    if outcome.watchdogs:
        found.append(
            f"the watchdog emptied {outcome.watchdogs} queues: {outcome.watchdog_drops} packets were dropped"
        )
    if outcome.expired:
        found.append(f"{outcome.expired} packets ran in a circle until their TTL was over")
    return found


#: So much faster at the end than in the middle is not settled.
SPEEDING = 1.05


def _speeds(outcome: Outcome) -> tuple[float, float]:
    """Gb/s of the senders whose rates are known: in the tenth of the time after the middle, and the last."""
    count = len(outcome.rates)
    tenth = max(1, count // 10)
    parts = outcome.rates[count // 2 : count // 2 + tenth], outcome.rates[-tenth:]
    before, after = (sum(map(sum, part)) / max(1, len(part)) for part in parts)
    return before, after


def summary(outcomes: Iterable[Outcome], goals: Goals) -> list[tuple[str, bool, str]]:
    """The goals over all outcomes: what, whether it is met, and the numbers."""
    judged = [(outcome, judge(outcome, goals)) for outcome in outcomes]
    busy = [each for _, each in judged if each.throughput is not None]
    count = len(judged)

    def of(kept: int, all_of_them: int) -> str:
        return f"{kept} of {all_of_them} models"

    full, quiet = sum(bool(each.throughput) for each in busy), sum(each.pauses for _, each in judged)
    fast, usual = sum(each.latency for _, each in judged), sum(each.usual_latency for _, each in judged)
    # For comparison with measurements that do not see every packet.
    most = sum(outcome.latency_99_us <= goals.latency_us for outcome, _ in judged)
    usually = sum(outcome.latency_99_us <= goals.usual_latency_us for outcome, _ in judged)
    whole = sum(each.lossless for _, each in judged)
    return [
        ("nothing lossless is dropped", whole == count, of(whole, count)),
        (
            f"throughput of busy ports over {goals.throughput_percent:g} %",
            full == len(busy),
            of(full, len(busy)),
        ),
        (
            f"at most {goals.pauses_per_second:g} pauses/s in 99 % of the time",
            quiet == count,
            of(quiet, count),
        ),
        (
            f"end to end within {goals.latency_us:g} us",
            fast == count,
            f"{of(fast, count)} (99 % of the packets: {most})",
        ),
        (
            f"within {goals.usual_latency_us:g} us in 90 % of the models",
            usual >= USUAL_MODELS * count,
            f"{of(usual, count)} (99 % of the packets: {usually})",
        ),
    ]
