"""Names of switch ports as each operating system writes them, and ranges of them.

These names go into what devices are told. So nothing of the file's text is passed on: a name is made anew of
one of the forms below and of numbers.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from .errors import NetworkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .model import Network
    from .topology import Port, Topology

__all__ = ["FORMS", "interfaces", "names_in"]

#: A number, or a range of numbers with its step, in a name.
_NUMBER = re.compile(r"\[(\d{1,5})-(\d{1,5})(?:/(\d{1,3}))?\]|(\d{1,5})", re.ASCII)

#: By system: what a name looks like with "#" for each number, and an example of a name and of a range.
FORMS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "sonic": (("Ethernet#",), "Ethernet0", "Ethernet[0-124/4]"),
    "cumulus": (("swp#", "swp#s#"), "swp1", "swp[1-4]s[0-3]"),
    "eos": (("Ethernet#", "Ethernet#/#", "Ethernet#/#/#"), "Ethernet1/1", "Ethernet[1-32]/1"),
    "junos": (
        ("et-#/#/#", "xe-#/#/#", "ge-#/#/#", "et-#/#/#:#", "xe-#/#/#:#"),
        "et-0/0/0",
        "et-0/0/[0-31]",
    ),
}


def _default(system: str, at: int, port: Port) -> str:
    """The name of a switch's port, by its place in the file."""
    if system == "sonic":
        return f"Ethernet{4 * at}"
    if system == "cumulus":
        return f"swp{at + 1}"
    if system == "eos":
        # Ports of several lanes have the lane in their name.
        return f"Ethernet{at + 1}/1" if port.link.rate_gbps > 25 else f"Ethernet{at + 1}"
    return f"et-0/0/{at}"


def names_in(text: str, system: str) -> Iterator[str] | None:
    """The names that a text stands for, the last number fastest; `None` if it has another form."""
    forms = FORMS[system][0]
    parts = list(_NUMBER.finditer(text))
    form = _NUMBER.sub("#", text)
    if form not in forms:
        return None
    numbers = []
    for part in parts:
        first, last = int(part[1] or part[4]), int(part[2] or part[4])
        numbers.append(range(first, last + 1, max(1, int(part[3] or "1"))))
    pieces = form.split("#")

    def made() -> Iterator[str]:
        for chosen in itertools.product(*numbers):
            yield pieces[0] + "".join(
                f"{number}{piece}" for number, piece in zip(chosen, pieces[1:], strict=True)
            )

    return made()


def interfaces(network: Network, topology: Topology, name: str) -> list[str]:
    """The names of a switch's ports, in the order of the topology.

    :raises NetworkError: if the file names too few, one twice, or writes one as its system does not.
    """
    switch, ports = topology.switches[name], topology.ports[name]
    count, system = len(ports), switch.system
    if not switch.interfaces:
        return [_default(system, at, port) for at, port in enumerate(ports)]
    where = network.where("switches", network.switches.index(switch), "interfaces")
    found: list[str] = []
    for text in switch.interfaces:
        more = names_in(text, system)
        if more is None:
            _, one, several = FORMS[system]
            raise NetworkError(f'{where}: {text[:40]!r} is no "{one}" and no "{several}"')
        # One more than needed shows that there are enough.
        found += itertools.islice(more, count + 1)
    if len(found) < count:
        raise NetworkError(f"{where}: {name} has {count} ports, and {len(found)} names")
    if len(set(found[:count])) < count:
        raise NetworkError(f"{where}: a port of {name} is named twice")
    return found[:count]
