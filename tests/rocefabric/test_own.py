"""Traffic from a file: what is sent is what it says; what cannot be sent is refused with its line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocefabric import model, own, simulate, suite, tune
from rocefabric.errors import NetworkError
from rocefabric.simulate import ENDLESS, Failure, Traffic, Transfer
from rocefabric.topology import build

from .networks import EXAMPLE, star

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = """\
name = "backup"
duration_us = 900
busy = ["host1"]
[[transfers]]
source = "host"
target = "host1"
bytes = 1000
start_us = 10
times = 2
every_us = 300
[[transfers]]
source = "host2"
target = "host3"
tcp = true
[[slow]]
host = "host3"
gbps = 2.5
"""
PLAIN = '[[transfers]]\nsource = "host2"\ntarget = "host1"\n'


def made(text: str, network: model.Network | None = None) -> Traffic:
    return own.make(own.parse(text, "own.toml"), build(network or star(3)))


def test_a_file_says_what_hosts_send() -> None:
    assert made(WHOLE) == Traffic(
        "backup",
        (
            Transfer("host2", "host1", 1000, 10),
            Transfer("host3", "host1", 1000, 10),
            Transfer("host2", "host1", 1000, 310),
            Transfer("host3", "host1", 1000, 310),
            Transfer("host2", "host3", ENDLESS, 0, roce=False),
        ),
        900,
        (),
        {"host3": 2.5},
        ("host1",),
    )


def test_all_to_all_is_everybody_but_oneself() -> None:
    found = made('[[transfers]]\nsource = "*"\ntarget = "*"\nbytes = 1\n')
    pairs = [(each.source, each.target) for each in found.transfers]
    assert sorted(pairs) == [(f"host{a}", f"host{b}") for a in (1, 2, 3) for b in (1, 2, 3) if a != b]


def test_a_cable_breaks_by_the_names_of_its_ends() -> None:
    """The example's cables between switches are tor1 - spine1, tor1 - spine2, ...: four for each ToR."""
    cut = '[[failures]]\na = "spine2"\nb = "tor3"\nat_us = 5\nconverge_us = 7\n'
    found = made(PLAIN + cut, model.load(EXAMPLE))
    assert found.failures == (Failure(5, 9, 7),)
    network = model.load(EXAMPLE)
    running = simulate.assemble(network, made(PLAIN + cut, network))
    running.sim.run(10_000_000)
    down = [name for number, name in running.switch_ports().items() if running.sim.port(number)["down"]]
    assert sorted(down) == ["spine2 to tor3", "tor3 to spine2"]


def test_what_was_sent_arrives() -> None:
    """4 transfers of 1,000 bytes; TCP goes on to a host that takes 2.5 Gb/s of RoCE only."""
    outcome = suite.run(star(3), [made(WHOLE)], workers=1)[0]
    assert (outcome.traffic, outcome.transfers, outcome.finished) == ("backup", 5, 4)
    assert outcome.lossless_drops == 0


def test_results_are_kept_by_what_is_sent() -> None:
    one, other = made(PLAIN), made(PLAIN + "bytes = 7\n")
    keys = {suite.Job(star(3), each.name, own=each).key() for each in (one, other)}
    keys.add(suite.Job(star(3), one.name).key())
    assert len(keys) == 3
    assert suite.Job(star(3), "own", own=made(PLAIN)).key() == suite.Job(star(3), "own", own=one).key()


def test_a_search_takes_only_ones_own_traffic() -> None:
    trials = tune.tune(star(3), trials=1, models=[made(PLAIN + "bytes = 5000\n")])
    assert len(trials) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "own.toml:1: the traffic has no [[transfers]]"),
        ("[transfers]\n", "own.toml:1: write [[transfers]]"),
        ('[[transfers]]\nsource = "host1"\n', "own.toml:1: [transfers] has no 'target'"),
        (PLAIN + "byte = 5\n", "own.toml:4: unknown key 'byte'"),
        (PLAIN + "bytes = 0\n", "own.toml:4: bytes = 0 is less than 1"),
        (PLAIN + "bytes = 1e3\n", "own.toml:4: bytes = 1000.0 is not a whole number"),
        (PLAIN + "start_us = nan\n", "own.toml:4: start_us is no number"),
        (PLAIN + "every_us = inf\n", "own.toml:4: every_us is no number"),
        (PLAIN + "start_us = -1\n", "own.toml:4: start_us = -1 is less than 0"),
        (PLAIN + "times = 100001\n", "own.toml:4: times = 100001 is more than 100000"),
        ("duration_us = 1e9\n" + PLAIN, "own.toml:1: duration_us = 1000000000.0 is more than"),
        ("seconds = 1\n" + PLAIN, "own.toml:1: unknown key 'seconds'"),
        ('name = "../x"\n' + PLAIN, "own.toml:1: name is no name of small letters"),
        ('name = "endless-1"\n' + PLAIN, "own.toml:1: a model that comes with the simulator"),
        ('busy = ["host9"]\n' + PLAIN, "own.toml:1: there is no host and no group of hosts 'host9'"),
        (PLAIN.replace("host2", "tor"), "own.toml:2: there is no host and no group of hosts 'tor'"),
        (PLAIN.replace("host2", "host1"), "own.toml:1: host1 would send to itself"),
        (PLAIN + '[[failures]]\na = "tor"\nb = "tor2"\n', "own.toml:4: there is no cable between switches"),
        (PLAIN + '[[slow]]\nhost = "host1"\ngbps = 0\n', "own.toml:6: gbps = 0 is less than"),
        (PLAIN + '[[slow]]\nhost = "x"\ngbps = 1\n', "own.toml:5: there is no host"),
        ("a = " + "[" * 5000, "own.toml:"),
        (
            '[[transfers]]\nsource = "*"\ntarget = "*"\ntimes = 50000\n',
            "own.toml:1: these are more than 100000 transfers",
        ),
        (
            '[[transfers]]\nsource = "*"\ntarget = "*"\ntimes = 16000\n' * 2,
            "own.toml:1: there are more than 100000 transfers",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(NetworkError) as caught:
        made(text)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 300


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(NetworkError, match="is not UTF-8"):
        own.load(path)
