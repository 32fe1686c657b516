"""Networks at the edge of what is a network: one line says what is wrong, or they are planned."""

from __future__ import annotations

import pytest

from rocefabric import model, planner, simulate, sweep, traffic
from rocefabric.errors import NetworkError
from rocefabric.simulate import Failure, Traffic, Transfer
from rocefabric.topology import build

from .networks import STAR, star

#: Two switches with a host each, and one cable between them.
CHAIN = """\
[[switches]]
name = "s"
count = 2
[[hosts]]
name = "h"
count = 2
[[links]]
a = "h"
b = "s"
rate_gbps = 25
[[links]]
a = "s"
b = "s"
pattern = "mesh"
rate_gbps = 25
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (STAR.format(hosts=1, more=""), "net:5: a network has two hosts at least"),
        (CHAIN.replace('pattern = "mesh"\n', ""), "net:11: 's' cannot be spread over itself"),
        (STAR.format(hosts=2, more='[[links]]\na = "tor"\nb = "tor"\nrate_gbps = 1'), "over itself"),
        (
            STAR.format(hosts=2, more='[[links]]\na = "tor"\nb = "tor"\npattern = "mesh"\nrate_gbps = 1'),
            "net:13: 'tor' has one member: it needs no mesh",
        ),
        (STAR.format(hosts=2, more='[[switches]]\nname = "idle"'), "net:13: idle has no link"),
        (CHAIN + '[[switches]]\nname = "s1"\n', "there are two of the name 's1'"),
        (STAR.format(hosts=2, more="").replace('"tor"', '"../tor"'), "net:4: the name '../tor' has more"),
        (STAR.format(hosts=2, more="").replace("= 25", "= inf"), "net:11: rate_gbps is no number"),
        (STAR.format(hosts=2, more="").replace("= 25", "= nan"), "net:11: rate_gbps is no number"),
        (STAR.format(hosts=2, more="").replace("= 25", "= 1e9"), "more than 1600"),
    ],
)
def test_what_is_no_network_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(NetworkError) as caught:
        planner.plan(model.parse(text, "net"))
    assert message in str(caught.value)


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "10,inf"])
def test_a_sweep_takes_numbers_only(value: str) -> None:
    with pytest.raises(NetworkError, match="write TABLE"):
        list(sweep.variants(star(), sweep.parse_settings([f"ecn.kmin_cells={value}"])))


def test_a_switch_with_one_port_is_planned() -> None:
    network = model.parse(STAR.format(hosts=2, more='[[switches]]\nname = "top"\n[[links]]\na = "top"\n'
                                      'b = "tor"\nrate_gbps = 100'))  # fmt: skip
    assert "sonic-top.json" in planner.plan(network).files()


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_every_model_fits_a_few_hosts(hosts: int) -> None:
    network = star(hosts)
    topology = build(network)
    for name in traffic.possible(topology):
        made = traffic.make(name, topology)
        assert made.transfers, name
        assert all(each.source != each.target for each in made.transfers), name
        simulate.assemble(network, made)


def test_models_that_need_more_say_so() -> None:
    network = star(2)
    made = traffic.make("failure-permutation", build(network))
    with pytest.raises(NetworkError, match="no cable between switches"):
        simulate.assemble(network, made)
    plain = STAR.format(hosts=2, more="").replace("count = 2", "count = 2\nroce = false")
    with pytest.raises(NetworkError, match="it needs two hosts with RoCE, and there are 0"):
        traffic.make("endless-1", build(model.parse(plain)))


def test_a_cable_that_was_the_only_way() -> None:
    """Routes cannot follow: what was sent is lost, and the run ends."""
    network = model.parse(CHAIN)
    broken = Traffic("cut", (Transfer("h1", "h2", 1_000_000),), 1000, (Failure(50, 0),))
    outcome = simulate.run(simulate.assemble(network, broken))
    assert outcome.finished == 0
    assert outcome.lost > 0
