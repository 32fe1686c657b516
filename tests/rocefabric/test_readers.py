"""Files of any content: each reader takes them, or says in one line what is wrong."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocefabric import counters, lldp, model, own
from rocefabric.errors import NetworkError
from rocefabric.topology import build

from .networks import STAR, star
from .test_counters import ETHTOOL, GROUP, PORT, QUEUE
from .test_lldp import LEAF
from .test_own import WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_WORDS = [
    "lldp", "interface", "chassis", "port", "id", "type", "value", "descr", "capability", "enabled", "ifname",
    "Ethernet0", "Ethernet0:5", "COUNTERS_PORT_NAME_MAP", "COUNTERS:oid:0x1", "oid:0x1", "np_cnp_sent", *PORT,
    *QUEUE, *GROUP, "switches", "hosts", "links", "name", "count", "a", "b", "rate_gbps", "marking", "preset",
    "pfc", "alpha", "mtu", "system", "interfaces",
]  # fmt: skip
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.sampled_from(_WORDS),
    st.text(max_size=5),
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=5),
    max_leaves=30,
)
_often = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def refused(read: Callable[[], object]) -> None:
    """It ends, and not with another error than the one for users."""
    with contextlib.suppress(NetworkError):
        read()


@_often
@given(value=_VALUES)
def test_any_json(value: object) -> None:
    text = json.dumps(value)
    refused(lambda: counters.parse(text, "it", {5}))

    def network() -> None:
        found = lldp.read({"tor": (text, "it")})
        model.parse(lldp.to_toml(found, lldp.Cables()))

    refused(network)


@_often
@given(value=st.dictionaries(st.sampled_from(_WORDS), _VALUES, max_size=6))
def test_any_network_in_json(value: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    refused(lambda: build(model.load(path)))


_BASES = {
    "network": STAR.format(hosts=3, more='[pfc]\nalpha = 0.5\n[marking]\npreset = "sonic"'),
    "traffic": WHOLE,
    "neighbours": LEAF,
    "counters": ETHTOOL,
    "ports": json.dumps({"Ethernet0": PORT, "Ethernet0:5": QUEUE | GROUP}),
}


def _read(kind: str, text: str) -> object:
    if kind == "network":
        return build(model.parse(text))
    if kind == "traffic":
        return own.make(own.parse(text), build(star(3)))
    if kind == "neighbours":
        return lldp.to_toml(lldp.read({"leaf1": (text, "it")}), lldp.Cables())
    return counters.parse(text, "it", {5})


@_often
@given(
    kind=st.sampled_from(sorted(_BASES)),
    places=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 12), st.text(max_size=6)), min_size=1, max_size=4
    ),
)
def test_files_with_other_characters(kind: str, places: list[tuple[float, int, str]]) -> None:
    """Some characters of a right file are taken out, and others put there."""
    text = _BASES[kind]
    for where, out, new in places:
        at = int(where * len(text))
        text = text[:at] + new + text[at + out :]
    refused(lambda: _read(kind, text))


def test_the_files_are_right_as_they_are() -> None:
    for kind, text in _BASES.items():
        assert _read(kind, text)
