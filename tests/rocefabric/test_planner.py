"""The plan: published numbers come out of the formulas, and what is broken is found."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
from typing import TYPE_CHECKING

import pytest

from rocefabric import deadlock, devices, ecn, failures, headroom, marking, model, planner, scheduling, schema
from rocefabric.errors import NetworkError
from rocefabric.report import Verdict
from rocefabric.topology import build

from .networks import EXAMPLE, RING, STAR, star

if TYPE_CHECKING:
    from pathlib import Path

    from rocefabric.report import Section
    from rocefabric.topology import Hops


@pytest.fixture(scope="module")
def example() -> model.Network:
    return model.load(EXAMPLE)


def verdicts(part: Section) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in part.checks}


# ---- PFC


@pytest.mark.parametrize(("rate", "length", "cells"), [(100, 100, 408), (25, 15, 98)])
def test_the_articles_headroom(rate: float, length: float, cells: int) -> None:
    """Both readings: the fitted one gives both results, the constant differs."""
    assert math.floor(headroom.frames_cells(star(), rate, length, 1518)) == cells
    constant = headroom.article_constant_ns(rate, length, cells)
    assert headroom.article_cells(rate, length, constant) == pytest.approx(cells)
    assert round(constant) == {408: 1089, 98: 1857}[cells]


def test_jumbo_frames_need_more_headroom() -> None:
    found = [round(headroom.frames_cells(star(), rate, m, 9216)) for rate, m in ((100, 100), (25, 15))]
    assert found == [592, 281]


def test_a_guarantee_is_one_jumbo_frame() -> None:
    assert headroom.guarantee_cells(model.Switch("tor")) == 45


@pytest.mark.parametrize(
    ("alpha", "one", "all_of_them", "fanned"),
    [(1 / 8, 17094, 3273, 438), (1 / 4, 30769, 3577, 788), (1 / 2, 51282, 3752, 1314)],
)
def test_thresholds_by_alpha(alpha: float, one: int, all_of_them: int, fanned: int) -> None:
    """32 MB in cells of 208 bytes."""
    shared = 32e6 / 208
    assert int(headroom.share_cells(shared, alpha, 1)) == pytest.approx(one, abs=1)
    assert int(headroom.share_cells(shared, alpha, 39)) == pytest.approx(all_of_them, abs=1)
    assert int(headroom.share_cells(shared, alpha, 1) / 39) == pytest.approx(fanned, abs=1)


def test_a_buffer_that_is_too_small_is_broken() -> None:
    small = model.parse(STAR.format(hosts=40, more="").replace('"tor"\n', '"tor"\nbuffer_bytes = 65536\n', 1))
    part = headroom.section(small, build(small))
    assert verdicts(part)["tor: headroom and guarantees fit"] is Verdict.BROKEN


# ---- ECN


@pytest.mark.parametrize(
    ("mtu", "percent"), [(256, 0.216), (512, 0.380), (1024, 0.708), (2048, 1.363), (4096, 2.674)]
)
def test_effective_pmax(mtu: int, percent: float) -> None:
    assert 100 * ecn.effective_pmax(25, mtu, 50) == pytest.approx(percent, abs=0.0006)


@pytest.mark.parametrize(
    ("rate", "incast", "percent"), [(25, 39, 10.28), (25, 32, 7.90), (40, 39, 5.49), (100, 39, 2.20)]
)
def test_pmax_for_an_incast(rate: int, incast: int, percent: float) -> None:
    """DCQCN's fixed point in percent; packets of 1106 bytes on the wire. One flow at 25G needs 0.708.

    At 100G it is 1.62 with the paper's steps; those of 100 Mb/s make it larger by the cube root of 2.5.
    """
    network = star(4, f"[goals]\nincast = {incast}")
    network = dataclasses.replace(
        network, links=(dataclasses.replace(network.links[0], rate_gbps=float(rate)),)
    )
    part = ecn.section(network, build(network))
    (planned,) = (number.value for number in part.numbers if number.name == f"Pmax at {rate}G")
    assert 100 * ecn.incast_pmax(network, rate) == pytest.approx(percent, abs=0.006)
    assert planned == math.ceil(max(percent, 100 * ecn.effective_pmax(rate, 1024, 50)))
    assert verdicts(part)[f"Pmax at {rate}G lets {incast} flows settle below Kmax"] is Verdict.OK


def test_the_plan_stands_beside_what_others_ship() -> None:
    """In kB: 22 cells of 208 bytes are 5, 339 are 71."""
    network = star(9)
    (table,) = (each for each in ecn.section(network, build(network)).tables if "others ship" in each.title)
    found = ecn.thresholds(network, build(network), 25, 208)
    assert (found.kmin, found.kmax) == (22, 339)
    assert table.rows == (
        ("this plan", "25G", "5", "71", "8 %"),
        ("HPCC's simulator", "25G", "100", "400", "20 %"),
        ("SONiC", "all rates", "1049", "2097", "5 %"),
        ("Onyx", "all rates", "150", "1500", "-"),
    )


def test_hpccs_thresholds_grow_with_the_line() -> None:
    """Its configuration has 400 and 1600 KB at 100G, 1600 and 6400 at 400G."""
    network = dataclasses.replace(
        star(4),
        links=tuple(dataclasses.replace(star(4).links[0], rate_gbps=float(rate)) for rate in (100, 400)),
    )
    (table,) = (each for each in ecn.section(network, build(network)).tables if "others ship" in each.title)
    assert [row for row in table.rows if row[0].startswith("HPCC")] == [
        ("HPCC's simulator", "100G", "400", "1600", "20 %"),
        ("HPCC's simulator", "400G", "1600", "6400", "20 %"),
    ]


def test_one_flows_pmax_is_not_enough_for_an_incast() -> None:
    network = star(40, "[goals]\nincast = 39\n[ecn]\npmax_percent = 1")
    found = verdicts(ecn.section(network, build(network)))
    assert found["Pmax at 25G lets 39 flows settle below Kmax"] is Verdict.WARNING
    assert found["Pmax at 25G marks all that a receiver answers"] is Verdict.OK


def test_a_small_alpha_pauses_before_it_marks() -> None:
    def found(alpha: float) -> Verdict:
        network = star(40, f"[pfc]\nalpha = {alpha}\n[ecn]\nkmin_cells = 1\nkmax_cells = 1400")
        part = ecn.section(network, build(network))
        return verdicts(part)["tor: one input to 39 outputs is marked before it is paused"]

    assert [found(alpha) for alpha in (1 / 8, 1 / 4, 1 / 2)] == [Verdict.WARNING] * 3
    assert found(1) is Verdict.OK


def test_a_slow_average_leaves_no_time_to_react() -> None:
    def found(more: str) -> Verdict:
        network = star(4, f"[ecn]\nkmin_cells = 800\nkmax_cells = 1400\n{more}")
        return verdicts(ecn.section(network, build(network)))[
            "From Kmin to Kmax there is time to react at 25G"
        ]

    assert found("poll_us = 10\nweight = 0.1") is Verdict.WARNING
    assert found("") is Verdict.OK


# ---- marking and scheduling


def test_an_outsider_in_the_roce_queue_is_found() -> None:
    open_door = model.parse(STAR.format(hosts=4, more="").replace('"tor"\n', '"tor"\nboundary = false\n', 1))
    part = marking.section(open_door, build(open_door))
    assert verdicts(part)["Nothing else enters these queues"] is Verdict.BROKEN
    assert "UDP port 53, DSCP 46 from host1 to host2: queue 5 of tor" in part.checks[1].text


def test_roce_that_leaves_its_queue_is_found() -> None:
    text = EXAMPLE.read_text(encoding="utf-8").replace("boundary = false", "dscp_queue = {46 = 3}")
    wrong = model.parse(text)
    part = marking.section(wrong, build(wrong))
    assert part.checks[0].verdict is Verdict.BROKEN
    assert "queue 3 of spine" in part.checks[0].text


def test_hosts_without_roce_keep_out() -> None:
    more = '[[hosts]]\nname = "web"\nroce = false\n[[links]]\na = "web"\nb = "tor"\nrate_gbps = 10'
    mixed = star(2, more)
    packet = marking.Packet(4791, 46)
    topology = build(mixed)
    assert marking.follow(mixed, topology, ("web", "tor", "host1"), packet) == [("tor", 2)]
    assert marking.follow(mixed, topology, ("host1", "tor", "web"), packet) == [("tor", 5)]
    assert set(verdicts(marking.section(mixed, topology)).values()) == {Verdict.OK}


def test_the_cnp_queue(example: model.Network) -> None:
    """39 flows with 20,000 notifications a second of 98 bytes."""
    assert scheduling.cnp_cap_bps(example) == 620e6
    part = scheduling.section(example, build(example))
    assert set(verdicts(part).values()) == {Verdict.OK}
    capped = star(4, "[marking]\ncnp_cap_mbps = 10000")
    found = verdicts(scheduling.section(capped, build(capped)))
    assert found["A flooded CNP queue starves no other queue"] is Verdict.BROKEN


# ---- deadlock


def test_a_clos_has_no_circle_but_micro_loops(example: model.Network) -> None:
    found = deadlock.examine(build(example))
    assert found.looked_at == {0: 1, 1: 16, 2: 120}
    assert found.cycles == []
    assert found.loops
    assert found.unordered == 0
    spine, tor = sorted(found.loops[0][1])
    assert (spine[:5], tor[:3]) == ("spine", "tor")


def test_a_ring_of_four_has_a_circle() -> None:
    """Two hops each way around: every buffer waits for the next."""
    names = ["p", "q", "r", "t"]
    text = "".join(f'[[switches]]\nname = "{name}"\n[[hosts]]\nname = "h{name}"\n' for name in names)
    text += "".join(f'[[links]]\na = "h{name}"\nb = "{name}"\nrate_gbps = 25\n' for name in names)
    text += "".join(
        f'[[links]]\na = "{name}"\nb = "{other}"\nrate_gbps = 25\n'
        for name, other in zip(names, [*names[1:], "p"], strict=True)
    )
    network = model.parse(text)
    found = deadlock.examine(build(network))
    assert found.cycles[0][0] == "no failure"
    assert len(found.cycles[0][1]) == 4
    part = deadlock.section(network, build(network))
    assert verdicts(part)["No circle of buffers without failures"] is Verdict.BROKEN
    assert part.cycles


def test_a_triangle_has_no_circle_until_a_cable_fails() -> None:
    found = deadlock.examine(build(model.parse(RING)))
    assert not [cycle for name, cycle in found.cycles if name == "no failure"]


def test_the_search_for_circles() -> None:
    assert failures.find_cycle({"a": ["b"], "b": ["c"], "c": []}) == ()
    assert sorted(map(str, failures.find_cycle({"a": ["b"], "b": ["c"], "c": ["b"]}))) == ["b", "c"]
    old: Hops = {"a": ("d",), "b": ("a",)}
    new: Hops = {"a": ("b",), "b": ("d",)}
    assert set(deadlock.micro_loop(old, new, [])) == {"a", "b"}
    assert deadlock.micro_loop(old, new, [frozenset("ab")]) == ()
    assert not deadlock.loops_in_order(old, new, [])
    # The farthest switch is told last: its packets come back while it still sends them on.
    assert deadlock.loops_in_order({"a": ("b",), "b": ("d",)}, {"a": ("b",), "b": ("a",)}, [])


# ---- settings for devices


def test_sonic_takes_the_fragments(example: model.Network) -> None:
    config = devices.sonic(example, build(example), "tor1")
    assert schema.faults(config) == []
    assert len(config["PORT_QOS_MAP"]) == 20
    assert config["DSCP_TO_TC_MAP"]["ROCE"]["46"] == "5"
    assert config["BUFFER_PROFILE"]["pg_lossless_25G_3m"]["dynamic_th"] == "-3"
    assert int(config["BUFFER_PROFILE"]["pg_lossless_25G_3m"]["xoff"]) == 103 * 208
    wred = config["WRED_PROFILE"]["ROCE_25G"]
    assert int(wred["green_min_threshold"]) < int(wred["green_max_threshold"])


@pytest.mark.parametrize(
    ("given", "ports"),
    [
        ("[]", ["Ethernet0", "Ethernet4", "Ethernet8"]),
        ('["Ethernet[0-3]"]', ["Ethernet0", "Ethernet1", "Ethernet2"]),
        ('["Ethernet8", "Ethernet[0-124/16]"]', ["Ethernet8", "Ethernet0", "Ethernet16"]),
    ],
)
def test_sonic_gets_the_ports_real_names(given: str, ports: list[str]) -> None:
    """A port of four lanes that is broken out has four names; one of eight lanes takes every eighth."""
    text = STAR.format(hosts=3, more="").replace('"tor"\n', f'"tor"\ninterfaces = {given}\n', 1)
    network = model.parse(text)
    config = devices.sonic(network, build(network), "tor")
    assert schema.faults(config) == []
    assert list(config["PORT_QOS_MAP"]) == ports
    assert list(config["CABLE_LENGTH"]["AZURE"]) == ports


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ('["Ethernet0"]', "net:5: tor has 3 ports, and 1 names"),
        ('["Ethernet[0-2]", "Ethernet1"]', ""),
        ('["Ethernet1", "Ethernet[0-2]"]', "net:5: a port of tor is named twice"),
        ('["swp1"]', "net:5: 'swp1' is no \"Ethernet0\""),
        ('"Ethernet0"', "is not a list of texts"),
        ("[0, 4, 8]", "is not a list of texts"),
    ],
)
def test_names_of_ports_that_do_not_fit(given: str, fault: str) -> None:
    text = STAR.format(hosts=3, more="").replace('"tor"\n', f'"tor"\ninterfaces = {given}\n', 1)
    if not fault:
        planner.plan(model.parse(text, "net"))
        return
    with pytest.raises(NetworkError) as caught:
        planner.plan(model.parse(text, "net"))
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("table", "key", "field", "value", "fault"),
    [
        ("WRED_PROFILE", "ROCE_25G", "green_drop_probability", "101", "101 is not from 0 to 100"),
        ("WRED_PROFILE", "ROCE_25G", "green_max_threshold", "1", "below green_min_threshold"),
        ("WRED_PROFILE", "ROCE_25G", "ecn", "on", "'on' is not allowed"),
        ("QUEUE", "Ethernet0|5", "wred_profile", "NONE", "there is no 'NONE' in WRED_PROFILE"),
        ("QUEUE", "eth0|5", "scheduler", "ROCE", "not a key of this table"),
        ("PORT_QOS_MAP", "Ethernet0", "pfc_enable", "8", "'8' is not allowed"),
        ("PORT_QOS_MAP", "Ethernet0", "pfc", "5", "no such field"),
        ("PFC_WD", "Ethernet0", "POLL_INTERVAL", "100", "not in this row"),
        ("PFC_WD", "GLOBAL", "POLL_INTERVAL", "300", "200 is below POLL_INTERVAL, 300"),
        ("NO_TABLE", "x", "y", "z", "no such table"),
    ],
)
def test_what_sonic_refuses(
    example: model.Network, table: str, key: str, field: str, value: str, fault: str
) -> None:
    config = devices.sonic(example, build(example), "tor1")
    config.setdefault(table, {}).setdefault(key, {})[field] = value
    found = schema.faults(config)
    assert found
    assert all(fault in each for each in found)


def test_host_commands_are_a_shell_script(example: model.Network, tmp_path: Path) -> None:
    script = tmp_path / "host.sh"
    script.write_text(devices.host_commands(example, 3), encoding="utf-8")
    subprocess.run(["sh", "-n", str(script)], check=True)
    assert "--pfc 0,0,0,0,0,1,0,0" in script.read_text(encoding="utf-8")
    assert "AIORDMA_TRAFFIC_CLASS=186" in script.read_text(encoding="utf-8")


def test_an_alpha_that_sonic_has_not() -> None:
    network = star(4, "[pfc]\nalpha = 0.3")
    part = devices.section(network, build(network))
    assert verdicts(part)["SONiC can set alpha"] is Verdict.WARNING
    assert (
        json.loads(part.files["sonic-tor.json"])["BUFFER_PROFILE"]["pg_lossless_25G_15m"]["dynamic_th"]
        == "-2"
    )


def test_the_whole_plan(example: model.Network) -> None:
    report = planner.plan(example)
    assert [section.title for section in report.sections] == [
        "Marking and queues", "Scheduling", "PFC: pauses and headroom", "ECN", "Deadlock",
        "Settings for devices",
    ]  # fmt: skip
    assert report.verdict is Verdict.WARNING
    assert set(report.files()) == {
        *(f"sonic-{kind}{n}.json" for kind in ("tor", "spine") for n in range(1, 5)),
        "host-host.sh",
    }
    assert all(number.formula for section in report.sections for number in section.numbers)
