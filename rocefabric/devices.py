"""The plan as settings: `config_db.json` fragments for SONiC, commands for other switches, and for hosts."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, TypeAlias

from . import eos, junos, nvue, schema
from .ecn import thresholds
from .headroom import buffers, headroom_cells
from .marking import queue_at
from .ports import interfaces
from .report import Section, Verdict
from .scheduling import cnp_cap_bps
from .targets import power, settable, target

if TYPE_CHECKING:
    from collections.abc import Callable

    from .model import Network, Switch
    from .targets import Target
    from .topology import Port, Topology

__all__ = ["LOSSY_ALPHA", "SYSTEMS", "host_commands", "section", "sonic"]

Config: TypeAlias = "dict[str, dict[str, dict[str, str]]]"

#: What reads the commands, their file's name, and who writes them. SONiC reads JSON, not commands.
SYSTEMS: dict[str, tuple[str, str, Callable[[Target], str]]] = {
    "cumulus": ("Cumulus Linux", "cumulus-{}.sh", nvue.commands),
    "eos": ("EOS", "eos-{}.cfg", eos.commands),
    "junos": ("Junos", "junos-{}.set", junos.commands),
}

#: Threshold of lossy egress queues: an eighth of what is free.
LOSSY_ALPHA = 1 / 8


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
        "egress_lossy": {"pool": "egress_lossy_pool", "size": "0", "dynamic_th": str(power(LOSSY_ALPHA))},
    }
    for port in topology.ports[name]:
        rate, length = port.link.rate_gbps, port.link.length_m
        headroom = headroom_cells(network, rate, length, cell)
        profiles[f"pg_lossless_{_named(rate, length)}"] = {
            "pool": "ingress_lossless_pool",
            "size": str(division.guarantee * cell),
            "xon_offset": str(2 * network.frame // cell * cell + 2 * cell),
            "xoff": str(headroom * cell),
            "dynamic_th": str(power(network.pfc.alpha)),
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


def _alpha(part: Section, network: Network, system: str, name: str) -> None:
    alpha = network.pfc.alpha
    exact = settable(alpha, system)
    more = f", dynamic_th {power(alpha)} is {exact:g}" if system == "sonic" else f", it sets {exact:g}"
    part.check(f"{name} can set alpha", exact == alpha, f"alpha {alpha:g}{more}", otherwise=Verdict.WARNING)


def _sonic_switches(part: Section, network: Network, topology: Topology, names: list[str]) -> None:
    refused = []
    for name in names:
        config = sonic(network, topology, name)
        refused += [f"{name}: {fault}" for fault in schema.faults(config)]
        part.files[f"sonic-{name}.json"] = json.dumps(config, indent=2) + "\n"
    part.check(
        "SONiC's models accept the fragments",
        not refused,
        refused[0] if refused else f"{len(names)} switches, {len(schema.TABLES)} tables",
    )
    _alpha(part, network, "sonic", "SONiC")
    part.remarks.append(
        "SONiC has no table that rewrites a DSCP by UDP port on every platform: set the boundary rules of "
        "part 1 with your platform's ACLs, or at the hosts."
    )


def _eos_headroom(part: Section, network: Network, topology: Topology, name: str) -> None:
    """One headroom for all ports takes more of the memory than the plan's."""
    division = buffers(network, topology, name)
    largest = max(division.headroom)
    left = division.shared + division.reserved - division.classes * largest * division.ports
    part.check(
        f"{name}: EOS' one headroom for all ports fits",
        left > 0,
        f"{largest} cells for each of {division.ports} ports leave {left} cells to share, "
        f"{division.shared} were planned",
    )


def _junos_marks(part: Section, name: str, found: Target) -> None:
    """Marking in whole percents of a queue."""
    port = min(found.ports, key=lambda each: each.kmin)
    low, high = junos.fills(found, port)
    queue = found.total * (100 - junos.MULTICAST - junos.partitions(found)[2]) / 100
    sets = low * queue / 100, high * queue / 100
    near = abs(sets[0] - port.kmin) <= port.kmin / 4 and abs(sets[1] - port.kmax) <= port.kmax / 4
    part.check(
        f"{name}: Junos can set Kmin and Kmax",
        near,
        f"planned {port.kmin / 1000:.0f} and {port.kmax / 1000:.0f} kB; {low} and {high} % of a queue of "
        f"{queue / 1e6:.1f} MB are {sets[0] / 1000:.0f} and {sets[1] / 1000:.0f} kB",
        otherwise=Verdict.WARNING,
    )


def _other_switches(part: Section, network: Network, topology: Topology, system: str) -> None:
    title, file, write = SYSTEMS[system]
    kinds: set[str] = set()
    for name, switch in topology.switches.items():
        if switch.system != system:
            continue
        found = target(network, topology, name)
        part.files[file.format(name)] = write(found)
        if switch.name in kinds:
            continue
        kinds.add(switch.name)
        if system == "eos":
            _eos_headroom(part, network, topology, name)
        if system == "junos":
            _junos_marks(part, name, found)
    _alpha(part, network, system, title)
    part.remarks.append(
        f"Commands for {title} follow its public documentation and were tried on no switch: compare them "
        "with what yours offers before you apply them. The boundary rules of part 1 are not among them."
    )
    if system == "eos":
        part.remarks.append("EOS' watchdog looks at queues with guaranteed bandwidth only.")


def section(network: Network, topology: Topology) -> Section:
    """Part 6 of the plan."""
    part = Section("Settings for devices")
    by_system: dict[str, list[str]] = {}
    for name, switch in topology.switches.items():
        by_system.setdefault(switch.system, []).append(name)
    for system, names in by_system.items():
        if system == "sonic":
            _sonic_switches(part, network, topology, names)
        else:
            _other_switches(part, network, topology, system)
    for group in network.hosts:
        if group.roce:
            first = next(name for name, each in topology.hosts.items() if each is group)
            length = max(port.link.length_m for port in topology.ports[first])
            part.files[f"host-{group.name}.sh"] = host_commands(network, length)
    return part
