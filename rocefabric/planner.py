"""From a network to the settings of its switches and hosts: the six parts of the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import deadlock, devices, ecn, headroom, marking, scheduling
from .report import Report
from .topology import build

if TYPE_CHECKING:
    from .model import Network

__all__ = ["plan"]


def plan(network: Network) -> Report:
    """Plan a network.

    :returns: marking, scheduling, PFC, ECN, deadlock, and settings for devices, in this order.
    :raises NetworkError: if the network's parts do not fit together.
    """
    topology = build(network)
    parts = (marking, scheduling, headroom, ecn, deadlock, devices)
    return Report(f"Plan of {network.name}", [part.section(network, topology) for part in parts])
