"""The compiled engine: the same as the plain model event by event, nothing appears or vanishes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocefabric import dcqcn
from rocefabric._core import Simulation
from rocefabric.options import Options

from . import reference

if TYPE_CHECKING:
    from collections.abc import Callable

US = 1_000_000


@dataclass(frozen=True)
class Scene:
    """Hosts at one or two switches, and what they send."""

    hosts: int = 4
    two: bool = False
    shared: int = 300
    headroom: int = 200
    kmax: float = 60
    poll_us: int = 0
    mark_departing: bool = False
    spaced_marks: bool = False
    cnp_at_interval: bool = False
    weight: float = 0.5
    alpha: float = 0.25
    flows: tuple[tuple[int, int, int, bool, int], ...] = ()  # from, to, packets, RoCE, start in us
    profile: str = "sigcomm15"
    #: 0: hosts have the line rate of their own cables, and the second one has half of the others'.
    line_gbps: int = 25
    window: int = 64
    break_at_us: int = 0
    drain_ps: int = 0
    watchdog_us: int = 0
    #: Routes of all flows run between both switches for so many hops, from the beginning.
    loop: int = 0
    seed: int = 1


def build(kind: Callable[..., Any], scene: Scene) -> Any:
    options = Options(
        seed=scene.seed,
        poll_ps=scene.poll_us * US,
        weight=scene.weight,
        window=scene.window,
        timeout_ps=300 * US,
        mark_departing=scene.mark_departing,
        spaced_marks=scene.spaced_marks,
        cnp_at_interval=scene.cnp_at_interval,
        watchdog_ps=scene.watchdog_us * US,
        restore_ps=2 * scene.watchdog_us * US,
    )
    sim = kind(dcqcn.profile(scene.profile, scene.line_gbps), options)
    hosts = [sim.add_host() for _ in range(scene.hosts)]
    switches = [sim.add_switch(scene.shared, 6, scene.alpha, 0.5, 300_000) for _ in range(1 + scene.two)]
    place = [switches[at % len(switches)] for at in range(scene.hosts)]
    slow = 1 if scene.line_gbps == 0 else -1
    access = [
        sim.add_cable(host, place[at], 640 if at == slow else 320, 15_000) for at, host in enumerate(hosts)
    ]
    joints = [sim.add_cable(*switches, 160, 50_000) for _ in range(2)] if scene.two else []
    for first in (*access, *joints):
        for port in (first, first + 1):
            sim.set_port(port, scene.headroom, 5, scene.kmax, 0.1, 20_000, 0)
    if scene.drain_ps:
        sim.set_port(access[0], 0, 1e18, 1e18, 0, 0, scene.drain_ps)

    def path(source: int, target: int, joint: int) -> list[int]:
        middle = []
        if place[source] != place[target]:
            middle = [joints[joint] + (place[source] != switches[0])]
        return [access[source], *middle, access[target] + 1]

    last = -1
    for source, target, packets, roce, start in scene.flows:
        at, after = (start * US, -1) if start >= 0 else (-start * US, last)
        if after < 0:
            at = abs(at)
        last = sim.add_flow(
            path(source, target, 0), path(target, source, 0), packets, 1106, 500, roce, at, after
        )
        if scene.loop:
            turns = [joints[0] + at % 2 for at in range(scene.loop)]
            begin = turns if place[source] == switches[0] else [joints[0] + 1, *turns]
            sim.reroute(5 * US, last, [access[source], *begin, -1], path(target, source, 0))
            sim.reroute(500 * US, last, path(source, target, 0), path(target, source, 0))
        if scene.break_at_us and joints:
            sim.reroute((scene.break_at_us + 20) * US, last, path(source, target, 1), path(target, source, 1))
    if scene.break_at_us and joints:
        sim.fail(scene.break_at_us * US, joints[0])
    return sim


def conserved(sim: Any, scene: Scene) -> None:
    gone = sim.lossless_drops + sim.lossy_drops + sim.lost + sim.expired + sim.watchdog_drops
    assert sim.created == sim.delivered + gone + sim.live
    for node in range(scene.hosts, scene.hosts + 1 + scene.two):
        assert sim.used_cells(node) == sim.held_cells(node)


def incast(hosts: int, packets: int = 200) -> tuple[tuple[int, int, int, bool, int], ...]:
    return tuple((host, 0, packets, True, 0) for host in range(1, hosts))


SCENES = {
    "incast": Scene(flows=incast(4)),
    "polled": Scene(flows=incast(4), poll_us=7),
    "marked as they leave": Scene(flows=incast(4), mark_departing=True),
    "marked as Linux does": Scene(flows=incast(4), poll_us=7, spaced_marks=True),
    "notified once an interval": Scene(flows=incast(4, 800), cnp_at_interval=True, profile="ns3"),
    "two line rates": Scene(flows=incast(4), line_gbps=0),
    "small window": Scene(flows=incast(4), window=5),
    "connectx": Scene(flows=incast(4), profile="connectx"),
    "mixed": Scene(6, True, 200, 100, flows=(*incast(6), (3, 0, 300, False, 10), (0, 2, 100, False, 0))),
    "losing": Scene(8, shared=60, headroom=6, kmax=1e9, flows=incast(8, 60)),
    "broken cable": Scene(6, True, flows=(*incast(6, 100), (1, 2, 200, False, 5)), break_at_us=30),
    "loop": Scene(4, True, 2000, 200, 1e9, flows=incast(4, 60), loop=12),
    "watched loop": Scene(4, True, 100, 200, 1e9, flows=incast(4, 2000), loop=40, watchdog_us=100),
    "watched receiver": Scene(flows=incast(3), drain_ps=20_000, watchdog_us=20),
    "slow receiver": Scene(flows=incast(3), drain_ps=640),
    "one after another": Scene(flows=((1, 0, 20, True, 0), (2, 0, 20, True, -3), (3, 0, 5, False, -1))),
}


@pytest.mark.parametrize("name", SCENES)
def test_both_models_do_the_same(name: str) -> None:
    scene = SCENES[name]
    ours, plain = (build(kind, scene) for kind in (Simulation, reference.Simulation))
    ours.trace, plain.trace = [], []
    for until in (20, 700, 1500):
        ours.run(until * US)
        plain.run(until * US)
        conserved(ours, scene)
    assert len(ours.trace) > 100
    for one, other in zip(ours.trace, plain.trace, strict=False):
        assert one == other
    counts = ["events", "created", "delivered", "lossless_drops", "lossy_drops", "lost", "live", "pauses"]
    counts += ["expired", "watchdogs", "watchdog_drops"]
    for count in counts:
        assert getattr(ours, count) == getattr(plain, count), count
    for flow in plain.flows:
        found = ours.flow(flow.number)
        assert (found["una"], found["done_at"], found["resent"]) == (flow.una, flow.done_at, flow.resent)


def test_the_scenes_have_what_they_are_for() -> None:
    runs = {name: build(Simulation, scene) for name, scene in SCENES.items()}
    for sim in runs.values():
        sim.run(1500 * US)
    assert runs["incast"].pauses
    assert not runs["incast"].lossless_drops
    assert runs["losing"].lossless_drops
    assert runs["mixed"].lossy_drops
    assert runs["broken cable"].lost
    assert runs["slow receiver"].port(0)["pauses"]
    assert runs["loop"].expired
    assert not runs["loop"].watchdogs
    assert runs["watched loop"].watchdogs
    assert runs["watched receiver"].watchdog_drops
    assert runs["notified once an interval"].flow(0)["notes"] > 2
    done = [runs["one after another"].flow(at)["done_at"] for at in range(3)]
    assert 0 < done[0] < done[1] < done[2]


flows = st.lists(
    st.tuples(
        st.integers(0, 5), st.integers(0, 5), st.integers(1, 80), st.booleans(), st.integers(-5, 60)
    ).filter(lambda flow: flow[0] != flow[1]),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(
    flows=flows,
    two=st.booleans(),
    shared=st.integers(20, 400),
    alpha=st.sampled_from([0.125, 0.25, 1.0, 4.0]),
    seed=st.integers(0, 1 << 40),
    break_at_us=st.sampled_from([0, 0, 25]),
)
def test_never_a_loss_with_enough_headroom(
    flows: list[tuple[int, int, int, bool, int]],
    two: bool,
    shared: int,
    alpha: float,
    seed: int,
    break_at_us: int,
) -> None:
    """Over topologies and traffic: packets in are out, lost, or there; what is lossless is not dropped."""
    scene = Scene(
        hosts=6, two=two, shared=shared, poll_us=seed % 9, mark_departing=bool(seed & 8),
        spaced_marks=bool(seed & 16), cnp_at_interval=bool(seed & 32), alpha=alpha, flows=tuple(flows),
        break_at_us=break_at_us, seed=seed,
    )  # fmt: skip
    sim = build(Simulation, scene)
    for until in (30, 200, 4000):
        sim.run(until * US)
        conserved(sim, scene)
        assert sim.lossless_drops == 0
    if not break_at_us and all(roce for _, _, _, roce, _ in flows):
        assert sim.live == 0
        assert sum(sim.flow(at)["expected"] for at in range(len(flows))) == sum(flow[2] for flow in flows)


def test_the_seed_decides() -> None:
    def trace(seed: int) -> list[tuple[int, ...]]:
        sim = build(Simulation, replace(SCENES["incast"], seed=seed, kmax=300))
        sim.trace = []
        sim.run(500 * US)
        return list(sim.trace)

    assert trace(3) == trace(3)
    assert trace(3) != trace(4)


def test_what_is_not_there_is_refused() -> None:
    sim = build(Simulation, SCENES["incast"])
    with pytest.raises(IndexError, match="no such port"):
        sim.add_flow([99], [0], 1, 1106, 1106, True, 0, -1)
    with pytest.raises(IndexError, match="no such flow"):
        sim.add_flow([0], [1], 1, 1106, 1106, True, 0, 99)
