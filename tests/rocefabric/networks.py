"""Networks that several tests plan or simulate."""

from __future__ import annotations

from pathlib import Path

from rocefabric import model

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fabric" / "clos64.toml"

STAR = """\
name = "one switch"
mtu = 1024
[[switches]]
name = "tor"
[[hosts]]
name = "host"
count = {hosts}
[[links]]
a = "host"
b = "tor"
rate_gbps = 25
length_m = 15
{more}
"""

#: Three switches in a circle, with a host each.
RING = """\
[[switches]]
name = "s"
count = 3
[[hosts]]
name = "h"
count = 3
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


def star(hosts: int = 4, more: str = "") -> model.Network:
    """Hosts at one switch."""
    return model.parse(STAR.format(hosts=hosts, more=more), "star.toml")
