"""What SONiC's public YANG models allow in the tables of `config_db.json` that the planner writes.

A summary of its own: for each table the form of a key, and for each field what it may be. Sources: the
`sonic-*.yang` models of sonic-buildimage (buffer-pool, buffer-profile, buffer-pg, buffer-queue, cable-length,
dscp-tc-map, pfcwd, port-qos-map, queue, scheduler, tc-queue-map, tc-priority-group-map, wred-profile).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["faults"]

_NAME = r"[a-zA-Z0-9][-a-zA-Z0-9_]{0,31}"
_PORT = r"Ethernet\d+"
_DIGIT = r"[0-7]"
_BYTES = r"\d{1,20}"


@dataclass(frozen=True)
class _Table:
    key: str
    #: Field pattern to value pattern.
    fields: Mapping[str, str]
    #: Field to the table whose keys it must name.
    names: Mapping[str, str]
    #: Field to its range.
    ranges: Mapping[str, tuple[int, int]]


def _table(
    key: str,
    fields: Mapping[str, str],
    names: Mapping[str, str] | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> _Table:
    return _Table(key, fields, names or {}, ranges or {})


TABLES = {
    "DSCP_TO_TC_MAP": _table(_NAME, {r"6[0-3]|[1-5]?[0-9]": _DIGIT}),
    "TC_TO_QUEUE_MAP": _table(_NAME, {_DIGIT: _DIGIT}),
    "TC_TO_PRIORITY_GROUP_MAP": _table(_NAME, {_DIGIT: _DIGIT}),
    "MAP_PFC_PRIORITY_TO_QUEUE": _table(_NAME, {_DIGIT: _DIGIT}),
    "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP": _table(_NAME, {_DIGIT: _DIGIT}),
    "PORT_QOS_MAP": _table(
        rf"global|{_PORT}",
        {
            "dscp_to_tc_map|tc_to_queue_map|tc_to_pg_map|pfc_to_queue_map|pfc_to_pg_map": _NAME,
            "pfc_enable|pfcwd_sw_enable": rf"({_DIGIT}(,{_DIGIT})*)?",
        },
        {
            "dscp_to_tc_map": "DSCP_TO_TC_MAP",
            "tc_to_queue_map": "TC_TO_QUEUE_MAP",
            "tc_to_pg_map": "TC_TO_PRIORITY_GROUP_MAP",
            "pfc_to_queue_map": "MAP_PFC_PRIORITY_TO_QUEUE",
            "pfc_to_pg_map": "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP",
        },
    ),
    "SCHEDULER": _table(
        r".+",
        {"type": "DWRR|WRR|STRICT", "weight": r"\d+", "meter_type": "packets|bytes", "pir": _BYTES},
        ranges={"weight": (1, 100)},
    ),
    "QUEUE": _table(
        rf"{_PORT}\|\d(-\d)?",
        {"scheduler|wred_profile": r".+"},
        {"scheduler": "SCHEDULER", "wred_profile": "WRED_PROFILE"},
    ),
    "WRED_PROFILE": _table(
        _NAME,
        {
            "(green|yellow|red)_(min|max)_threshold": _BYTES,
            "(green|yellow|red)_drop_probability": r"\d+",
            "wred_(green|yellow|red)_enable": "true|false",
            "ecn": "ecn_(none|all|green|yellow|red|green_yellow|green_red|yellow_red)",
        },
        ranges={"green_drop_probability": (0, 100)},
    ),
    "BUFFER_POOL": _table(r".+", {"type": "ingress|egress", "mode": "static|dynamic", "size|xoff": _BYTES}),
    "BUFFER_PROFILE": _table(
        r".+",
        {"pool": ".+", "size|xon|xon_offset|xoff|static_th": _BYTES, "dynamic_th": r"-?\d+"},
        {"pool": "BUFFER_POOL"},
        {"dynamic_th": (-8, 8)},
    ),
    "BUFFER_PG": _table(rf"{_PORT}\|{_DIGIT}(-{_DIGIT})?", {"profile": ".+"}, {"profile": "BUFFER_PROFILE"}),
    "BUFFER_QUEUE": _table(rf"{_PORT}\|\d(-\d)?", {"profile": ".+"}, {"profile": "BUFFER_PROFILE"}),
    "CABLE_LENGTH": _table(r".+", {_PORT: r"\d+m"}),
    "PFC_WD": _table(
        rf"GLOBAL|{_PORT}",
        {
            "action": "drop|forward|alert",
            "detection_time|restoration_time|POLL_INTERVAL": r"\d+",
        },
        ranges={
            "detection_time": (100, 5000),
            "restoration_time": (100, 60000),
            "POLL_INTERVAL": (100, 1000),
        },
    ),
}


def faults(config: Mapping[str, Mapping[str, Mapping[str, str]]]) -> list[str]:
    """What a switch would refuse in a `config_db.json` fragment: `TABLE|key: field: reason`."""
    found = []
    for name, rows in config.items():
        table = TABLES.get(name)
        if table is None:
            found.append(f"{name}: no such table")
            continue
        for key, row in rows.items():
            if not re.fullmatch(table.key, key):
                found.append(f"{name}|{key}: not a key of this table")
            found += [f"{name}|{key}: {fault}" for fault in _row(table, row, config)]
    return found + [f"PFC_WD|{key}: {fault}" for key, fault in _watchdog(config.get("PFC_WD", {}))]


def _watchdog(rows: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Rules over several rows: intervals are for ports, the polling interval is for all, and shorter."""
    polling = rows.get("GLOBAL", {}).get("POLL_INTERVAL", "")
    for key, row in rows.items():
        for field, value in row.items():
            if (field == "POLL_INTERVAL") != (key == "GLOBAL"):
                yield key, f"{field}: not in this row"
            elif field.endswith("_time") and value.isdecimal() and polling.isdecimal():
                if int(value) < int(polling):
                    yield key, f"{field}: {value} is below POLL_INTERVAL, {polling}"


def _row(
    table: _Table, row: Mapping[str, str], config: Mapping[str, Mapping[str, Mapping[str, str]]]
) -> list[str]:
    found = []
    for field, value in row.items():
        pattern = next((value for name, value in table.fields.items() if re.fullmatch(name, field)), None)
        if pattern is None:
            found.append(f"{field}: no such field")
        elif not re.fullmatch(pattern, value):
            found.append(f"{field}: {value!r} is not allowed")
        elif field in table.ranges and not table.ranges[field][0] <= int(value) <= table.ranges[field][1]:
            found.append(f"{field}: {value} is not from {table.ranges[field][0]} to {table.ranges[field][1]}")
        elif field in table.names and value not in config.get(table.names[field], {}):
            found.append(f"{field}: there is no {value!r} in {table.names[field]}")
    for colour in ("green", "yellow", "red"):
        least, most = row.get(f"{colour}_min_threshold"), row.get(f"{colour}_max_threshold")
        if least is not None and most is not None and int(most) < int(least):
            found.append(f"{colour}_max_threshold: below {colour}_min_threshold")
    return found
