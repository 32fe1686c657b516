"""CLC: the negotiation on the application's TCP connection (RFC 7609, section 3.5 and appendix A; layouts as
in Linux ``net/smc/smc_clc.h``, version 2, SMC-R only).

Four messages: the client sends a :class:`Proposal`, the server answers with :class:`Accept`, the client ends
with :class:`Confirm`; :class:`Decline` in place of any of the last two means "use TCP". What aiordma needs
beyond SMC travels in a block of its own before the trailer, where SMC's readers look for nothing: 8 bytes
``"aiordma" 0x01``, the block's length (2, big-endian), flags (2), then the fields named in
``_PROPOSAL_BLOCK`` and ``_ANSWER_BLOCK``. A longer block is legal: newer senders append. The first byte of a
Proposal's flags has what the server must know beside (``Proposal.needs``), the second is ignored. A message
without the block comes from another SMC implementation; ``is_aiordma`` is then false, and what this end sends
to it has no block either: Linux wants a Proposal to end behind its parts, to the byte (``smcr``).

A fifth message is aiordma's own: a client that holds a ticket (``llc.Ticket``) begins with a :class:`Claim`,
and no answer is awaited; a :class:`Decline` refuses the claim.

No I/O here. :func:`decode` takes one whole message; ``clcstream.Splitter`` cuts them out of a byte stream.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

from .clcalike import recall, remember, write_answer, write_proposal
from .clcframe import (
    CLAIM,
    EYE_CATCHER,
    HEADER,
    MAX_MESSAGE_BYTES,
    NAMES,
    frame,
    looks_like_clc,
    message_length,
    pack_block,
    read_block,
    read_needs,
    take,
    version_of,
    violation,
)
from .codes import describe
from .errors import LocalProtocolError
from .frozen import Frozen

__all__ = [
    "EID",
    "EYE_CATCHER",
    "MAX_MESSAGE_BYTES",
    "Accept",
    "Claim",
    "Confirm",
    "Decline",
    "Kind",
    "Message",
    "Proposal",
    "decode",
    "looks_like_clc",
    "ring_bytes_code",
    "version_of",
]


class Kind(enum.IntEnum):
    """What a connection carries; both ends must mean the same."""

    STREAM = 0
    """Bytes (``aiordma.connect()``)."""
    DATAGRAMS = 1
    """Datagrams on the rings of a stream."""
    CALLS = 2
    """The messages of ``aiordma.rpc``."""
    MEMORY = 3
    """The messages of ``aiordma.memory``, and READs and WRITEs beside them."""
    QUESTION = 255
    """Nothing: the client only asks whether the server negotiates. It gets a Decline."""

    @staticmethod
    def name_of(kind: int | None) -> str:
        """A kind for people; None: the peer did not say."""
        return (
            _KIND_NAMES.get(kind, f"kind {kind} (of a newer version)") if kind is not None else "another kind"
        )


_KIND_NAMES: dict[int, str] = {
    Kind.STREAM: "streams (aiordma.connect, aiordma.listen)",
    Kind.DATAGRAMS: "datagrams (aiordma.connect_datagram, aiordma.listen_datagram)",
    Kind.CALLS: "calls (aiordma.rpc)",
    Kind.MEMORY: "memory (aiordma.memory)",
    Kind.QUESTION: "to know whether it negotiates",
}


EID = b"AIORDMA".ljust(32)
"""The enterprise id that every aiordma end offers."""
MIN_RING_BYTES = 16 * 1024

_FIRST_CONTACT = 0x08

_PROPOSAL_BLOCK = struct.Struct(
    ">16s16s16sHBBIB"
)  # engine_id nonce host_id lid kind tickets unknown_qpn traffic_class
# engine_id host_id proof lid window rd_atomic dest_rd_atomic log2(recv_bytes),
# service, its address and port
_ANSWER_BLOCK = struct.Struct(">16s16s16sHHBBBxH16sH")
# Appended when they apply: the device is connected by rdma_cm; where (port, address) and with which
# token.
_PROPOSAL_CM = struct.Struct(">B")
_ANSWER_CM = struct.Struct(">H16s16s")
_CLAIM_BLOCK = struct.Struct(">16s16sIHBBIIQ")  # ... proof ticket service traffic_class size token ...
# All that is in front of the fields is the same in every Claim.
_CLAIM_HEAD = frame(CLAIM, pack_block(_CLAIM_BLOCK, b"", b"", *[0] * 7), 0)[: -_CLAIM_BLOCK.size - 4]

_PROPOSAL = struct.Struct(">8s16s6sH")  # system id, GID, MAC, offset of the IP area counted from here
_PROPOSAL_V2 = struct.Struct(">8sHH28s")  # ISM GID, CHID, offset of the v2 extension, reserved
_V2_EXTENSION = struct.Struct(
    ">BBxB2xH16sBBH12x"
)  # EIDs, ISM GIDs, flags, SMC-D offset, GID, limits, features
_V2_EXTENSION_OFFSET = 28
_ANSWER = struct.Struct(">8s16s6s3sIBIBxQx3s")
_ANSWER_V2 = struct.Struct(">32s8x")
_FIRST_CONTACT_EXT = struct.Struct(">BB2x32s")
# Max connections, max links, features: from release 1 on. Before it the place is there and empty, but for
# the Accept of older Linux.
_FIRST_CONTACT_EXT_1 = struct.Struct(">BBH12x")
_GID_LIST = struct.Struct(">B3x")
_DECLINE = struct.Struct(">8sIBB2x")  # ... and one of three reserved bytes, 0 at others: kind + 1
# Four further diagnoses: zeros from Linux, which ends the connection where the length is another one.
_DECLINE_V2_BYTES = 16
_DIRECT = 0x80
_OS_LINUX = 2
_RELEASE = 1
_FEATURES = 1  # between aiordma's ends, where nothing follows from it; to others: none


def ring_bytes_code(ring_bytes: int) -> int:
    """The RMBE size code ``c`` of a ring of ``16 KiB << c`` bytes.

    :raises LocalProtocolError: not a power of two from 16 KiB to 512 MiB.
    """
    code = ring_bytes.bit_length() - MIN_RING_BYTES.bit_length()
    if not 0 <= code <= 15 or ring_bytes != MIN_RING_BYTES << code:
        raise LocalProtocolError(f"ring of {ring_bytes} bytes: must be a power of two from 16 KiB to 512 MiB")
    return code


def _sized(value: bytes, size: int, name: str) -> bytes:
    if len(value) != size:
        raise LocalProtocolError(f"CLC {name} must be {size} bytes, not {len(value)}")
    return value


def _ranged(value: int, low: int, high: int, name: str) -> int:
    if not low <= value <= high:
        raise LocalProtocolError(f"CLC {name} must be from {low} to {high}, not {value}")
    return value


class Proposal(Frozen, kw_only=True):
    """Client to server: RDMA is possible here, and this is the client."""

    kind_code: ClassVar[int] = 1

    engine_id: bytes = b""
    """16 random bytes of the client's engine; empty when the sender is not aiordma."""
    nonce: bytes = b""
    """16 random bytes of this attempt; the Accept proves that it knows them."""
    host_id: bytes = b""
    """16 bytes that are equal for ends which can share memory (boot id and network namespace)."""
    gid: bytes = bytes(16)
    """GID of the client's port."""
    lid: int = 0
    """LID of the client's port on InfiniBand, 0 on Ethernet."""
    kind: int = 0
    """What the connection will carry (:class:`Kind`)."""
    tickets: int = 0
    """Tickets that the client will hold at most (``llc.Ticket``); 0: it wants none."""
    unknown_qpn: int = 0
    """QP number of the link that an Accept has just named and the client does not know: it has failed there,
    and the server shall make a new one. 0: none."""
    traffic_class: int = 0
    """Traffic class of the link that it asks for, in both directions."""
    needs: int = 0
    """Bits of what a server must know to carry the connection, from a newer version: one that knows not all
    of them declines. This version knows none."""
    by_cm: bool = False
    """The client's device connects queue pairs through rdma_cm, and only so (iWARP)."""
    system_id: bytes = bytes(8)
    """SMC sender id: 2 bytes instance, 6 bytes MAC."""
    mac: bytes = bytes(6)
    """MAC address of the port."""
    eids: tuple[bytes, ...] = (EID,)
    """Enterprise ids offered, 32 bytes each, at most 8."""
    max_conns: int = 255
    """Connections that the client allows on one link group."""
    max_links: int = 2
    """Links that the client allows in one link group."""
    release: int = _RELEASE
    """Newest release of SMC version 2 that the client knows; 0 says nothing of the two limits."""
    version: int = 2
    """Newest version of SMC that the client knows. Only 2 is sent."""

    @property
    def is_aiordma(self) -> bool:
        """Whether the sender is aiordma (and so can be answered with an Accept)."""
        return bool(self.engine_id)

    def for_another(self, nonce: bytes) -> Proposal:
        """The same for another connection."""
        if "_like" not in self.__dict__:
            self.__dict__["_like"] = self.encode()
        return self.alike(nonce=nonce)

    def encode(self) -> bytes:
        """:raises LocalProtocolError: a field has the wrong size or range."""
        like: bytes | None = self.__dict__.get("_like")
        if like is not None and len(self.nonce) == 16:
            return write_proposal(like, self.nonce)
        if len(self.eids) > 8:
            raise LocalProtocolError(f"CLC Proposal takes at most 8 enterprise ids, not {len(self.eids)}")
        extension = _V2_EXTENSION.pack(
            len(self.eids),
            0,
            _ranged(self.release, 0, 15, "release") << 4,
            0,
            _sized(self.gid, 16, "GID"),
            _ranged(self.max_conns, 1, 255, "max_conns") if self.release else 0,
            _ranged(self.max_links, 1, 255, "max_links") if self.release else 0,
            _FEATURES if self.is_aiordma else 0,
        )
        body = (
            _PROPOSAL.pack(_sized(self.system_id, 8, "system_id"), self.gid, _sized(self.mac, 6, "mac"), 0)
            + _PROPOSAL_V2.pack(bytes(8), 0, _V2_EXTENSION_OFFSET, bytes(28))
            + extension
            + b"".join(_sized(eid, 32, "enterprise id") for eid in self.eids)
            + self._block()
        )
        return frame(1, body, 0x02)  # typev2 = SMC-R, typev1 = none

    def _block(self) -> bytes:
        if not (self.engine_id or self.nonce or self.host_id):
            return b""
        return pack_block(
            _PROPOSAL_BLOCK,
            _sized(self.engine_id, 16, "engine_id"),
            _sized(self.nonce, 16, "nonce"),
            _sized(self.host_id, 16, "host_id"),
            _ranged(self.lid, 0, 0xFFFF, "lid"),
            _ranged(self.kind, 0, 255, "kind"),
            _ranged(self.tickets, 0, 255, "tickets"),
            _ranged(self.unknown_qpn, 0, 0xFFFFFF, "unknown_qpn"),
            _ranged(self.traffic_class, 0, 255, "traffic_class"),
            appended=_PROPOSAL_CM.pack(1) if self.by_cm else b"",
            needs=_ranged(self.needs, 0, 255, "needs"),
        )

    @classmethod
    def _parse(cls, data: bytes) -> Proposal:
        (system_id, gid, mac, _), at = take(_PROPOSAL, data, HEADER.size, "fixed part")
        if data[7] >> 4 < 2 or data[7] >> 2 & 3 == 2:  # version 1 only, or "no version 2 mode": no extension
            return cls(system_id=system_id, gid=gid, mac=mac, eids=(), version=version_of(data))
        (_, _, offset, _), _ = take(_PROPOSAL_V2, data, at, "version 2 part")
        at += 12 + offset  # counted from behind the offset field itself
        values, at = take(_V2_EXTENSION, data, at, "version 2 extension")
        eid_count, ism_count, release, _, v2_gid, max_conns, max_links, _ = values
        if not release >> 4:
            max_conns, max_links = 255, 2
        if eid_count > 8 or ism_count > 8:
            raise violation(
                f"Proposal with {eid_count} enterprise ids and {ism_count} devices (at most 8 each)"
            )
        end = at + 32 * eid_count
        if end > len(data) - len(EYE_CATCHER):
            raise violation(f"Proposal of {len(data)} bytes is too short for its {eid_count} enterprise ids")
        eids = tuple(data[i : i + 32] for i in range(at, end, 32))
        own = read_block(_PROPOSAL_BLOCK, data, end, _PROPOSAL_CM)
        engine_id, nonce, host_id, lid, kind, tickets, unknown, traffic_class, by_cm = own or (
            b"",
            b"",
            b"",
            *[0] * 6,
        )
        return cls(
            engine_id=engine_id,
            nonce=nonce,
            host_id=host_id,
            gid=v2_gid,
            lid=lid,
            kind=kind,
            tickets=tickets,
            unknown_qpn=unknown,
            traffic_class=traffic_class,
            needs=read_needs(data, end) if own else 0,
            by_cm=by_cm == 1,
            system_id=system_id,
            mac=mac,
            eids=eids,
            max_conns=max_conns,
            max_links=max_links,
            release=release >> 4,
        )


