"""Networks from LLDP: cables, names of ports, and systems; what devices say brings no lines of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from rocefabric import lldp, model, planner, ports
from rocefabric.errors import NetworkError
from rocefabric.topology import build

from .networks import EXAMPLE, star

if TYPE_CHECKING:
    from pathlib import Path

SONIC, CUMULUS = "SONiC Software Version: SONiC.202305", "Cumulus Linux version 5.9.1 running on Mellanox"


def entry(port: str, name: str, theirs: str, descr: str = "", forwards: bool = True) -> dict[str, Any]:
    """As lldpcli writes it."""
    chassis = {
        "id": {"type": "mac", "value": "00:00:00:00:00:02"},
        "descr": descr,
        "capability": [{"type": "Bridge", "enabled": forwards}, {"type": "Wlan", "enabled": False}],
    }
    about = {"type": "ifname", "value": theirs}
    return {port: {"via": "LLDP", "chassis": {name: chassis}, "port": {"id": about, "ttl": "120"}}}


def dump(*entries: dict[str, Any]) -> str:
    """One entry is an object, several are a list."""
    return json.dumps({"lldp": {"interface": entries[0] if len(entries) == 1 else list(entries)}})


def found(switches: tuple[str, ...] = (), **texts: str) -> lldp.Found:
    return lldp.read({name: (text, f"{name}.json") for name, text in texts.items()}, switches)


LEAF = dump(
    entry("Ethernet0", "gpu1", "enp1s0", forwards=False),
    entry("Ethernet8", "gpu2", "enp1s0", forwards=False),
    entry("Ethernet120", "spine1.example.com", "swp2", CUMULUS),
    entry("Ethernet124", "spine1.example.com", "swp10", CUMULUS),
    entry("eth0", "office", "ge-0/0/1", "Juniper"),
)
SPINE = dump(
    entry("swp2", "leaf1", "Ethernet120", SONIC),
    entry("swp10", "leaf1", "Ethernet124", SONIC),
    entry("eth0", "office", "ge-0/0/2", "Juniper"),
)


def test_a_network_comes_from_its_neighbours() -> None:
    """Two hosts, a leaf of SONiC and a spine of Cumulus Linux with two cables; both have management ports."""
    network = model.parse(lldp.to_toml(found(leaf1=LEAF, spine1=SPINE), lldp.Cables(100, 2, 400, 20)))
    topology = build(network)
    assert [str(cable) for cable in topology.cables] == [
        "gpu1 - leaf1", "gpu2 - leaf1", "leaf1 - spine1", "leaf1 - spine1",
    ]  # fmt: skip
    assert [(cable.link.rate_gbps, cable.link.length_m) for cable in topology.cables] == [
        (100, 2), (100, 2), (400, 20), (400, 20),
    ]  # fmt: skip
    assert [(each.name, each.system, each.boundary) for each in network.switches] == [
        ("leaf1", "sonic", True), ("spine1", "cumulus", False),
    ]  # fmt: skip
    assert ports.interfaces(network, topology, "leaf1") == [
        "Ethernet0", "Ethernet8", "Ethernet120", "Ethernet124",
    ]  # fmt: skip
    # In the order of the cables: swp2 is at Ethernet120.
    assert ports.interfaces(network, topology, "spine1") == ["swp2", "swp10"]
    assert set(planner.plan(network).files()) == {
        "sonic-leaf1.json", "cumulus-spine1.sh", "host-gpu1.sh", "host-gpu2.sh",
    }  # fmt: skip


def test_one_end_is_enough() -> None:
    both = found(leaf1=LEAF, spine1=SPINE)
    one = found(leaf1=LEAF)
    assert [{port for _, port in cable} for cable in one.cables] == [
        {port for _, port in cable} for cable in both.cables
    ]


def test_hosts_tell_of_their_switch() -> None:
    """One object each, not a list; Linux bridges say they are switches, so patterns say who is one."""
    text = {
        f"gpu{at}": dump(entry("eth0", "tor", f"Ethernet{at}/1", "Arista Networks EOS version 4.31"))
        for at in (1, 2)
    }
    result = found(("tor*",), **text, tor=dump(entry("Ethernet3/1", "gpu3", "eth0", forwards=True)))
    network = model.parse(lldp.to_toml(result, lldp.Cables()))
    assert [each.name for each in network.hosts] == ["gpu1", "gpu2", "gpu3"]
    assert network.switches[0].system == "eos"
    assert network.switches[0].interfaces == ["Ethernet1/1", "Ethernet2/1", "Ethernet3/1"]


def test_names_of_ports_that_a_system_has_not_are_left_out() -> None:
    result = found(
        ("tor",), tor=dump(entry("1/1/1", "a", "eth0", forwards=False), entry("1/1/2", "b", "eth0"))
    )
    network = model.parse(lldp.to_toml(result, lldp.Cables()))
    assert network.switches[0].interfaces == []


def test_what_is_no_cable_is_told() -> None:
    shared = dump(
        entry("Ethernet0", "a", "eth0", forwards=False),
        entry("Ethernet0", "b", "eth0", forwards=False),
        entry("Ethernet4", "c", "eth0", forwards=False),
        {"Ethernet8": {"chassis": {"id": {"type": "mac", "value": "x"}, "descr": "d"}, "port": {}}},
    )
    result = found(("tor",), tor=shared)
    assert result.odd == [
        "tor Ethernet8: its neighbour tells no name",
        "tor Ethernet0: it has 2 neighbours (a eth0, b eth0)",
    ]
    assert [cable[1] for cable in result.cables] == [("tor", "Ethernet4")]


NAMES = [
    'a"\n[marking]\nroce_dscp = 1 #',
    "a b",
    "",
    "../a",
    "a;reboot",
    "a\nreboot",
    "é",
    "x" * 65,
    "a\u0000",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_brings_lines_of_its_own(name: str) -> None:
    for hostile in (
        entry("Ethernet0", name, "eth0"),
        entry("Ethernet0", "a", name),
        entry(name, "a", "eth0"),
    ):
        with pytest.raises(NetworkError, match=r"^tor.json:1: .* is no name of a device or port$"):
            found(tor=dump(hostile, entry("Ethernet4", "b", "eth0")))
    with pytest.raises(NetworkError, match="no name"):
        lldp.read({name: (LEAF, "it.json")})
    with pytest.raises(NetworkError, match="no name of a network"):
        lldp.to_toml(found(leaf1=LEAF, spine1=SPINE), lldp.Cables(), name)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "5", '{"lldp": []}', '{"lldp": {"interface": 5}}', "[" * 100_000, '{"lldp": NaN}',
        "9" * 5000, '{"lldp": {"interface": "x"}}',
    ],
)  # fmt: skip
def test_what_lldpcli_does_not_write_is_refused(text: str) -> None:
    with pytest.raises(NetworkError) as caught:
        found(tor=text)
    assert str(caught.value).startswith("tor.json:1: ")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "odd",
    [
        5, None, [], "x", {}, {"chassis": 5}, {"chassis": {"a": 5}}, {"chassis": {"a": {}, "b": {}}},
        {"chassis": {"a": {"capability": 5}}, "port": {"id": {"type": "ifname", "value": "eth0"}}},
        {"chassis": {"a": {"capability": [5, {"type": "Bridge", "enabled": "yes"}], "descr": 7}},
         "port": {"id": [], "descr": "eth0"}},
    ],
)  # fmt: skip
def test_odd_entries_end_no_program(odd: object) -> None:
    text = json.dumps({"lldp": {"interface": [{"Ethernet0": odd}, 7, None]}})
    result = found(tor=text)
    assert "a" not in result.switches


def test_no_network_is_said_in_one_line() -> None:
    nobody = found(leaf1='{"lldp": {}}')
    with pytest.raises(NetworkError, match=r"^what LLDP found:1: the network has no \[\[switches\]\]"):
        lldp.to_toml(nobody, lldp.Cables())
    with pytest.raises(NetworkError, match="rate_gbps is no number"):
        lldp.to_toml(found(leaf1=LEAF), lldp.Cables(host_gbps=float("nan")))


# ---- networks in JSON


def test_a_network_in_json_has_the_tables_of_toml(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    tables = {
        "name": "one switch",
        "switches": [{"name": "tor"}],
        "hosts": [{"name": "host", "count": 4}],
        "links": [{"a": "host", "b": "tor", "rate_gbps": 25, "length_m": 15}],
        "pfc": {"alpha": 0.5},
    }
    path.write_text(json.dumps(tables), encoding="utf-8")
    assert model.load(path).links == star(4, "[pfc]\nalpha = 0.5").links
    assert model.load(path).pfc.alpha == 0.5
    assert model.load(EXAMPLE).hosts[0].count == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "a network is an object"),
        ("{", "Expecting property name"),
        ('{"switches": 5}', r"write \[\[switches\]\]"),
        ('{"switches": [5]}', "must be a table"),
        ('{"mtu": NaN}', "NaN is no number"),
        ('{"mtu": 1e999}', "mtu = inf is none of"),
        ('{"name": "\\ud800"}', "surrogates not allowed"),
        ('{"x": ' + "[" * 100_000, "nested too deeply"),
        ('{"mtu": ' + "9" * 5000 + "}", "digits"),
    ],
)
def test_json_that_is_no_network(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(NetworkError, match=message) as caught:
        model.load(path)
    assert str(caught.value).startswith(f"{path}:1: ")
