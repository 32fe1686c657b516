"""Rules: which connections of a program may be negotiated, by direction, address and port.

A rule is ``allow`` or ``deny`` and a pattern, ``[in:|out:]ADDRESS[:PORT[-PORT]]``. ADDRESS is ``*``, an IP
address or network (``10.0.0.0/8``, ``[fd00::]/8``), or a host name, as the program names it, in which ``*``
stands for anything. It is the peer's; an IPv4 peer's on a socket for both families, too. PORT is the one that
is listened on, at whichever end. Rules are separated by lines or semicolons; ``#`` begins a comment.

Their order does not matter. A connection is negotiated unless a ``deny`` matches; and if there are ``allow``
rules for its direction, one of them must match. Some ports belong to protocols whose servers speak first or
take offence at what they do not know; these need an ``allow`` that names the port.
"""

from __future__ import annotations

import ipaddress
from fnmatch import fnmatchcase
from typing import Literal

from ..addresses import writings

Direction = Literal["in", "out"]
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Ports of protocols whose servers speak first, or log, count or punish what they do not understand.
WELL_KNOWN = {
    21: "FTP",
    22: "SSH",
    23: "Telnet",
    25: "SMTP",
    53: "DNS",
    110: "POP3",
    143: "IMAP",
    389: "LDAP",
    465: "SMTP with TLS",
    587: "SMTP",
    636: "LDAP with TLS",
    993: "IMAP with TLS",
    995: "POP3 with TLS",
    1433: "SQL Server",
    1521: "Oracle",
    1883: "MQTT",
    3306: "MySQL",
    3389: "RDP",
    4222: "NATS",
    5222: "XMPP",
    5432: "PostgreSQL",
    5672: "AMQP",
    6667: "IRC",
    9092: "Kafka",
    9160: "Cassandra",
    11211: "memcached",
    27017: "MongoDB",
    33060: "MySQL",
}


class Rule:
    """One rule; made by :meth:`of`. (No dataclass: to load that module takes longer than all of this.)"""

    __slots__ = ("allows", "directions", "name", "network", "ports", "text")

    def __init__(
        self,
        allows: bool,
        directions: tuple[str, ...],
        address: tuple[str | None, _Network | None],
        ports: tuple[int, int] | None,
        text: str,
    ) -> None:
        """`address`: a host name's pattern, or a network; neither: any address."""
        self.allows, self.directions, self.ports, self.text = allows, directions, ports, text
        self.name, self.network = address

    @classmethod
    def of(cls, allows: bool, pattern: str) -> Rule:
        """:raises ValueError: it is none, with the reason."""
        text = rest = pattern.strip()
        directions: tuple[str, ...] = ("in", "out")
        for direction in directions:
            if rest.startswith(f"{direction}:"):
                directions, rest = (direction,), rest[len(direction) + 1 :]
                break
        address, ports = _split(rest)
        if not address:
            raise ValueError(f"rule {text!r}: no address (`*` is any)")
        name, network = None, None
        if address != "*":
            try:
                network = _plain_network(ipaddress.ip_network(address, strict=False))
            except ValueError:
                if "/" in address:
                    raise ValueError(f"rule {text!r}: {address!r} is no network") from None
                name = address.lower()
        return cls(allows, directions, (name, network), _ports(text, ports), text)

    def matches(self, direction: Direction, host: str, port: int) -> bool:
        """Whether it is about this connection. `host`: an address or a name, as the program has it."""
        if direction not in self.directions or not self.covers(port):
            return False
        if self.name is not None:
            return any(fnmatchcase(each.lower(), self.name) for each in writings(host))
        if self.network is None:
            return True
        try:
            return any(
                ipaddress.ip_address(each.partition("%")[0]) in self.network for each in writings(host)
            )
        except ValueError:
            return False

    @property
    def is_of_any_address(self) -> bool:
        """It names no address."""
        return self.name is None and self.network is None

    def covers(self, port: int) -> bool:
        """Whether it is about this port."""
        return self.ports is None or self.ports[0] <= port <= self.ports[1]

    def __str__(self) -> str:
        return f"{'allow' if self.allows else 'deny'} {self.text}"


def _plain_network(network: _Network) -> _Network:
    """The IPv4 network that an IPv6 one stands for, if it does."""
    mapped = network.network_address.ipv4_mapped if network.version == 6 else None
    if mapped is None or network.prefixlen < 96:
        return network
    return ipaddress.IPv4Network((mapped, network.prefixlen - 96))


def _split(text: str) -> tuple[str, str | None]:
    """Address and ports. An IPv6 address is in brackets if ports follow, or stands alone."""
    if text.startswith("["):
        address, _, rest = text[1:].partition("]")
        prefix, colon, ports = rest.partition(":")
        return address + prefix, ports if colon else None
    if text.count(":") == 1:
        address, _, ports = text.partition(":")
        return address, ports
    return text, None


def _ports(rule: str, text: str | None) -> tuple[int, int] | None:
    if text is None or text == "*":
        return None
    first, dash, last = text.partition("-")
    try:
        found = int(first), int(last if dash else first)
    except ValueError:
        raise ValueError(f"rule {rule!r}: {text!r} is neither a port nor PORT-PORT") from None
    if not 0 < found[0] <= found[1] <= 65535:
        raise ValueError(f"rule {rule!r}: ports are from 1 to 65535")
    return found


class Rules:
    """All rules of a process."""

    def __init__(self, rules: list[Rule]) -> None:
        self._rules = rules

    @classmethod
    def parse(cls, text: str) -> Rules:
        """:raises ValueError: a line is no rule, with the reason."""
        rules = []
        for line in text.replace(";", "\n").splitlines():
            stripped = line.partition("#")[0].strip()
            if not stripped:
                continue
            verb, _, pattern = stripped.partition(" ")
            if verb not in ("allow", "deny"):
                raise ValueError(f"rule {stripped!r}: it must begin with allow or deny")
            rules.append(Rule.of(verb == "allow", pattern))
        return cls(rules)

    def __str__(self) -> str:
        return "; ".join(map(str, self._rules))

    def forbid(self, direction: Direction, host: str, port: int) -> str | None:
        """Why this connection stays plain; None: it may be negotiated."""
        allows = [rule for rule in self._rules if rule.allows and direction in rule.directions]
        for rule in self._rules:
            if not rule.allows and rule.matches(direction, host, port):
                return f"rule `{rule}`"
        if allows and not any(rule.matches(direction, host, port) for rule in allows):
            return "no rule allows it"
        if port in WELL_KNOWN and not self.names_port(direction, host, port):
            return f"port of {WELL_KNOWN[port]} (`--allow` with the port if it is ours)"
        return None

    def names_port(self, direction: Direction, host: str, port: int) -> bool:
        """Whether an ``allow`` that names the port says that this peer is aiordma."""
        return any(
            rule.allows and rule.ports is not None and rule.matches(direction, host, port)
            for rule in self._rules
        )

    def may_allow(self, direction: Direction, port: int) -> bool:
        """Whether a connection to this port, from somewhere, may be negotiated."""
        about = [rule for rule in self._rules if direction in rule.directions]
        allows = [rule for rule in about if rule.allows]
        if any(not rule.allows and rule.is_of_any_address and rule.covers(port) for rule in about):
            return False
        if port in WELL_KNOWN and not any(rule.ports is not None and rule.covers(port) for rule in allows):
            return False
        return not allows or any(rule.covers(port) for rule in allows)

    @property
    def need_addresses(self) -> bool:
        """Whether there are rules by network, for which a name must be looked up."""
        return any(rule.network is not None and "out" in rule.directions for rule in self._rules)
