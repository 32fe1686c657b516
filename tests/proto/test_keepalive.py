"""Keepalive in virtual time: silent links are probed, dead ones are found, talking ones are left alone."""

from __future__ import annotations

import random

import pytest

from aiordma.proto.keepalive import Keepalive, Verdict


def test_silence_probe_loss() -> None:
    k = Keepalive(10.0, 2.0, 100.0)
    assert k.next_deadline() == 110.0
    assert k.look(109.9, 0) is Verdict.FINE
    assert k.look(110.0, 0) is Verdict.PROBE
    k.probed(110.0)
    assert k.probing
    assert k.next_deadline() == 112.0
    assert k.look(111.9, 0) is Verdict.FINE
    assert k.look(112.0, 0) is Verdict.LOST


def test_anything_heard_is_a_sign_of_life() -> None:
    k = Keepalive(10.0, 2.0, 0.0)
    assert k.look(9.0, 1) is Verdict.FINE
    assert k.next_deadline() == 19.0
    assert k.look(19.0, 1) is Verdict.PROBE
    k.probed(19.0)
    assert k.look(20.9, 2) is Verdict.FINE  # the probe's completion, or any other
    assert not k.probing
    assert k.next_deadline() == 30.9


def test_a_probe_that_could_not_be_posted_is_asked_for_again() -> None:
    k = Keepalive(10.0, 2.0, 0.0)
    assert k.look(10.0, 0) is Verdict.PROBE
    assert k.look(10.1, 0) is Verdict.PROBE


def test_suspicion_probes_at_once_even_when_switched_off() -> None:
    k = Keepalive(0.0, 2.0, 0.0)
    assert k.next_deadline() is None
    assert k.look(1e6, 0) is Verdict.FINE
    k.suspect()
    deadline = k.next_deadline()
    assert deadline is not None
    assert deadline <= 1e6
    assert k.look(1e6, 0) is Verdict.PROBE
    k.probed(1e6)
    assert k.look(1e6 + 2, 0) is Verdict.LOST
    k = Keepalive(0.0, 2.0, 0.0)
    k.suspect()
    assert k.look(1.0, 5) is Verdict.FINE  # it has spoken since
    assert k.next_deadline() is None


@pytest.mark.parametrize(("idle", "timeout"), [(-1.0, 1.0), (1.0, 0.0), (1.0, -1.0)])
def test_bad_times_are_refused(idle: float, timeout: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Keepalive(idle, timeout, 0.0)


@pytest.mark.parametrize("seed", range(50))
def test_pair_in_virtual_time(seed: int) -> None:
    """Two ends that sometimes talk; at a random moment one dies. A living peer is never given up, a dead one
    within idle + timeout + a few ticks of the timer."""
    rng = random.Random(seed)
    idle, timeout, tick, latency = 5.0, 3.0, 0.5, 0.2
    death = rng.uniform(10, 60)
    links = [Keepalive(idle, timeout, 0.0), Keepalive(idle, timeout, 0.0)]
    heard = [0, 0]
    arrivals: list[tuple[float, int]] = []  # (when, at which end)
    lost: float | None = None
    now = 0.0
    while now < 90 and lost is None:
        now += tick
        dead = now >= death  # end 1 answers nothing any more
        for when, who in [a for a in arrivals if a[0] <= now]:
            arrivals.remove((when, who))
            heard[who] += 1
        if rng.random() < 0.05 and not dead:
            arrivals.append((now + latency, rng.randrange(2)))
        for who in (0, 1):
            if who == 1 and dead:
                continue
            verdict = links[who].look(now, heard[who])
            if verdict is Verdict.PROBE:
                links[who].probed(now)
                if not (who == 0 and dead):
                    arrivals.append((now + 2 * latency, who))
            elif verdict is Verdict.LOST:
                assert who == 0
                lost = now
    assert lost is not None
    assert death <= lost <= death + 2 * latency + idle + timeout + 3 * tick
