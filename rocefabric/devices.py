"""The plan as settings: `config_db.json` fragments for SONiC switches, commands for hosts."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, TypeAlias

from . import schema
from .ecn import thresholds
from .errors import NetworkError
from .headroom import buffers, headroom_cells
from .marking import queue_at
from .report import Section, Verdict
from .scheduling import cnp_cap_bps

if TYPE_CHECKING:
    from .model import Network, Switch
    from .topology import Port, Topology

__all__ = ["LOSSY_ALPHA", "host_commands", "interfaces", "section", "sonic"]

Config: TypeAlias = "dict[str, dict[str, dict[str, str]]]"

_RANGE = re.compile(r"Ethernet(?:(\d{1,5})|\[(\d{1,5})-(\d{1,5})(?:/(\d{1,3}))?\])")

#: Threshold of lossy egress queues: an eighth of what is free.
LOSSY_ALPHA = 1 / 8


def _dynamic(alpha: float) -> int:
    return math.floor(math.log2(alpha))


def _named(rate: float, length: float) -> str:
    return f"{rate:g}G_{length:g}m".replace(".", "p")


def _maps(network: Network, switch: Switch) -> Config:
    marking = network.marking
    queues = {str(dscp): str(queue_at(network, switch, dscp)) for dscp in range(64)}
    same = {str(each): str(each) for each in range(8)}
    lossless = {str(each.queue): str(each.queue) for each in marking.lossless()}
    own = {int(queue) for queue in lossless} | {marking.cnp_queue}
    # Priority group 0 is for lossy traffic: a lossless queue 0 leaves it to them.
    lossy = "0" if "0" not in lossless else str(marking.other_queue)
    groups = {str(each): str(each) if each in own else lossy for each in range(8)}
    return {
        "DSCP_TO_TC_MAP": {"ROCE": queues},
        "TC_TO_QUEUE_MAP": {"ROCE": same},
        "TC_TO_PRIORITY_GROUP_MAP": {"ROCE": groups},
        "MAP_PFC_PRIORITY_TO_QUEUE": {"ROCE": lossless},
        "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP": {"ROCE": lossless},
        "SCHEDULER": {
            "CNP": {"type": "STRICT", "meter_type": "bytes", "pir": str(round(cnp_cap_bps(network) / 8))},
            "ROCE": {"type": "DWRR", "weight": str(marking.roce_weight)},
            "OTHER": {"type": "DWRR", "weight": str(marking.other_weight)},
        },
    }


def _buffers(network: Network, topology: Topology, name: str) -> Config:
    switch, division = topology.switches[name], buffers(network, topology, name)
    cell = switch.cell_bytes
    shared, total = str(max(division.shared, 0) * cell), str(division.total * cell)
    profiles = {
        "egress_lossless": {"pool": "egress_lossless_pool", "size": "0", "static_th": total},
        "egress_lossy": {"pool": "egress_lossy_pool", "size": "0", "dynamic_th": str(_dynamic(LOSSY_ALPHA))},
    }
    for port in topology.ports[name]:
        rate, length = port.link.rate_gbps, port.link.length_m
        headroom = headroom_cells(network, rate, length)
        profiles[f"pg_lossless_{_named(rate, length)}"] = {
            "pool": "ingress_lossless_pool",
            "size": str(division.guarantee * cell),
            "xon_offset": str(2 * network.frame // cell * cell + 2 * cell),
            "xoff": str(headroom * cell),
            "dynamic_th": str(_dynamic(network.pfc.alpha)),
        }
    return {
        "BUFFER_POOL": {
            "ingress_lossless_pool": {
                "type": "ingress",
                "mode": "dynamic",
                "size": shared,
                "xoff": str(division.reserved * cell),
            },
            "egress_lossless_pool": {"type": "egress", "mode": "static", "size": total},
            "egress_lossy_pool": {"type": "egress", "mode": "dynamic", "size": shared},
        },
        "BUFFER_PROFILE": profiles,
    }


def _port(network: Network, config: Config, interface: str, port: Port) -> None:
    marking = network.marking
    rate, length = port.link.rate_gbps, port.link.length_m
    queues = sorted(each.queue for each in marking.lossless())
    lossless = ",".join(map(str, queues))
    config["PORT_QOS_MAP"][interface] = {
        "dscp_to_tc_map": "ROCE",
        "tc_to_queue_map": "ROCE",
        "tc_to_pg_map": "ROCE",
        "pfc_to_queue_map": "ROCE",
        "pfc_to_pg_map": "ROCE",
        "pfc_enable": lossless,
        "pfcwd_sw_enable": lossless,
    }
    wred = f"ROCE_{rate:g}G".replace(".", "p")
    config["QUEUE"][f"{interface}|{marking.cnp_queue}"] = {"scheduler": "CNP"}
    config["QUEUE"][f"{interface}|{marking.other_queue}"] = {"scheduler": "OTHER"}
    config["BUFFER_QUEUE"][f"{interface}|{marking.other_queue}"] = {"profile": "egress_lossy"}
    profile = f"pg_lossless_{_named(rate, length)}"
    for queue in queues:
        config["QUEUE"][f"{interface}|{queue}"] = {"scheduler": "ROCE", "wred_profile": wred}
        config["BUFFER_PG"][f"{interface}|{queue}"] = {"profile": profile}
        config["BUFFER_QUEUE"][f"{interface}|{queue}"] = {"profile": "egress_lossless"}
    config["CABLE_LENGTH"]["AZURE"][interface] = f"{math.ceil(length)}m"
    config["PFC_WD"][interface] = {
        "action": "drop",
        "detection_time": str(network.pfc.watchdog_ms),
        "restoration_time": str(2 * network.pfc.watchdog_ms),
    }


def interfaces(network: Network, topology: Topology, name: str) -> list[str]:
    """The names of a switch's ports, in the order of the topology.

    :raises NetworkError: if the file names too few, one twice, or writes a range in another way.
    """
    switch, count = topology.switches[name], len(topology.ports[name])
    if not switch.interfaces:
        return [f"Ethernet{4 * at}" for at in range(count)]
    where = network.where("switches", network.switches.index(switch), "interfaces")
    found: list[str] = []
    for text in switch.interfaces:
        match = _RANGE.fullmatch(text)
        if match is None:
            raise NetworkError(f'{where}: {text[:40]!r} is no "Ethernet0" and no "Ethernet[0-124/4]"')
        first, last, step = (
            int(each or "1") for each in (match[1] or match[2], match[1] or match[3], match[4])
        )
        # One more than needed shows that there are enough.
        found += [f"Ethernet{at}" for at in range(first, last + 1, max(1, step))[: count + 1]]
    if len(found) < count:
        raise NetworkError(f"{where}: {name} has {count} ports, and {len(found)} names")
    if len(set(found[:count])) < count:
        raise NetworkError(f"{where}: a port of {name} is named twice")
    return found[:count]


def sonic(network: Network, topology: Topology, name: str) -> Config:
    """The `config_db.json` fragment of one switch.

    Its ports are those of `interfaces`.
    """
    config = _maps(network, topology.switches[name]) | _buffers(network, topology, name)
    cell = topology.switches[name].cell_bytes
    config["WRED_PROFILE"] = {}
    for rate in sorted({port.link.rate_gbps for port in topology.ports[name]}):
        found = thresholds(network, topology, rate, cell)
        config["WRED_PROFILE"][f"ROCE_{rate:g}G".replace(".", "p")] = {
            "ecn": "ecn_all",
            "wred_green_enable": "true",
            "green_min_threshold": str(found.kmin * cell),
            "green_max_threshold": str(found.kmax * cell),
            "green_drop_probability": str(math.ceil(100 * found.pmax)),
        }
    for table in ("PORT_QOS_MAP", "QUEUE", "BUFFER_PG", "BUFFER_QUEUE"):
        config[table] = {}
    config["CABLE_LENGTH"] = {"AZURE": {}}
    config["PFC_WD"] = {"GLOBAL": {"POLL_INTERVAL": "100"}}
    for interface, port in zip(interfaces(network, topology, name), topology.ports[name], strict=True):
        _port(network, config, interface, port)
    return config


def host_commands(network: Network, length_m: float) -> str:
    """A shell script for hosts with ConnectX adapters, and what aiordma's programs need."""
    marking = network.marking
    classes = marking.lossless()
    priorities = sorted(each.priority for each in classes)
    pfc = ",".join("1" if each in priorities else "0" for each in range(8))
    filed = [(each.dscp, each.priority) for each in classes] + [(marking.cnp_dscp, marking.cnp_dscp // 8)]
    mapped = "".join(f'mlnx_qos -i "$1" --dscp2prio set,{dscp},{priority}\n' for dscp, priority in filed)
    apps = " ".join(f"{dscp}:{priority}" for dscp, priority in filed)
    paused = " ".join(f"{each}:on" for each in priorities)
    named = " and ".join(map(str, priorities))
    dcqcn = "".join(
        f'echo 1 > "/sys/class/net/$1/ecn/roce_{part}/enable/{each}"\n'
        for each in priorities
        for part in ("np", "rp")
    )
    tclass = 4 * marking.roce_dscp + 2
    second = "".join(f"# Of the second lossless class: {4 * each.dscp + 2}.\n" for each in classes[1:])
    return f"""#!/bin/sh
# Usage: sh FILE INTERFACE RDMA_DEVICE (as root).
set -eu
: "${{1:?interface}}" "${{2:?RDMA device}}"
# No pauses of the whole link: PFC takes their place.
ethtool -A "$1" rx off tx off
# Trust DSCP, pause priority {named} only. Switches pause the same.
mlnx_qos -i "$1" --trust dscp --pfc {pfc} --cable_len {math.ceil(length_m)}
{mapped}# The same with iproute2, for other adapters:
#   dcb app replace dev "$1" dscp-prio {apps}
#   dcb pfc set dev "$1" prio-pfc all:off {paused}
# DCQCN for priority {named}; congestion notifications leave with DSCP {marking.cnp_dscp}.
{dcqcn}echo {marking.cnp_dscp} > "/sys/class/net/$1/ecn/roce_np/cnp_dscp"
# Connections of rdma_cm.
cma_roce_tos -d "$2" -t {tclass}
# For programs that use aiordma (set it in their environment):
{second}echo "AIORDMA_TRAFFIC_CLASS={tclass}"
"""


def section(network: Network, topology: Topology) -> Section:
    """Part 6 of the plan."""
    part = Section("Settings for devices")
    refused = []
    for name in topology.switches:
        config = sonic(network, topology, name)
        refused += [f"{name}: {fault}" for fault in schema.faults(config)]
        part.files[f"sonic-{name}.json"] = json.dumps(config, indent=2) + "\n"
    for group in network.hosts:
        if group.roce:
            first = next(name for name, each in topology.hosts.items() if each is group)
            length = max(port.link.length_m for port in topology.ports[first])
            part.files[f"host-{group.name}.sh"] = host_commands(network, length)
    part.check(
        "SONiC's models accept the fragments",
        not refused,
        refused[0] if refused else f"{len(topology.switches)} switches, {len(schema.TABLES)} tables",
    )
    alpha = network.pfc.alpha
    exact = 2.0 ** _dynamic(alpha)
    part.check(
        "SONiC can set alpha",
        exact == alpha,
        f"alpha {alpha:g}, dynamic_th {_dynamic(alpha)} is {exact:g}",
        otherwise=Verdict.WARNING,
    )
    part.remarks.append(
        "SONiC has no table that rewrites a DSCP by UDP port on every platform: set the boundary rules of "
        "part 1 with your platform's ACLs, or at the hosts."
    )
    return part