class _Answer(Frozen, kw_only=True):
    """What Accept and Confirm have in common: how to reach the sender's QP and ring."""

    kind_code: ClassVar[int]

    first_contact: bool
    """A new link (QP) is set up; otherwise the connection goes on the link that the QP number names."""
    gid: bytes
    """GID of the sender's port."""
    qpn: int
    """Sender's QP number (24 bits)."""
    psn: int
    """Sender's first PSN (24 bits)."""
    mtu: int
    """Sender's path MTU as ``ibv_mtu``: 1 = 256 ... 5 = 4096 bytes."""
    rkey: int
    """Remote key of the sender's ring."""
    rmb_addr: int
    """Virtual address of the memory that holds the sender's ring."""
    ring_bytes: int
    """Size of the sender's ring."""
    token: int
    """Alert token: the sender's name for this connection, carried by every CDC message sent *to* it; not
    0."""
    rmbe_index: int = 1
    """Which ring of ``rmb_addr``, from 1: it starts at ``rmb_addr + (rmbe_index - 1) * ring_bytes``."""
    engine_id: bytes = b""
    """16 random bytes of the sender's engine; empty when the sender is not aiordma."""
    host_id: bytes = b""
    """As in the Proposal."""
    proof: bytes = bytes(16)
    """Accept: ``proof.accept_proof``. Confirm: ``proof.confirm_proof``, zeros on first contact."""
    lid: int = 0
    """LID of the sender's port on InfiniBand, 0 on Ethernet."""
    window: int = 0
    """Messages the *other* end may have in flight towards the sender (its receives less the reserve)."""
    rd_atomic: int = 1
    """READs and atomics the sender will have outstanding (``max_rd_atomic``)."""
    dest_rd_atomic: int = 1
    """READs and atomics the sender answers at a time (``max_dest_rd_atomic``)."""
    recv_bytes: int = 64
    """Size of the sender's receives: longest message it takes by SEND, a power of two of at least 64."""
    max_links: int = 1
    """First contact only: links that the sender can have with this peer (RFC 7609's group has two at most);
    2 stands for "more than one"."""
    max_conns: int = 255
    """First contact only: connections that the sender allows on one link group."""
    release: int = _RELEASE
    """First contact only: the release of SMC version 2 that both ends know; 0 says nothing of the limits."""
    service: int = 0
    """Accept: the server's number for its listener, which its tickets name; 0: there will be none."""
    service_address: bytes = bytes(16)
    """With ``service``: the server's address of this connection (IPv4 mapped to IPv6) as the server sees it.
    A client that sees another one goes through a translator, behind which there may be several servers."""
    service_port: int = 0
    """Its port."""
    cm_port: int = 0
    """Accept on first contact: where the server's queue pair waits for the client's, a port of rdma_cm; 0: it
    needs none."""
    cm_address: bytes = bytes(16)
    """With ``cm_port``: the address (IPv4 mapped to IPv6)."""
    cm_token: bytes = bytes(16)
    """With ``cm_port``: what the client must bring along."""
    system_id: bytes = bytes(8)
    """SMC sender id."""
    mac: bytes = bytes(6)
    """MAC address of the port."""
    eid: bytes = EID
    """The enterprise id chosen."""
    hostname: str = ""
    """First contact only: for people."""
    direct: bool = True
    """First contact only: no gateway is between the two ports. A Linux end that has none itself declines
    where the other claims one; aiordma does not look at it."""
    gids: tuple[bytes, ...] = ()
    """Confirm on first contact only: further GIDs of the client."""

    @property
    def is_aiordma(self) -> bool:
        """Whether the sender is aiordma."""
        return bool(self.engine_id)

    @property
    def ring_addr(self) -> int:
        """Remote address of the ring's first byte."""
        return self.rmb_addr + (self.rmbe_index - 1) * self.ring_bytes

    def for_another(self, *, rkey: int, rmb_addr: int, ring_bytes: int, token: int, proof: bytes) -> Self:
        """The same for another connection on that link, which exists."""
        if "_like" not in self.__dict__:
            self.__dict__["_like"] = self.encode()
        return self.alike(
            rkey=rkey, rmb_addr=rmb_addr, rmbe_index=1, ring_bytes=ring_bytes, token=token, proof=proof
        )

    def _encode_alike(self, like: bytes) -> bytes | None:
        """None: a field has the wrong size or range."""
        if not self.token or len(self.proof) != 16:
            return None
        size_mtu = ring_bytes_code(self.ring_bytes) << 4 | self.mtu
        try:
            return write_answer(
                like, self.proof, self.rkey, self.rmbe_index, self.token, size_mtu, self.rmb_addr
            )
        except struct.error:
            return None

    def encode(self) -> bytes:
        """:raises LocalProtocolError: a field has the wrong size or range."""
        like: bytes | None = self.__dict__.get("_like")
        if like is not None and (alike := self._encode_alike(like)) is not None:
            return alike
        size_mtu = ring_bytes_code(self.ring_bytes) << 4 | _ranged(self.mtu, 1, 5, "mtu")
        parts = [
            _ANSWER.pack(
                _sized(self.system_id, 8, "system_id"),
                _sized(self.gid, 16, "GID"),
                _sized(self.mac, 6, "mac"),
                _ranged(self.qpn, 0, 0xFFFFFF, "qpn").to_bytes(3, "big"),
                _ranged(self.rkey, 0, 0xFFFFFFFF, "rkey"),
                _ranged(self.rmbe_index, 1, 255, "rmbe_index"),
                _ranged(self.token, 1, 0xFFFFFFFF, "token"),
                size_mtu,
                _ranged(self.rmb_addr, 0, (1 << 64) - 1, "rmb_addr"),
                _ranged(self.psn, 0, 0xFFFFFF, "psn").to_bytes(3, "big"),
            ),
            _ANSWER_V2.pack(_sized(self.eid, 32, "enterprise id")),
        ]
        if self.first_contact:
            name = self.hostname.encode("ascii", "replace")[:32].ljust(32)
            flags = _DIRECT if self.direct else 0
            release = _ranged(self.release, 0, 15, "release")
            parts.append(_FIRST_CONTACT_EXT.pack(flags, _OS_LINUX << 4 | release, name))
            limits = (
                _ranged(self.max_conns, 1, 255, "max_conns"),
                _ranged(self.max_links, 1, 255, "max_links"),
                _FEATURES if self.is_aiordma else 0,
            )
            parts.append(_FIRST_CONTACT_EXT_1.pack(*limits if release else (0, 0, 0)))
            if self.kind_code == 3:
                parts.append(_GID_LIST.pack(_ranged(len(self.gids), 0, 8, "number of GIDs")))
                parts.extend(_sized(gid, 16, "GID") for gid in self.gids)
        elif self.gids:
            raise LocalProtocolError("CLC Confirm carries further GIDs on first contact only")
        parts.append(self._block())
        return frame(self.kind_code, b"".join(parts), _FIRST_CONTACT if self.first_contact else 0)

    def _block(self) -> bytes:
        if not (self.engine_id or self.host_id):
            return b""
        return pack_block(
            _ANSWER_BLOCK,
            _sized(self.engine_id, 16, "engine_id"),
            _sized(self.host_id, 16, "host_id"),
            _sized(self.proof, 16, "proof"),
            _ranged(self.lid, 0, 0xFFFF, "lid"),
            _ranged(self.window, 1, 0x4000, "window"),
            _ranged(self.rd_atomic, 0, 255, "rd_atomic"),
            _ranged(self.dest_rd_atomic, 0, 255, "dest_rd_atomic"),
            _ranged(self.recv_bytes, 64, 1 << 31, "recv_bytes").bit_length() - 1,
            _ranged(self.service, 0, 0xFFFF, "service"),
            _sized(self.service_address, 16, "address of the service"),
            _ranged(self.service_port, 0, 0xFFFF, "port of the service"),
            appended=self._cm_fields(),
        )

    def _cm_fields(self) -> bytes:
        if not self.cm_port:
            return b""
        return _ANSWER_CM.pack(
            _ranged(self.cm_port, 1, 0xFFFF, "port of rdma_cm"),
            _sized(self.cm_address, 16, "address of rdma_cm"),
            _sized(self.cm_token, 16, "token of rdma_cm"),
        )


