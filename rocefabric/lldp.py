"""A network's description from what its devices know of their neighbours: `lldpcli -f json show neighbors`.

LLDP tells which port is cabled to which, and the names of ports that settings need. It tells neither rates
nor lengths, which are given. What devices say is checked like any other input: it ends in a file, and its
names in what switches are told.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from . import model
from .errors import NetworkError
from .ports import FORMS, names_in
from .reading import parse_json
from .topology import build

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Cables", "Found", "read", "to_toml"]

#: A device and its port, and what is at the other end.
_Peers: TypeAlias = "dict[tuple[str, str], dict[tuple[str, str], None]]"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_PORT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:-]{0,63}", re.ASCII)
_MOST_CABLES = 100_000

#: Ports of switches that are for their management.
MANAGEMENT = ("eth[0-9]", "mgmt*", "Management*", "fxp*", "em[0-9]", "me[0-9]*", "re0:*")
#: A word in a device's description, and its system.
_SYSTEMS = {"sonic": "sonic", "cumulus": "cumulus", "arista": "eos", "junos": "junos", "juniper": "junos"}


@dataclass(frozen=True)
class Cables:
    """What LLDP does not tell: rates in Gb/s and lengths in meters, to hosts and between switches."""

    host_gbps: float = 100
    host_m: float = 3
    fabric_gbps: float = 100
    fabric_m: float = 30


@dataclass
class Found:
    """Devices and cables."""

    #: Name to description.
    devices: dict[str, str] = field(default_factory=dict)
    #: Devices that forward: bridges and routers.
    switches: set[str] = field(default_factory=set)
    #: Both ends, each a device and its port.
    cables: list[tuple[tuple[str, str], tuple[str, str]]] = field(default_factory=list)
    #: Ports with other neighbours than one.
    odd: list[str] = field(default_factory=list)


def _interfaces(raw: Any, file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Local port and what is said of its neighbour; one is an object, several are a list of objects."""
    lldp = raw.get("lldp") if isinstance(raw, dict) else None
    entries = lldp.get("interface", []) if isinstance(lldp, dict) else None
    if isinstance(entries, dict):
        entries = [entries]
    if not isinstance(entries, list):
        raise NetworkError(f"{file}:1: this is not what `lldpcli -f json show neighbors` writes")
    for entry in entries:
        for port, about in entry.items() if isinstance(entry, dict) else ():
            if isinstance(about, dict):
                yield port, about


