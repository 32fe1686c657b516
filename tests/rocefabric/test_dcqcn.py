"""The simulator's reaction point does what the software device's does, step by step."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import random
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from rocefabric import dcqcn, model, simulate
from rocefabric._rate import ReactionPoint
from tests.project.tree import ROOT

from .networks import star

if TYPE_CHECKING:
    from pathlib import Path

SHIM = """
#include <stdlib.h>
#include "roce/rate.h"
struct both { struct roce_rate rate; struct roce_line line; };
void *make(const char *profile) {
    struct both *it = calloc(1, sizeof(*it));
    it->line.fastest = 40e9; /* the profile's times and steps apply unchanged */
    it->rate.profile = roce_rate_profile(profile);
    it->rate.line = &it->line;
    return it;
}
void notified(struct both *it, uint64_t now) { roce_rate_notified(&it->rate, now); }
void sent(struct both *it, uint64_t now, uint32_t bytes) { roce_rate_sent(&it->rate, now, bytes); }
void look(struct both *it, uint64_t now, double *found) {
    uint64_t when;
    roce_rate_allows(&it->rate, now, &when);
    const struct roce_rate *r = &it->rate;
    const double all[] = {r->paced, r->current, r->target, r->alpha, r->time_steps, r->byte_steps,
                          r->hyper_steps, r->bytes, r->step_at, r->alpha_at, r->next};
    for (unsigned i = 0; i < sizeof(all) / sizeof(*all); i++)
        found[i] = all[i];
}
"""
FIELDS = ("paced", "current", "target", "alpha", "time_steps", "byte_steps", "hyper_steps", "bytes")
TIMES = ("step_at", "alpha_at", "next")


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The software device's own file, with a way in."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler built aiordma"
    folder: Path = tmp_path_factory.mktemp("rate")
    (folder / "shim.c").write_text(SHIM, encoding="utf-8")
    softdev = ROOT / "softdev" / "src"
    library = folder / "rate.so"
    sources = [str(folder / "shim.c"), str(softdev / "roce" / "rate.c")]
    command = [
        compiler,
        "-O1",
        "-shared",
        "-fPIC",
        "-ffp-contract=off",
        f"-I{softdev}",
        *sources,
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True, capture_output=True)
    loaded = ctypes.CDLL(str(library))
    loaded.make.restype = ctypes.c_void_p
    loaded.notified.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    loaded.sent.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32]
    loaded.look.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_double)]
    return loaded


@pytest.mark.parametrize("name", ["sigcomm15", "connectx"])
@pytest.mark.parametrize("seed", range(4))
def test_step_by_step(device: ctypes.CDLL, name: str, seed: int) -> None:
    theirs = device.make(name.encode())
    ours = ReactionPoint(dcqcn.PROFILES[name])
    dice = random.Random(seed)
    now, found = 1_000_000_000, (ctypes.c_double * 11)()
    cuts = 0
    for _ in range(2500):
        now += dice.choice((80, 300, 2000, 30_000, 70_000))
        if dice.random() < 0.08:
            device.notified(theirs, now)
            ours.notified(now * 1000)
            cuts += 1
        else:
            size = dice.choice((1106, 4178, 200_000))
            device.sent(theirs, now, size)
            ours.sent(now * 1000, size)
        device.look(theirs, now, found)
        ours.when(now * 1000)
        state = ours.state()
        for at, field in enumerate((*FIELDS, *TIMES)):
            value = state[field] / 1000 if field in TIMES else state[field]
            # `next` is cut off to whole nanoseconds there, to picoseconds here.
            near = 4000.0 if field == "next" else 0.0
            assert math.isclose(value, found[at], rel_tol=1e-9, abs_tol=near), (field, now)
    assert cuts > 100


def test_hosts_have_their_own_line_rate() -> None:
    """A slow host in the network does not slow down the first cut of a fast one."""
    network = star(3)
    links = (
        dataclasses.replace(network.links[0], rate_gbps=100.0),
        model.Link("slow", "tor", rate_gbps=10.0),
    )
    network = dataclasses.replace(network, links=links, hosts=(*network.hosts, model.Host("slow")))
    transfers = (simulate.Transfer("host1", "slow"), simulate.Transfer("host2", "host3"))
    running = simulate.assemble(network, simulate.Traffic("two", transfers, 1000))
    assert running.sim.rate(running.flows[0]) == 100e9
    while not running.sim.flow(running.flows[0])["notes"]:
        running.sim.run(running.sim.now + 100_000)
    first = running.sim.flow(running.flows[0])["rate"]
    assert (first["target"], first["current"]) == (100e9, 50e9)
    assert running.sim.rate(running.flows[1]) == 100e9


@pytest.mark.parametrize(
    ("name", "gbps", "add", "hyper"),
    [
        ("sigcomm15", 25, 40, 400),
        ("sigcomm15", 100, 100, 1000),
        ("sigcomm15", 200, 200, 2000),
        ("sigcomm15", 400, 400, 4000),
        # HPCC's simulator writes 20 and 200 Mb/s for 100G.
        ("connectx-scaled", 25, 5, 50),
        ("connectx-scaled", 100, 20, 200),
        ("connectx-scaled", 200, 40, 400),
        ("connectx-scaled", 400, 80, 800),
        ("connectx", 400, 5, 50),
        ("ns3", 400, 40, 200),
    ],
)
def test_steps_are_the_same_share_of_fast_lines(name: str, gbps: float, add: float, hyper: float) -> None:
    found = dcqcn.scaled(dcqcn.PROFILES[name], gbps)
    assert (found.add_bps / 1e6, found.hyper_bps / 1e6) == pytest.approx((add, hyper))
    assert dataclasses.replace(found, add_bps=0, hyper_bps=0) == dataclasses.replace(
        dcqcn.PROFILES[name], add_bps=0, hyper_bps=0
    )


def test_adapters_differ_in_their_steps_only() -> None:
    plain, grown = dcqcn.PROFILES["connectx"], dcqcn.PROFILES["connectx-scaled"]
    assert dataclasses.replace(grown, name="connectx", steps_for_gbps=0) == plain


def test_the_ns3_models_first_cuts() -> None:
    """They begin with alpha 0.5, obey every notification, and pass the old rate with the fifth step."""
    point = ReactionPoint(dcqcn.profile("ns3", 40))
    point.sent(1_000_000, 1000)
    point.notified(50_000_000)
    assert point.state()["current"] == 30e9
    point.notified(60_000_000)
    state = point.state()
    assert state["target"] == 30e9
    assert state["current"] == pytest.approx(22.5e9, rel=2e-3)
    for step in range(1, 6):
        point.when(60_000_000 + step * 60_000_000)
        assert point.state()["target"] == (30e9 if step < 5 else 30.04e9)


def test_the_papers_first_cut_is_of_the_line_rate() -> None:
    point = ReactionPoint(dcqcn.profile("sigcomm15", 40))
    point.sent(1_000_000, 1000)
    point.notified(50_000_000)
    assert point.state()["target"] == 40e9
    assert point.state()["current"] == 20e9
    with pytest.raises(KeyError):
        dcqcn.profile("tahoe", 40)