class Accept(_Answer, kw_only=True):
    """Server to client: this is my QP and the ring you may write."""

    kind_code: ClassVar[int] = 2


class Confirm(_Answer, kw_only=True):
    """Client to server: agreed, and this is my QP and the ring you may write."""

    kind_code: ClassVar[int] = 3


def _parse_answer(cls: type[Accept | Confirm], data: bytes) -> Accept | Confirm:
    name = cls.__name__
    values, at = take(_ANSWER, data, HEADER.size, "fixed part")
    system_id, gid, mac, qpn, rkey, index, token, size_mtu, addr, psn = values
    if not 1 <= size_mtu & 15 <= 5:
        raise violation(f"{name} with path MTU code {size_mtu & 15} (1 to 5 exist)")
    if index == 0 or token == 0:
        raise violation(f"{name} with ring index {index} and token {token}: neither may be 0")
    first_contact = bool(data[7] & _FIRST_CONTACT)
    eid = bytes(32)
    contact: dict[str, Any] = {}
    own: tuple[Any, ...] | None = None
    if data[7] >> 4 >= 2:
        (eid,), at = take(_ANSWER_V2, data, at, "enterprise id")
        if first_contact:
            contact, at = _parse_first_contact(data, at)
        own = read_block(_ANSWER_BLOCK, data, at, _ANSWER_CM)
    if own is None:
        own = (b"", b"", bytes(16), 0, 0, 1, 1, 6, 0, bytes(16), 0, 0, bytes(16), bytes(16))
    elif not 1 <= own[4] <= 0x4000 or own[4] & (own[4] - 1):
        raise violation(f"{name} with a message window of {own[4]} (a power of two from 1 to 16384)")
    return cls(
        first_contact=first_contact,
        gid=gid,
        qpn=int.from_bytes(qpn, "big"),
        psn=int.from_bytes(psn, "big"),
        mtu=size_mtu & 15,
        rkey=rkey,
        rmb_addr=addr,
        ring_bytes=MIN_RING_BYTES << (size_mtu >> 4),
        token=token,
        rmbe_index=index,
        engine_id=own[0],
        host_id=own[1],
        proof=own[2],
        lid=own[3],
        window=own[4],
        rd_atomic=own[5],
        dest_rd_atomic=own[6],
        # An older sender leaves this byte 0: what every receive can hold is all that is known then.
        recv_bytes=1 << min(max(own[7], 6), 31),
        service=own[8],
        service_address=own[9],
        service_port=own[10],
        cm_port=own[11],
        cm_address=own[12],
        cm_token=own[13],
        system_id=system_id,
        mac=mac,
        eid=eid,
        **contact,
    )


