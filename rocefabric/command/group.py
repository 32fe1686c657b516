"""``aiordma fabric``: plan and simulate the lossless network that RDMA runs on."""

from __future__ import annotations

import click

from .compare import compare
from .discover import discover
from .plan import plan
from .simulate import simulate
from .sweep import sweep
from .tune import tune

__all__ = ["fabric"]


@click.group()
def fabric() -> None:
    """Plan and simulate a lossless RoCE network, described in a TOML file.

    \b
    Examples:
      aiordma fabric discover leaf1.json leaf2.json -o network.toml          describe it, from LLDP
      aiordma fabric plan examples/fabric/clos64.toml                        settings, and what they rest on
      aiordma fabric plan examples/fabric/clos64.toml --settings build/plan  files for switches and hosts, too
      aiordma fabric simulate examples/fabric/clos64.toml --model incast-8-64k
      aiordma fabric sweep examples/fabric/clos64.toml --set ecn.kmin_cells=20,60 --model endless-4
      aiordma fabric compare network.toml after --seconds 60                 what devices counted, beside it
      aiordma fabric tune examples/fabric/clos64.toml --trials 100           search better thresholds
    """


for _each in (compare, discover, plan, simulate, sweep, tune):
    fabric.add_command(_each)
