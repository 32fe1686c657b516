"""Settings for Cumulus Linux, EOS and Junos: the plan's numbers, in forms that the vendors document."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from rocefabric import devices, model, planner, ports, targets
from rocefabric.errors import NetworkError
from rocefabric.report import Verdict
from rocefabric.topology import build

from .networks import STAR

if TYPE_CHECKING:
    from pathlib import Path

    from rocefabric.report import Section

SYSTEMS = ("cumulus", "eos", "junos")
FILES = {"cumulus": "cumulus-tor.sh", "eos": "eos-tor.cfg", "junos": "junos-tor.set"}

#: By hand, for ports of 25G with 15 m: ceil(1.1 x (1500 + 2 x 1538 x 8 / 25 + 150) ns x 25 / 672) cells.
HEADROOM = 108 * 208
#: Half of 25G x 2.663 us in frames of six cells, and 20 us of them; the CNPs of 32 flows, rounded up.
KMIN, KMAX, PMAX, CAP = 22 * 208, 339 * 208, 8, 510_000


def network(system: str, more: str = "", keys: str = "", hosts: int = 3) -> model.Network:
    """Hosts at one switch with this system."""
    text = STAR.format(hosts=hosts, more=f"[pfc]\nalpha = 0.125\n{more}")
    return model.parse(text.replace('"tor"\n', f'"tor"\nsystem = "{system}"\n{keys}\n', 1), "net")


def settings(system: str, more: str = "", keys: str = "") -> list[str]:
    """The lines for the switch, without comments."""
    text = planner.plan(network(system, more, keys)).files()[FILES[system]]
    return [line for line in text.splitlines() if not line.lstrip().startswith(("#", "!"))]


def part_of(system: str, more: str = "") -> Section:
    found = network(system, more)
    return devices.section(found, build(found))


#: What the vendors' public references allow, as patterns of whole lines. Names of profiles are ours.
_DSCP, _QUEUE, _PERCENT = r"(?:\d|[1-5]\d|6[0-3])", "[0-7]", r"(?:100|[1-9]?\d)"
GRAMMAR = {
    "cumulus": [
        "set -e",
        f"nv set qos mapping default-global (trust l3|dscp {_DSCP} switch-priority {_QUEUE})",
        f"nv set qos egress-queue-mapping default-global switch-priority {_QUEUE} traffic-class {_QUEUE}",
        f"nv set qos traffic-pool default-(lossless|lossy) memory-percent {_PERCENT}",
        r"nv set qos advance-buffer-config default-global ingress-lossless-buffer shared-alpha "
        r"alpha_(1_(2|4|8|16|32|64|128)|1|2|4|8|16|32|64)",
        rf"nv set qos pfc [\w-]+ (switch-priority {_QUEUE}|[rt]x (en|dis)able|cable-length [1-9]\d{{0,5}})",
        r"nv set qos pfc-watchdog (polling-interval [1-9]\d{2,3}|robustness [1-9]\d{0,3})",
        rf"nv set qos congestion-control [\w-]+ traffic-class {_QUEUE} "
        rf"((ecn|red) (en|dis)able|(min|max)-threshold \d+|probability {_PERCENT})",
        rf"nv set qos egress-scheduler [\w-]+ traffic-class {_QUEUE} "
        rf"(mode (dwrr|strict)|bw-percent {_PERCENT})",
        rf"nv set qos egress-shaper [\w-]+ traffic-class {_QUEUE} max-rate \d{{1,10}}",
        r"nv set interface swp\d+(s\d)? qos ((pfc|congestion-control|egress-scheduler|egress-shaper) profile "
        r"[\w-]+|pfc-watchdog state enable)",
    ],
    "eos": [
        rf"qos map dscp {_DSCP}( {_DSCP})* to traffic-class {_QUEUE}",
        f"qos map traffic-class {_QUEUE} to uc-tx-queue {_QUEUE}",
        r"platform trident mmu queue profile \w+( apply)?",
        r"   ingress threshold (1/(2|4|8|16|32|64)|1|2|4|8)",
        r"   ingress headroom \d+",
        r"priority-flow-control pause watchdog action drop",
        r"priority-flow-control pause watchdog default (timeout|recovery-time|polling-interval) [\d.]+",
        r"qos profile [\w-]+",
        r"   qos trust dscp",
        f"   priority-flow-control (on|priority {_QUEUE} no-drop|pause watchdog)",
        f"   uc-tx-queue {_QUEUE}",
        r"      (no priority|priority strict)",
        f"      bandwidth percent {_PERCENT}",
        r"      shape rate \d+ kbps",
        r"      random-detect ecn minimum-threshold \d+ bytes maximum-threshold \d+ bytes "
        rf"max-mark-probability {_PERCENT} weight (\d|1[0-5])",
        r"interface Ethernet\d+(/\d+){0,2}",
        r"   service-profile [\w-]+",
    ],
    "junos": [
        "set class-of-service " + line
        for line in (
            f"forwarding-classes class queue{_QUEUE} queue-num {_QUEUE}( no-loss pfc-priority {_QUEUE})?",
            r"classifiers dscp \w+ forwarding-class queue\d loss-priority low code-points [01]{6}",
            r"congestion-notification-profile [\w-]+ input (dscp code-point [01]{6} pfc|cable-length \d+)",
            r"congestion-notification-profile [\w-]+ output ieee-802.1 code-point [01]{3} "
            r"flow-control-queue \d",
            r"congestion-notification-profile [\w-]+ pfc-watchdog (poll-interval|detection|recovery) \d+",
            f"shared-buffer (in|e)gress buffer-partition (lossless|lossless-headroom|lossy|multicast) "
            f"percent {_PERCENT}",
            r"shared-buffer ingress buffer-partition lossless dynamic-threshold (\d|10)",
            rf"schedulers [\w-]+ (transmit-rate percent {_PERCENT}|priority strict-high|shaping-rate \d+k|"
            r"explicit-congestion-notification|drop-profile-map loss-priority any protocol any "
            r"drop-profile [\w-]+)",
            rf"drop-profiles [\w-]+ interpolate (fill-level|drop-probability) {_PERCENT} "
            rf"(fill-level|drop-probability) {_PERCENT}",
            r"scheduler-maps [\w-]+ forwarding-class queue\d scheduler [\w-]+",
            r"interfaces (et|xe|ge)-\d+/\d+/\d+(:\d)? (congestion-notification-profile [\w-]+|"
            r"scheduler-map [\w-]+|unit 0 classifiers dscp \w+)",
        )
    ],
}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(
    ("more", "keys"),
    [
        ("", ""),
        ('[marking]\npreset = "sonic"', ""),
        ('[marking]\npreset = "nvidia"\n[ecn]\npmax_percent = 100', "dscp_queue = {10 = 1}"),
        ("watchdog_ms = 5000\nmargin_percent = 0", ""),
    ],
)
def test_every_line_has_a_documented_form(system: str, more: str, keys: str) -> None:
    patterns = [re.compile(each, re.ASCII) for each in GRAMMAR[system]]
    lines = settings(system, more, keys)
    assert len(lines) > 30
    assert [line for line in lines if not any(each.fullmatch(line) for each in patterns)] == []


def test_cumulus_gets_the_plan() -> None:
    lines = settings("cumulus")
    assert "nv set qos mapping default-global dscp 46 switch-priority 5" in lines
    assert "nv set qos mapping default-global dscp 48 switch-priority 6" in lines
    assert sum(" dscp " in line and line.endswith("switch-priority 2") for line in lines) == 62
    assert (
        "nv set qos advance-buffer-config default-global ingress-lossless-buffer shared-alpha alpha_1_8"
        in lines
    )
    begin = "nv set qos congestion-control roce-25g traffic-class 5"
    assert f"{begin} min-threshold {KMIN}" in lines
    assert f"{begin} max-threshold {KMAX}" in lines
    assert f"{begin} probability {PMAX}" in lines
    assert f"nv set qos egress-shaper roce traffic-class 6 max-rate {CAP}" in lines
    assert "nv set qos pfc roce-25g-15m cable-length 15" in lines
    assert "nv set qos pfc-watchdog robustness 2" in lines  # 200 ms of 100 each
    assert [line for line in lines if "swp3" in line] == [
        "nv set interface swp3 qos pfc profile roce-25g-15m",
        "nv set interface swp3 qos congestion-control profile roce-25g",
        "nv set interface swp3 qos egress-scheduler profile roce",
        "nv set interface swp3 qos egress-shaper profile roce",
        "nv set interface swp3 qos pfc-watchdog state enable",
    ]


def test_a_shell_runs_the_commands_for_cumulus(tmp_path: Path) -> None:
    """With a `nv` that writes down what it is told."""
    tool, told, script = tmp_path / "nv", tmp_path / "told", tmp_path / "it.sh"
    tool.write_text(f'#!/bin/sh\necho "$*" >> {told}\n', encoding="utf-8")
    tool.chmod(0o755)
    script.write_text(planner.plan(network("cumulus")).files()["cumulus-tor.sh"], encoding="utf-8")
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(["sh", str(script)], check=True, env=os.environ | {"PATH": path})
    lines = [f"nv {line}" for line in told.read_text(encoding="utf-8").splitlines()]
    assert lines == settings("cumulus")[1:]


def test_eos_gets_the_plan() -> None:
    lines = settings("eos")
    assert "qos map dscp 46 to traffic-class 5" in lines
    assert "   ingress threshold 1/8" in lines
    assert f"   ingress headroom {HEADROOM}" in lines
    assert (
        f"      random-detect ecn minimum-threshold {KMIN} bytes maximum-threshold {KMAX} bytes "
        f"max-mark-probability {PMAX} weight 0"
    ) in lines
    assert f"      shape rate {CAP} kbps" in lines
    assert [line.split()[-1] for line in lines if "watchdog default" in line] == ["0.2", "0.4", "0.1"]
    assert lines[-2:] == ["interface Ethernet3", "   service-profile ROCE-25G"]


def test_eos_reserves_the_largest_headroom_at_each_port() -> None:
    """1024 m at one port: (1500 + 984.32 + 10240) ns x 25 / 672 x 1.1 = 521 cells, for all of 18 ports."""
    more = '[[hosts]]\nname = "far"\n[[links]]\na = "far"\nb = "tor"\nrate_gbps = 25\nlength_m = 1024\n'
    more += "[ecn]\nkmin_cells = 20\nkmax_cells = 40\n"
    # 18 x 2 x 45 guaranteed, 17 x 108 + 521 planned, 18 x 521 for EOS: 3,977 and 10,998 cells.
    keys = f"buffer_bytes = {10_000 * 208}"
    found = network("eos", more, keys, hosts=17)
    checks = {check.name: check for check in devices.section(found, build(found)).checks}
    check = checks["tor: EOS' one headroom for all ports fits"]
    assert check.verdict is Verdict.BROKEN
    assert "521 cells for each of 18 ports leave -998 cells" in check.text


def test_junos_gets_the_plan_as_far_as_it_can() -> None:
    lines = [line.removeprefix("set class-of-service ") for line in settings("junos")]
    assert "forwarding-classes class queue5 queue-num 5 no-loss pfc-priority 5" in lines
    assert "classifiers dscp roce forwarding-class queue5 loss-priority low code-points 101110" in lines
    assert "congestion-notification-profile roce-25g-15m input dscp code-point 101110 pfc" in lines
    assert (
        "congestion-notification-profile roce-25g-15m output ieee-802.1 code-point 101 flow-control-queue 5"
        in lines
    )
    assert "congestion-notification-profile roce-25g-15m pfc-watchdog detection 2" in lines
    assert "shared-buffer ingress buffer-partition lossless dynamic-threshold 4" in lines  # 7 is alpha 1
    for side in ("ingress", "egress"):
        percents = [
            int(line.split()[-1]) for line in lines if f"{side} buffer" in line and " percent " in line
        ]
        assert sum(percents) == 100
    # 1 % of 80 % of 32 MiB are 268 kB: neither 5 nor 71 kB can be set.
    checks = {check.name: check for check in part_of("junos").checks}
    check = checks["tor: Junos can set Kmin and Kmax"]
    assert check.verdict is Verdict.WARNING
    assert "planned 5 and 71 kB; 1 and 2 % of a queue of 26.8 MB are 268 and 537 kB" in check.text


def test_junos_sets_thresholds_that_are_whole_percents() -> None:
    """2 and 6 % of 26.84 MB are 2,581 and 7,743 cells."""
    more = "[ecn]\nkmin_cells = 2581\nkmax_cells = 7743\npmax_percent = 20"
    lines = settings("junos", more)
    assert "set class-of-service drop-profiles roce-25g interpolate fill-level 2 fill-level 6" in lines
    assert (
        "set class-of-service drop-profiles roce-25g interpolate drop-probability 0 drop-probability 20"
        in lines
    )
    checks = {check.name: check.verdict for check in part_of("junos", more=more).checks}
    assert checks["tor: Junos can set Kmin and Kmax"] is Verdict.OK


@pytest.mark.parametrize("system", SYSTEMS)
def test_both_lossless_classes_are_paused(system: str) -> None:
    text = "\n".join(settings(system, '[marking]\npreset = "sonic"'))
    for queue in (3, 4):
        wanted = {
            "cumulus": f"pfc roce-25g-15m switch-priority {queue}",
            "eos": f"priority-flow-control priority {queue} no-drop",
            "junos": f"queue-num {queue} no-loss pfc-priority {queue}",
        }
        assert wanted[system] in text


@pytest.mark.parametrize(
    ("system", "alpha", "set_to"),
    [("cumulus", 0.3, "0.25"), ("eos", 1 / 128, "0.015625"), ("junos", 16, "8"), ("eos", 0.3, "0.25")],
)
def test_an_alpha_that_a_system_has_not(system: str, alpha: float, set_to: str) -> None:
    found = model.parse(
        STAR.format(hosts=3, more=f"[pfc]\nalpha = {alpha}").replace(
            '"tor"\n', f'"tor"\nsystem = "{system}"\n', 1
        )
    )
    (check,) = (each for each in devices.section(found, build(found)).checks if "can set alpha" in each.name)
    assert check.verdict is Verdict.WARNING
    assert check.text.endswith(f"sets {set_to}")


@pytest.mark.parametrize(
    ("weights", "percents"),
    [
        ({2: 30, 5: 70}, {2: 30, 5: 70}),
        ({1: 30, 3: 70, 4: 70}, {1: 17, 3: 41, 4: 42}),
        ({0: 1, 1: 1, 2: 100, 5: 100}, {0: 1, 1: 1, 2: 49, 5: 49}),
    ],
)
def test_shares_are_whole_percents(weights: dict[int, int], percents: dict[int, int]) -> None:
    found = targets.percents(weights)
    assert sum(found.values()) == 100
    assert found == percents


# ---- names


@pytest.mark.parametrize(
    ("system", "given", "names"),
    [
        ("cumulus", '["swp[1-2]s[0-1]"]', ["swp1s0", "swp1s1", "swp2s0"]),
        ("cumulus", '["swp9", "swp[1-30/10]"]', ["swp9", "swp1", "swp11"]),
        ("eos", '["Ethernet[7-8]/1", "Ethernet3/1/4"]', ["Ethernet7/1", "Ethernet8/1", "Ethernet3/1/4"]),
        ("junos", '["et-0/0/[4-5]:0", "xe-0/1/007"]', ["et-0/0/4:0", "et-0/0/5:0", "xe-0/1/7"]),
    ],
)
def test_ports_have_the_systems_names(system: str, given: str, names: list[str]) -> None:
    found = network(system, keys=f"interfaces = {given}")
    assert ports.interfaces(found, build(found), "tor") == names
    text = planner.plan(found).files()[FILES[system]]
    assert [name for name in names if not re.search(rf"{re.escape(name)}(?![\d:s])", text)] == []


#: None of these is a name of a port; some would be lines of their own, or run on a switch.
HOSTILE = [
    "swp1\\nreboot", "Ethernet1\\nreload now", "et-0/0/0\\nset system root-authentication", "swp1; reboot",
    "swp1 $(reboot)", "swp1`reboot`", "Ethernet1/1 | bash", "swp1,swp2", "swp-1", "swp", "", " swp1", "swp1 ",
    "swp\\u0661", "swp[1-2", "swp[1-999999]", "et-0/0", "Ethernet[0-4/0000]", "lo", "swp1\\u0000",
    "..", "swp[2-1]",
]  # fmt: skip


@pytest.mark.parametrize("system", ["sonic", *SYSTEMS])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_of_the_file_reaches_a_switch(system: str, name: str) -> None:
    for hostile in (name, f"{ports.FORMS[system][1]}\\n{name}"):
        with pytest.raises(NetworkError, match=r"^net:6: "):
            planner.plan(network(system, keys=f'interfaces = ["{hostile}"]'))


@pytest.mark.parametrize("name", ["h\\nreboot", "h; reboot", "h$(id)", "h h", "../h", "", "h'"])
@pytest.mark.parametrize("kind", ["host", "tor"])
def test_names_of_hosts_and_switches_are_plain(kind: str, name: str) -> None:
    text = STAR.format(hosts=2, more="").replace(f'"{kind}"', f'"{name}"')
    with pytest.raises(NetworkError):
        planner.plan(model.parse(text))


def test_a_range_is_not_expanded_beyond_need() -> None:
    found = network("junos", keys='interfaces = ["et-[0-99999]/[0-99999]/[0-99999]:[0-99999]"]')
    assert ports.interfaces(found, build(found), "tor") == ["et-0/0/0:0", "et-0/0/0:1", "et-0/0/0:2"]