def _for_people(name: bytes) -> str:
    """Logs and terminals get it: nothing in it moves a cursor or begins a line."""
    return "".join(each if each.isprintable() else "?" for each in name.decode("ascii", "replace"))


def _parse_first_contact(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """The fields of first contact, and the offset behind them."""
    (flags, os_release, host), at = take(_FIRST_CONTACT_EXT, data, at, "first contact extension")
    max_conns, max_links = 255, 1
    if os_release & 15:
        (max_conns, max_links, _), at = take(
            _FIRST_CONTACT_EXT_1, data, at, "first contact extension of release 1"
        )
    elif data[4] == 3:
        _, at = take(_FIRST_CONTACT_EXT_1, data, at, "first contact extension")
    gids: tuple[bytes, ...] = ()
    if data[4] == 3:
        (count,), at = take(_GID_LIST, data, at, "list of GIDs")
        end = at + 16 * count
        if count > 8 or end > len(data) - len(EYE_CATCHER):
            raise violation(f"Confirm of {len(data)} bytes cannot carry {count} GIDs (at most 8)")
        gids = tuple(data[i : i + 16] for i in range(at, end, 16))
        at = end
    fields = {
        "hostname": _for_people(host.rstrip(b" \0")),
        "direct": bool(flags & _DIRECT),
        "release": os_release & 15,
        "max_conns": max_conns,
        "max_links": max_links,
        "gids": gids,
    }
    return fields, at


class Decline(Frozen, kw_only=True):
    """From either end: no RDMA for this connection. The bytes behind it are the application's, on TCP."""

    kind_code: ClassVar[int] = 4

    diagnosis: int
    """A ``Code`` of ours or of another SMC implementation."""
    system_id: bytes = bytes(8)
    """SMC sender id."""
    kind: int | None = None
    """The kind of connection that this end expects, if that is the reason; None: not said."""
    version: int = 2
    """Version of SMC that the peer has proposed: 1 or 2, whose Declines differ in length."""

    @property
    def text(self) -> str:
        """The diagnosis for people."""
        return describe(self.diagnosis)

    def encode(self) -> bytes:
        """:raises LocalProtocolError: a field has the wrong size or range."""
        diagnosis = _ranged(self.diagnosis, 0, 0xFFFFFFFF, "diagnosis")
        kind = 0 if self.kind is None else _ranged(self.kind, 0, 254, "kind") + 1
        version = _ranged(self.version, 1, 2, "version")
        os_type = _OS_LINUX << 4 if version > 1 else 0
        body = _DECLINE.pack(_sized(self.system_id, 8, "system_id"), diagnosis, os_type, kind)
        return frame(4, body + bytes(_DECLINE_V2_BYTES if version > 1 else 0), 0, version)

    @classmethod
    def _parse(cls, data: bytes) -> Decline:
        (system_id, diagnosis, _, kind), _ = take(_DECLINE, data, HEADER.size, "fixed part")
        return cls(
            diagnosis=diagnosis,
            system_id=system_id,
            kind=kind - 1 if kind else None,
            version=version_of(data),
        )


@dataclass(slots=True, kw_only=True)  # not frozen: each connect without a round trip makes one
class Claim:
    """Client to server, in place of a Proposal: this connection takes a ring that I was given in advance."""

    kind_code: ClassVar[int] = CLAIM

    engine_id: bytes
    """16 random bytes of the client's engine."""
    ticket: int
    """Number of the ticket, of which it is the only use."""
    service: int
    """The listener that the ticket is for."""
    token: int
    """As in the Confirm, like the rest."""
    rkey: int
    ring_addr: int
    ring_bytes: int
    traffic_class: int = 0
    """Of the link that the ticket came by."""
    proof: bytes = bytes(16)
    """``proof.claim_proof``: the claim comes from the other end of the link."""

    @property
    def fields(self) -> tuple[int, int, int, int, int, int]:
        """What the proof covers, besides the engine id."""
        return self.ticket, self.service, self.token, self.rkey, self.ring_addr, self.ring_bytes

    def encode(self) -> bytes:
        """:raises LocalProtocolError: a field has the wrong size or range."""
        if not (len(self.engine_id) == len(self.proof) == 16 and self.ticket and self.service and self.token):
            self._check()
        try:
            block = _CLAIM_BLOCK.pack(
                self.engine_id,
                self.proof,
                self.ticket,
                self.service,
                self.traffic_class,
                ring_bytes_code(self.ring_bytes),
                self.token,
                self.rkey,
                self.ring_addr,
            )
        except struct.error:
            self._check()
            raise
        return _CLAIM_HEAD + block + EYE_CATCHER

    def _check(self) -> None:
        """:raises LocalProtocolError: a field has the wrong size or range."""
        _sized(self.engine_id, 16, "engine_id")
        _sized(self.proof, 16, "proof")
        _ranged(self.ticket, 1, 0xFFFFFFFF, "ticket")
        _ranged(self.service, 1, 0xFFFF, "service")
        _ranged(self.traffic_class, 0, 255, "traffic_class")
        _ranged(self.token, 1, 0xFFFFFFFF, "token")
        _ranged(self.rkey, 0, 0xFFFFFFFF, "rkey")
        _ranged(self.ring_addr, 0, (1 << 64) - 1, "ring_addr")

    @classmethod
    def _parse(cls, data: bytes) -> Claim:
        own = read_block(_CLAIM_BLOCK, data, HEADER.size)
        if own is None:
            raise violation("Claim without the aiordma block")
        engine_id, proof, ticket, service, traffic_class, size, token, rkey, addr = own
        if not ticket or not service or not token or size > 15:
            raise violation(f"Claim of ticket {ticket} of listener {service}, token {token}, size {size}")
        return cls(
            engine_id=engine_id,
            ticket=ticket,
            service=service,
            token=token,
            rkey=rkey,
            ring_addr=addr,
            ring_bytes=MIN_RING_BYTES << size,
            traffic_class=traffic_class,
            proof=proof,
        )


Message: TypeAlias = Proposal | Accept | Confirm | Decline | Claim


def decode(data: bytes | bytearray | memoryview) -> Message:
    """One whole message.

    :raises RemoteProtocolError: anything else than exactly one valid message.
    """
    data = bytes(data)
    if len(data) < HEADER.size:
        raise violation(f"message of {len(data)} bytes is shorter than its header")
    length = message_length(data)
    if length != len(data):
        raise violation(f"{NAMES[data[4]]} says {length} bytes, but {len(data)} came")
    if data[-4:] != EYE_CATCHER:
        raise violation(f"{NAMES[data[4]]} ends with {data[-4:].hex(' ')}, not with the eye catcher")
    kind = data[4]
    if kind == 4:
        return Decline._parse(data)
    if kind == CLAIM:
        return Claim._parse(data)
    known: Message | None = recall(data)
    if known is not None:
        return known
    message: Message
    if kind == 1:
        message = Proposal._parse(data)
    else:
        message = _parse_answer(Accept if kind == 2 else Confirm, data)
    remember(data, message)
    return message
