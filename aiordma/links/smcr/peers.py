"""An engine's end towards kernels' SMC-R: its port as they see it, and its link groups with them.

A connection joins a group only if its TCP connection is with the same address. What a message says of its
sender proves nothing: by another one's port, it would have this end write to another one's memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import secrets
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet, WeakValueDictionary

from ...addresses import host_of
from ...errors import Code, NegotiationError
from ...proto.smcr import Port, SmcrClient, SmcrGroups, SmcrServer
from ...proto.smcr_link import LinkTimes
from .absence import Absence
from .contact import KernelContact

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...config import Config
    from ...proto.events import Event
    from ...proto.handshake import Timeouts
    from ...proto.smcr import SmcrGroup
    from ...verbs.device import Backend
    from ..group import GroupOwner
    from .group import KernelGroup

_MAPPED = bytes(10) + b"\xff\xff"
#: To an interface's name: its address, and its hardware's.
_SIOCGIFADDR, _SIOCGIFHWADDR = 0x8915, 0x8927
#: Seconds that Linux gives a peer for an answer; this end does not give less.
_LEAST_ANSWER_S = 2.0


class EnterpriseIds(NamedTuple):
    """The setting ``smcr_eids``, read."""

    ids: tuple[bytes, ...]
    #: A server takes any other, too.
    any: bool


def enterprise_ids(text: str) -> EnterpriseIds:
    """:raises ValueError: more than eight, or one is longer than 32 characters, or not of ASCII."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    ids = tuple(name.encode("ascii").ljust(32) for name in names if name != "*")
    if not 1 <= len(ids) <= 8 or any(len(each) > 32 for each in ids):
        raise ValueError("from one to eight enterprise ids of up to 32 characters")
    return EnterpriseIds(ids, "*" in names)


class _Host:
    """Peers at one address. Contacts and groups keep it."""

    def __init__(self, port: Port) -> None:
        self.port, self.groups = port, SmcrGroups()


class KernelPeers:
    """Made by the engine when it is first asked for.

    :raises NegotiationError: its device reaches no kernel's SMC-R.
    """

    def __init__(self, engine: GroupOwner) -> None:
        check_device(engine)
        self.engine = engine
        self._port = _port_of(engine)
        self._secret = secrets.token_bytes(32)
        #: By address, while something goes on with it.
        self._hosts: WeakValueDictionary[str, _Host] = WeakValueDictionary()
        self.groups_here: dict[SmcrGroup, KernelGroup] = {}
        self.absence = Absence(engine)
        self._contacts: WeakSet[KernelContact] = WeakSet()

    def is_asking(self, host: str) -> bool:
        return any(contact.asks(host) and not contact.is_over for contact in list(self._contacts))

    def forget(self, group: SmcrGroup) -> None:
        self.groups_here.pop(group, None)
        for host in list(self._hosts.values()):
            host.groups.forget(group)

    def propose(self, peer: str, timeouts: Timeouts, tell: Callable[[list[Event]], None]) -> KernelContact:
        """Client: one negotiation.

        :param tell: gets events that come without bytes of the TCP connection.
        """
        host, now = self._host_of(peer), self.engine.waker.now()
        machine = SmcrClient(host.port, host.groups, timeouts, now, self._times)
        return self._enter(KernelContact(self, machine, peer, tell), host)

    def answer(self, peer: str, timeouts: Timeouts, tell: Callable[[list[Event]], None]) -> KernelContact:
        """Server: one negotiation, from the client's Proposal on."""
        host, now = self._host_of(peer), self.engine.waker.now()
        machine = SmcrServer(host.port, host.groups, timeouts, now, self._times)
        return self._enter(KernelContact(self, machine, peer, tell), host)

    def _enter(self, contact: KernelContact, host: _Host) -> KernelContact:
        contact.host = host
        self._contacts.add(contact)
        return contact

    def _host_of(self, peer: str) -> _Host:
        address = host_of(peer)
        found = self._hosts.get(address)
        if found is None:
            # Towards each address another instance, so that a kernel with several makes a group for each.
            instance = hashlib.blake2b(address.encode(), key=self._secret, digest_size=2).digest()
            port = self._port
            own = {name: getattr(port, name) for name in Port._fields}
            found = self._hosts[address] = _Host(Port(**own | {"system_id": instance + port.mac}))
        return found

    @property
    def _times(self) -> LinkTimes:
        config = self.engine.config
        return LinkTimes(
            confirm=config.link_timeout_ms / 1000,
            idle=config.keepalive_ms / 1000,
            answer=max(_LEAST_ANSWER_S, config.keepalive_timeout_ms / 1000),
        )


def check_device(engine: GroupOwner) -> None:
    """:raises NegotiationError: its device reaches no kernel's SMC-R."""
    if reason := why_no_kernels(engine.backend, engine.config):
        raise NegotiationError(Code.NO_SMCR_DEVICE, reason)


def why_no_kernels(backend: Backend, config: Config) -> str:
    """Why a device reaches no kernel's SMC-R; empty: it may."""
    if backend.is_iwarp or backend.gid.raw[:12] != _MAPPED:
        return f"{backend.name}: SMC-R with a kernel takes RoCEv2, and a port with an IPv4 address"
    if backend.is_soft and config.soft_wire == "off":
        return "the software device stays on this host (SOFTDEV_WIRE)"
    return ""


def _port_of(engine: GroupOwner) -> Port:
    """:raises NegotiationError: the settings name no enterprise ids."""
    backend, gid = engine.backend, engine.backend.gid.raw
    mac = _hardware_address(gid[12:])
    eids = _ids_of(engine.config)
    return Port(
        gid=gid,
        mac=mac,
        system_id=bytes(2) + mac,
        mtu=int(backend.mtu),
        eids=eids.ids,
        any_eid=eids.any,
        hostname=socket.gethostname()[:32],
    )


def _ids_of(config: Config) -> EnterpriseIds:
    try:
        return enterprise_ids(config.smcr_eids)
    except ValueError as error:
        raise NegotiationError(Code.CONFIGURATION, str(error)) from error


def _hardware_address(address: bytes) -> bytes:
    """Of the interface with this IPv4 address; made up where there is none: rxe and the software device do
    not look at it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            asked = struct.pack("16s24x", name.encode()[:15])
            try:
                has = fcntl.ioctl(sock, _SIOCGIFADDR, asked)[20:24]
                if has == address:
                    found = fcntl.ioctl(sock, _SIOCGIFHWADDR, asked)[18:24]
                    return found if any(found) else _made_up()
            except OSError:  # no address
                continue
    return _made_up()


def _made_up() -> bytes:
    return b"\x02" + secrets.token_bytes(5)
