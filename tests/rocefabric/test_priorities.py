"""Pauses name priorities: hosts and switches must mean the same one, or neither obeys the other."""

from __future__ import annotations

import json

import pytest

from rocefabric import devices, headroom, marking, model, planner, scheduling, schema
from rocefabric.errors import NetworkError
from rocefabric.report import Verdict
from rocefabric.topology import build

from .networks import STAR, star


def wrong(network: model.Network) -> list[str]:
    """What the plan's first part calls broken."""
    part = marking.section(network, build(network))
    return [f"{check.name}: {check.text}" for check in part.checks if check.verdict is Verdict.BROKEN]


def test_dscp_26_with_the_articles_queue_is_broken() -> None:
    """Hosts pause 26 // 8 = 3 and switches 5."""
    network = star(4, "[marking]\nroce_dscp = 26")
    assert planner.plan(network).verdict is Verdict.BROKEN
    (text,) = wrong(network)
    assert text.startswith(
        "Hosts and switches pause the same priority for DSCP 26: hosts pause priority 3 and "
    )
    assert "set in [marking] roce_priority = 5" in text
    assert "roce_queue = 3" in text
    assert "a roce_dscp from 40 to 47" in text


@pytest.mark.parametrize("queue", range(8))
def test_each_dscp_and_queue(queue: int) -> None:
    others = f"cnp_queue = {(queue + 1) % 8}\nother_queue = {(queue + 2) % 8}"
    for dscp in sorted({*range(64)} - {0, 48}):
        network = star(2, f"[marking]\nroce_dscp = {dscp}\nroce_queue = {queue}\n{others}")
        found = [text for text in wrong(network) if "the same priority" in text]
        assert bool(found) == (dscp // 8 != queue)


@pytest.mark.parametrize("remedy", ["roce_priority = 5", "roce_queue = 3", "roce_dscp = 40"])
def test_each_remedy_mends_it(remedy: str) -> None:
    keys = {"roce_dscp": "26"} | dict([remedy.split(" = ")])
    network = star(4, "[marking]\n" + "\n".join(f"{key} = {value}" for key, value in keys.items()))
    assert wrong(network) == []


def test_what_hosts_pause_must_not_hold_notifications() -> None:
    (text,) = wrong(star(4, "[marking]\ncnp_dscp = 47"))
    assert "Hosts do not pause CNPs with RoCE: DSCP 47 has priority 5" in text
    assert "cnp_dscp outside 40 to 47" in text
    (text,) = wrong(star(4, "[marking]\nother_dscp = 40"))
    assert "Hosts do not pause everything else with RoCE" in text


@pytest.mark.parametrize(
    ("preset", "classes", "pfc"),
    [
        ("ucloud", [(46, 5, 5)], "0,0,0,0,0,1,0,0"),
        ("nvidia", [(26, 3, 3)], "0,0,0,1,0,0,0,0"),
        ("sonic", [(3, 3, 3), (4, 4, 4)], "0,0,0,1,1,0,0,0"),
    ],
)
def test_presets(preset: str, classes: list[tuple[int, int, int]], pfc: str) -> None:
    network = star(4, f'[marking]\npreset = "{preset}"')
    found = network.marking
    assert [(each.dscp, each.queue, each.priority) for each in found.lossless()] == classes
    assert (found.cnp_dscp, found.cnp_queue) == (48, 6)
    assert wrong(network) == []
    report = planner.plan(network)
    assert report.verdict is not Verdict.BROKEN
    script = report.files()["host-host.sh"]
    assert f"--pfc {pfc}" in script
    for dscp, _, priority in classes:
        assert f"--dscp2prio set,{dscp},{priority}" in script
        assert f"roce_rp/enable/{priority}" in script
    config = json.loads(report.files()["sonic-tor.json"])
    queues = [str(queue) for _, queue, _ in classes]
    assert schema.faults(config) == []
    assert config["PORT_QOS_MAP"]["Ethernet0"]["pfc_enable"] == ",".join(queues)
    assert list(config["MAP_PFC_PRIORITY_TO_QUEUE"]["ROCE"]) == queues
    for dscp, queue, _ in classes:
        assert config["DSCP_TO_TC_MAP"]["ROCE"][str(dscp)] == str(queue)
        assert config["QUEUE"][f"Ethernet0|{queue}"]["wred_profile"] == "ROCE_25G"
        assert f"Ethernet0|{queue}" in config["BUFFER_PG"]


def test_keys_beside_a_preset_come_first() -> None:
    found = star(4, '[marking]\npreset = "nvidia"\nroce_dscp = 24').marking
    assert (found.roce_dscp, found.roce_queue) == (24, 3)
    with pytest.raises(NetworkError, match=r"net:14: preset = 'cisco' is none of: ucloud, nvidia, sonic"):
        model.parse(STAR.format(hosts=2, more='[marking]\npreset = "cisco"'), "net")
    with pytest.raises(NetworkError, match=r"net:14: preset = \[\] is not a text"):
        model.parse(STAR.format(hosts=2, more="[marking]\npreset = []"), "net")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("second_dscp = 4", "belong together"),
        ("second_dscp = 4\nsecond_queue = 5", "need a queue each"),
        ("second_dscp = 46\nsecond_queue = 4", "need a DSCP each"),
    ],
)
def test_a_second_class_needs_its_own(more: str, text: str) -> None:
    with pytest.raises(NetworkError, match=text):
        star(4, f"[marking]\n{more}")


def test_a_second_class_has_buffers_of_its_own() -> None:
    """Four ports of 25G, 15 m: headroom ceil(98.0 x 1.1) = 108, and 45 cells guaranteed to each group."""
    one, two = star(4), star(4, "[marking]\nsecond_dscp = 32\nsecond_queue = 4")
    divisions = [headroom.buffers(each, build(each), "tor") for each in (one, two)]
    total = (32 << 20) // 208
    assert divisions[0].shared == total - 4 * 108 - 4 * 2 * 45
    assert divisions[1].shared == total - 4 * 2 * 108 - 4 * 3 * 45
    shares = {number.name: number.value for number in scheduling.section(two, build(two)).numbers}
    cap = scheduling.cnp_cap_bps(two) / 1e9
    assert shares["Share of RoCE at 25G with CNPs flooded"] == pytest.approx((25 - cap) * 70 / 170)


def test_a_switch_with_a_map_of_its_own_gets_it() -> None:
    """The check reads `dscp_queue`, and so must what is written for the switch."""
    text = STAR.format(hosts=2, more="").replace('"tor"\n', '"tor"\ndscp_queue = {10 = 1}\n', 1)
    network = model.parse(text)
    config = devices.sonic(network, build(network), "tor")
    assert config["DSCP_TO_TC_MAP"]["ROCE"]["10"] == "1"
