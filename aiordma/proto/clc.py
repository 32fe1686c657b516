"""CLC: the negotiation on the application's TCP connection (RFC 7609, section 3.5 and appendix A; layouts as
in Linux ``net/smc/smc_clc.h``, version 2, SMC-R only).

Four messages: the client sends a :class:`Proposal`, the server answers with :class:`Accept`, the client ends
with :class:`Confirm`; :class:`Decline` in place of any of the last two means "use TCP". What aiordma needs
beyond SMC travels in a block of its own before the trailer, where SMC's readers look for nothing: 8 bytes
``"aiordma" 0x01``, the block's length (2, big-endian), flags (2), then the fields named in
``_PROPOSAL_BLOCK`` and ``clcanswer``. A longer block is legal: newer senders append. The first byte of a
Proposal's flags has what the server must know beside (``Proposal.needs``), the second is ignored. A message
without the block comes from another SMC implementation; ``is_aiordma`` is then false, and what this end sends
to it has no block either: Linux wants a Proposal to end behind its parts, to the byte (``smcr``).

A fifth message is aiordma's own: a client that holds a ticket (``llcown.Ticket``) begins with a
:class:`Claim`, and no answer is awaited; a :class:`Decline` refuses the claim.

No I/O here. :func:`decode` takes one whole message; ``clcstream.Splitter`` cuts them out of a byte stream.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from .clcalike import recall, remember, write_proposal
from .clcanswer import Accept, Confirm, parse_answer
from .clcframe import (
    CLAIM,
    EID,
    EYE_CATCHER,
    FEATURES,
    HEADER,
    MAX_MESSAGE_BYTES,
    MIN_RING_BYTES,
    NAMES,
    OS_LINUX,
    RELEASE,
    frame,
    looks_like_clc,
    message_length,
    pack_block,
    ranged,
    read_block,
    read_needs,
    ring_bytes_code,
    sized,
    take,
    version_of,
    violation,
)
from .codes import Code, describe
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


_PROPOSAL_BLOCK = struct.Struct(
    ">16s16s16sHBBIB"
)  # engine_id nonce host_id lid kind tickets unknown_qpn traffic_class
# Appended when the device is connected by rdma_cm.
_PROPOSAL_CM = struct.Struct(">B")
_CLAIM_BLOCK = struct.Struct(">16s16sIHBBIIQ")  # ... proof ticket service traffic_class size token ...
# All that is in front of the fields is the same in every Claim.
_CLAIM_HEAD = frame(CLAIM, pack_block(_CLAIM_BLOCK, b"", b"", *[0] * 7), 0)[: -_CLAIM_BLOCK.size - 4]

_PROPOSAL = struct.Struct(">8s16s6sH")  # system id, GID, MAC, offset of the IP area counted from here
_PROPOSAL_V2 = struct.Struct(">8sHH28s")  # ISM GID, CHID, offset of the v2 extension, reserved
_V2_EXTENSION = struct.Struct(
    ">BBxB2xH16sBBH12x"
)  # EIDs, ISM GIDs, flags, SMC-D offset, GID, limits, features
_V2_EXTENSION_OFFSET = 28
_DECLINE = struct.Struct(">8sIBB2x")  # ... and one of three reserved bytes, 0 at others: kind + 1
# Four further diagnoses: zeros from Linux, which ends the connection where the length is another one.
_DECLINE_V2_BYTES = 16


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
    """Tickets that the client will hold at most (``llcown.Ticket``); 0: it wants none."""
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
    release: int = RELEASE
    """Newest release of SMC version 2 that the client knows; 0 says nothing of the two limits."""
    version: int = 2
    """Newest version of SMC that the client knows. Only 2 is sent."""

    @property
    def is_aiordma(self) -> bool:
        """Whether the sender is aiordma (and so can be answered with an Accept)."""
        return bool(self.engine_id)

    def misfit(self, kind: int) -> Code | None:
        """Why an end that expects this kind of connection declines it; None: it need not for what it is."""
        if self.is_aiordma and self.kind != kind:
            return Code.WRONG_KIND
        return Code.VERSION_MISMATCH if self.needs else None

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
            ranged(self.release, 0, 15, "release") << 4,
            0,
            sized(self.gid, 16, "GID"),
            ranged(self.max_conns, 1, 255, "max_conns") if self.release else 0,
            ranged(self.max_links, 1, 255, "max_links") if self.release else 0,
            FEATURES if self.is_aiordma else 0,
        )
        body = (
            _PROPOSAL.pack(sized(self.system_id, 8, "system_id"), self.gid, sized(self.mac, 6, "mac"), 0)
            + _PROPOSAL_V2.pack(bytes(8), 0, _V2_EXTENSION_OFFSET, bytes(28))
            + extension
            + b"".join(sized(eid, 32, "enterprise id") for eid in self.eids)
            + self._block()
        )
        return frame(1, body, 0x02)  # typev2 = SMC-R, typev1 = none

    def _block(self) -> bytes:
        if not (self.engine_id or self.nonce or self.host_id):
            return b""
        return pack_block(
            _PROPOSAL_BLOCK,
            sized(self.engine_id, 16, "engine_id"),
            sized(self.nonce, 16, "nonce"),
            sized(self.host_id, 16, "host_id"),
            ranged(self.lid, 0, 0xFFFF, "lid"),
            ranged(self.kind, 0, 255, "kind"),
            ranged(self.tickets, 0, 255, "tickets"),
            ranged(self.unknown_qpn, 0, 0xFFFFFF, "unknown_qpn"),
            ranged(self.traffic_class, 0, 255, "traffic_class"),
            appended=_PROPOSAL_CM.pack(1) if self.by_cm else b"",
            needs=ranged(self.needs, 0, 255, "needs"),
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
        diagnosis = ranged(self.diagnosis, 0, 0xFFFFFFFF, "diagnosis")
        kind = 0 if self.kind is None else ranged(self.kind, 0, 254, "kind") + 1
        version = ranged(self.version, 1, 2, "version")
        os_type = OS_LINUX << 4 if version > 1 else 0
        body = _DECLINE.pack(sized(self.system_id, 8, "system_id"), diagnosis, os_type, kind)
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
        sized(self.engine_id, 16, "engine_id")
        sized(self.proof, 16, "proof")
        ranged(self.ticket, 1, 0xFFFFFFFF, "ticket")
        ranged(self.service, 1, 0xFFFF, "service")
        ranged(self.traffic_class, 0, 255, "traffic_class")
        ranged(self.token, 1, 0xFFFFFFFF, "token")
        ranged(self.rkey, 0, 0xFFFFFFFF, "rkey")
        ranged(self.ring_addr, 0, (1 << 64) - 1, "ring_addr")

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
        message = parse_answer(Accept if kind == 2 else Confirm, data)
    remember(data, message)
    return message
