"""Counters of switches and hosts: pauses, notifications, watermarks and drops of the lossless class.

Three forms are read: lines of `name: value`, as `ethtool -S` writes them; `rdma -j statistic`; and SONiC's
COUNTERS_DB as `sonic-db-dump` writes it, or as an object of ports with their counters.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import NetworkError
from .reading import parse_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

__all__ = ["Counters", "parse", "since"]

_MOST = (1 << 64) - 1
_MOST_PORTS = 20_000
_LINE = re.compile(r"\s*([A-Za-z0-9_.]{1,100}):?\s+(\d{1,20})\s*", re.ASCII)
_PORT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,63}", re.ASCII)

#: A counter's name, `#` for the priority or queue, and the field that it adds to; `max` for watermarks.
_NAMES = {
    "tx_prio#_pause": "pauses_sent",
    "rx_prio#_pause": "pauses_received",
    "tx_pfc_ena_frames_pri#": "pauses_sent",
    "rx_pfc_ena_frames_pri#": "pauses_received",
    "rx_prio#_discards": "drops",
    "np_cnp_sent": "cnps_sent",
    "rp_cnp_handled": "cnps_handled",
    "np_ecn_marked_roce_packets": "marked",
    "SAI_PORT_STAT_PFC_#_TX_PKTS": "pauses_sent",
    "SAI_PORT_STAT_PFC_#_RX_PKTS": "pauses_received",
    "SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS": "marked",
    "SAI_QUEUE_STAT_DROPPED_PACKETS": "drops",
    "SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES": "queue_bytes",
    "SAI_INGRESS_PRIORITY_GROUP_STAT_DROPPED_PACKETS": "drops",
    "SAI_INGRESS_PRIORITY_GROUP_STAT_XOFF_ROOM_WATERMARK_BYTES": "headroom_bytes",
}
_WATERMARKS = ("queue_bytes", "headroom_bytes")
#: Tables of COUNTERS_DB that give ports, queues and priority groups their names.
_MAPS = ("COUNTERS_PORT_NAME_MAP", "COUNTERS_QUEUE_NAME_MAP", "COUNTERS_PG_NAME_MAP")


@dataclass
class Counters:
    """Of one port, of the lossless class; or of a whole host."""

    pauses_sent: int = 0
    pauses_received: int = 0
    cnps_sent: int = 0
    cnps_handled: int = 0
    marked: int = 0
    drops: int = 0
    #: The fullest that the queue was, and how much of the headroom was taken.
    queue_bytes: int = 0
    headroom_bytes: int = 0

    def add(self, field: str, value: int) -> None:
        """Watermarks are the largest, everything else is a sum."""
        before = getattr(self, field)
        setattr(self, field, max(before, value) if field in _WATERMARKS else before + value)


def _wanted(classes: Collection[int]) -> dict[str, str]:
    """Names to fields, with the priorities of the lossless classes."""
    return {
        name.replace("#", str(each)): field
        for name, field in _NAMES.items()
        for each in (classes if "#" in name else (0,))
    }


def _number(value: object, name: str, file: str) -> int | None:
    if isinstance(value, str) and value in ("", "N/A", "None"):
        return None
    if isinstance(value, str) and re.fullmatch(r"\d{1,20}", value, re.ASCII):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise NetworkError(f"{file}:1: {name} is no count up to 2^64")
    return value


def _hash(raw: Any) -> Mapping[str, Any]:
    """The fields of one key, with or without what `sonic-db-dump` puts around them."""
    inner = raw.get("value") if isinstance(raw, dict) and isinstance(raw.get("value"), dict) else raw
    return inner if isinstance(inner, dict) else {}


def _tables(raw: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Ports, or queues of them (`Ethernet0:5`), with their counters."""
    if not any(each in raw for each in _MAPS):
        for name, fields in raw.items():
            yield name, _hash(fields)
        return
    for each in _MAPS:
        for name, place in _hash(raw.get(each)).items():
            if isinstance(place, str):
                yield name, _hash(raw.get(f"COUNTERS:{place}"))


def _json(raw: Any, file: str, classes: Collection[int], found: dict[str, Counters]) -> None:
    rows: list[tuple[str, Mapping[str, Any]]]
    if isinstance(raw, list):  # rdma -j statistic
        rows = [("", each) for each in raw if isinstance(each, dict)]
    elif isinstance(raw, dict):
        rows = list(_tables(raw))
    else:
        raise NetworkError(f"{file}:1: this has no counters")
    wanted = _wanted(classes)
    for name, fields in rows:
        port, _, queue = name.partition(":")
        if queue and not (queue.isascii() and queue.isdecimal() and len(queue) < 4 and int(queue) in classes):
            continue
        for counter, value in fields.items():
            field = wanted.get(counter)
            if field is None or (number := _number(value, counter, file)) is None:
                continue
            if port and not _PORT.fullmatch(port):
                raise NetworkError(f"{file}:1: {port[:64]!r} is no name of a port")
            found.setdefault(port, Counters()).add(field, number)
            if len(found) > _MOST_PORTS:
                raise NetworkError(f"{file}:1: there are more than {_MOST_PORTS} ports")


def parse(text: str, file: str, classes: Collection[int]) -> dict[str, Counters]:
    """The counters in one file, by port; those of a whole host are under "".

    :param classes: queues and priorities of the lossless classes: others are not counted.
    :raises NetworkError: if a count is none, or nothing in the file is known.
    """
    found: dict[str, Counters] = {}
    if text.lstrip()[:1] in ("{", "["):
        _json(parse_json(text, file), file, classes, found)
    else:
        wanted = _wanted(classes)
        for line in text.splitlines():
            if (match := _LINE.fullmatch(line)) and (field := wanted.get(match[1])):
                value = _number(match[2], match[1], file) or 0
                found.setdefault("", Counters()).add(field, value)
    if not found:
        raise NetworkError(f"{file}:1: it has no counter of the lossless class that is known")
    return found


def since(before: Mapping[str, Counters], after: Mapping[str, Counters], file: str) -> dict[str, Counters]:
    """What was counted between two files of one device; watermarks are those of the later one.

    :raises NetworkError: if a counter fell.
    """
    found = {}
    for port, late in after.items():
        early = before.get(port, Counters())
        found[port] = dataclasses.replace(late)
        for field in dataclasses.fields(Counters):
            if field.name in _WATERMARKS:
                continue
            count = getattr(late, field.name) - getattr(early, field.name)
            if count < 0:
                raise NetworkError(
                    f"{file}:1: {port or 'it'} counted fewer {field.name.replace('_', ' ')} than before: it "
                    "was started again, or its counters were cleared"
                )
            setattr(found[port], field.name, count)
    return found