def _neighbour(about: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The name of a neighbour and what it says of itself; `None` if it tells no name."""
    chassis = about.get("chassis")
    if not isinstance(chassis, dict) or len(chassis) != 1:
        return None
    name, more = next(iter(chassis.items()))
    return (name, more) if isinstance(more, dict) else None


def _remote_port(about: Mapping[str, Any]) -> str:
    """Its name: the identifier, or the description where the identifier is an address."""
    port = about.get("port")
    if not isinstance(port, dict):
        return ""
    identifier = port.get("id")
    if isinstance(identifier, dict) and identifier.get("type") in ("ifname", "local"):
        return str(identifier.get("value", ""))
    return str(port.get("descr", ""))


def _forwards(more: Mapping[str, Any]) -> bool:
    """Whether it says that it is a bridge or a router."""
    found = more.get("capability", [])
    rows = [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict)]
    return any(each.get("type") in ("Bridge", "Router") and each.get("enabled") is True for each in rows)


def read(texts: Mapping[str, tuple[str, str]], switches: Sequence[str] = ()) -> Found:
    """Cables from the neighbours of each device.

    :param texts: a device's name, with the text of its file and the file's name for errors.
    :param switches: patterns of names (`leaf*`) of switches. By default, who says that it is a bridge or a
        router, and who says nothing and has a neighbour that is neither.
    :raises NetworkError: if a text is something else, or a name is none.
    """
    found = Found()
    peers: _Peers = {}
    told: set[str] = set()
    for device, (text, file) in texts.items():
        _named(device, _NAME, file)
        found.devices.setdefault(device, "")
        for port, about in _interfaces(parse_json(text, file), file):
            _named(port, _PORT, file)
            if (other := _neighbour(about)) is None:
                found.odd.append(f"{device} {port}: its neighbour tells no name")
                continue
            peer, more = other
            short = peer.partition(".")[0]
            if peer not in texts and short in texts:  # names with a domain, and files named without
                peer = short
            ends = (device, port), (peer, _remote_port(about))
            for name, at in ends:
                _named(name, _NAME, file)
                _named(at, _PORT, file)
            told.add(peer)
            found.devices.setdefault(peer, "")
            if isinstance(description := more.get("descr"), str):
                found.devices[peer] = description
            if _forwards(more):
                found.switches.add(peer)
            for one, two in (ends, ends[::-1]):
                peers.setdefault(one, {})[two] = None
            if len(peers) > 2 * _MOST_CABLES:
                raise NetworkError(f"{file}:1: there are more than {_MOST_CABLES} cables")
    _forwarding(found, peers, told, switches)
    _cables(found, peers)
    return found


def _forwarding(found: Found, peers: _Peers, told: set[str], switches: Sequence[str]) -> None:
    if switches:
        found.switches = {
            name for name in found.devices if any(fnmatch.fnmatchcase(name, each) for each in switches)
        }
        return
    ends = found.devices.keys() & told - found.switches
    found.switches |= {
        one
        for (one, _), others in peers.items()
        if one not in told and any(name in ends for name, _ in others)
    }


def _named(text: str, form: re.Pattern[str], file: str) -> None:
    if not form.fullmatch(text):
        raise NetworkError(f"{file}:1: {text[:64]!r} is no name of a device or port")


def _management(found: Found, end: tuple[str, str]) -> bool:
    return end[0] in found.switches and any(fnmatch.fnmatchcase(end[1], each) for each in MANAGEMENT)


def _natural(end: tuple[str, str]) -> list[tuple[bool, int, str]]:
    """Sorts `swp2` before `swp10`."""
    return [
        (not part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in re.split(r"(\d+)", f"{end[0]} {end[1]}")
    ]


def _cables(found: Found, peers: _Peers) -> None:
    done: set[frozenset[tuple[str, str]]] = set()
    for end in sorted(peers, key=_natural):
        others = [each for each in peers[end] if not _management(found, each)]
        if _management(found, end) or not others:
            continue
        if len(others) > 1:
            names = ", ".join(f"{name} {port}" for name, port in others[:3])
            found.odd.append(f"{end[0]} {end[1]}: it has {len(others)} neighbours ({names})")
            continue
        pair = frozenset((end, others[0]))
        if len(pair) == 2 and pair not in done and len(peers[others[0]]) == 1:
            done.add(pair)
            found.cables.append((end, others[0]))


def _system(found: Found, name: str, ports: Sequence[str]) -> tuple[str, bool]:
    """The system of a switch, and whether its ports have that system's names."""
    text = found.devices[name].lower()
    guessed = [system for word, system in _SYSTEMS.items() if word in text]
    for system in guessed or FORMS:
        if all((names := names_in(port, system)) is not None and list(names) == [port] for port in ports):
            return system, True
    return (guessed or ["sonic"])[0], False


def to_toml(found: Found, cables: Cables, name: str = "discovered") -> str:
    """The network's file: each device, with its ports in the order of the cables.

    :raises NetworkError: if it is no network: hosts without a switch, or parts that are not joined.
    """
    used = {end[0] for cable in found.cables for end in cable}
    switches = sorted(found.switches & used, key=lambda each: _natural((each, "")))
    hosts = sorted(used - found.switches, key=lambda each: _natural((each, "")))
    ends = set(hosts)
    pairs = [cable for cable in found.cables if not {end[0] for end in cable} <= ends]
    ports: dict[str, list[str]] = {each: [] for each in switches}
    links = []
    for one, other in pairs:
        hosted = bool({one[0], other[0]} & ends)
        first, second = (one, other) if one[0] in ends else (other, one) if other[0] in ends else (one, other)
        rate, length = (cables.host_gbps, cables.host_m) if hosted else (cables.fabric_gbps, cables.fabric_m)
        for end in (first, second):
            if end[0] in ports:
                ports[end[0]].append(end[1])
        links.append(
            f'[[links]]\na = "{first[0]}"\nb = "{second[0]}"\nrate_gbps = {rate:g}\nlength_m = {length:g}\n'
        )
    edges = {end[0] for cable in pairs for end in cable if {cable[0][0], cable[1][0]} & ends}
    parts = [f'# From LLDP. Rates and lengths were given, not found.\nname = "{name}"\n']
    for switch in switches:
        system, theirs = _system(found, switch, ports[switch])
        text = f'[[switches]]\nname = "{switch}"\nsystem = "{system}"\n'
        if theirs:
            quoted = ", ".join(f'"{port}"' for port in ports[switch])
            text += f"interfaces = [{quoted}]\n"
        parts.append(text + ("" if switch in edges else "boundary = false\n"))
    parts += [f'[[hosts]]\nname = "{host}"\n' for host in hosts]
    text = "\n".join(parts + links)
    if not _NAME.fullmatch(name):
        raise NetworkError(f"{name[:64]!r} is no name of a network")
    build(model.parse(text, "what LLDP found"))
    return text
