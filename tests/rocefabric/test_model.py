"""Networks from TOML: what is read, and the line of what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocefabric import model
from rocefabric.errors import NetworkError
from rocefabric.topology import build

from .networks import EXAMPLE, RING, STAR

if TYPE_CHECKING:
    from pathlib import Path


def test_the_example_is_read() -> None:
    network = model.load(EXAMPLE)
    topology = build(network)
    assert (len(topology.switches), len(topology.hosts), len(topology.cables)) == (8, 64, 80)
    assert topology.switches_of("host17") == ("tor2",)
    assert len(list(topology.paths("host1", "host64"))) == 4
    assert (network.frame, network.wire) == (1086, 1106)
    assert network.pfc.alpha == 0.125


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("mtu = 1024", "mtu = 1500", 2, "1500 is none of RoCE's"),
        ("mtu = 1024", "mtu = ", 2, "Invalid value"),
        ("mtu = 1024", "mut = 1024", 2, "unknown key 'mut'"),
        ("count = 4", 'count = "4"', 7, "'4' is not a whole number"),
        ("count = 4", "count = 0", 7, "count = 0 is less than 1"),
        ("count = 4", "cuont = 4", 7, "unknown key 'cuont' in [hosts]; there are: name, count, roce"),
        ('a = "host"', 'a = "hosts"', 9, "'hosts' is no switch or host (tor, host)"),
        ("rate_gbps = 25\n", "", 8, "[links] has no 'rate_gbps'"),
        ('name = "host"', 'name = "tor"', 6, "the name 'tor' is taken by line 3"),
        ("length_m = 15", 'medium = "string"', 12, "none of: fibre, aoc, dac"),
        ("length_m = 15", 'pattern = "mesh"\n[pfc]\nlargest_frame = 1000', 14, "below a RoCE frame"),
        ("length_m = 15", "[ecn]\nkmin_cells = 9\nkmax_cells = 8", 14, "kmax_cells is below kmin_cells"),
        ("length_m = 15", "[marking]\nroce_queue = 6", 12, "need a queue each"),
        ("length_m = 15", "[marking]\nroce_dscp = 48", 12, "need a DSCP each"),
        ("length_m = 15", "[ecn]\nweight = 2", 13, "weight = 2 is more than 1"),
        ('name = "tor"', 'name = "tor"\ndscp_queue = {46 = 9}', 5, "46 = 9 is no DSCP below 64"),
        ('name = "tor"', 'name = "tor"\ndscp_queue = {"03" = 5}', 5, "03 = 5 is no DSCP below 64"),
        ('name = "tor"', 'name = "tor"\ndscp_queue = {3 = true}', 5, "3 = True is no DSCP below 64"),
        ("length_m = 15", "[marking]\ncnp_cap_mbps = 1e-13", 13, "cnp_cap_mbps is 0, for the plan's own, or"),
    ],
)
def test_errors_name_the_line(old: str, new: str, line: int, text: str) -> None:
    good = STAR.format(hosts=4, more="")
    assert old in good
    with pytest.raises(NetworkError) as caught:
        model.parse(good.replace(old, new, 1), "net.toml")
    assert str(caught.value).startswith(f"net.toml:{line}: ")
    assert text in str(caught.value)


def test_missing_parts_are_named() -> None:
    with pytest.raises(NetworkError, match=r"net.toml:1: the network has no \[\[switches\]\]"):
        model.parse("mtu = 1024\n", "net.toml")
    uneven = STAR.format(hosts=3, more="").replace('name = "tor"', 'name = "tor"\ncount = 2')
    with pytest.raises(NetworkError, match="3 of 'host' cannot be spread evenly over 2 of 'tor'"):
        build(model.parse(uneven))
    lonely = STAR.format(hosts=2, more='[[hosts]]\nname = "lonely"')
    with pytest.raises(NetworkError, match=r"net\.toml:13: lonely has no link to a switch"):
        build(model.parse(lonely, "net.toml"))
    apart = RING.replace('[[links]]\na = "s"\nb = "s"\npattern = "mesh"\nrate_gbps = 25\n', "")
    with pytest.raises(NetworkError, match="no path between s1 and s2"):
        build(model.parse(apart))


def test_a_mesh_inside_a_group_has_each_pair_once() -> None:
    assert len(build(model.parse(RING)).fabric_cables()) == 3


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        model.load(tmp_path / "none.toml")
