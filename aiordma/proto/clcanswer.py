"""CLC's Accept and Confirm: what one end tells the other of its queue pair and its ring (``clc``)."""

from __future__ import annotations

import struct
from typing import Any, ClassVar, Self

from .clcalike import write_answer
from .clcframe import (
    EID,
    EYE_CATCHER,
    FEATURES,
    HEADER,
    MIN_RING_BYTES,
    OS_LINUX,
    RELEASE,
    frame,
    pack_block,
    ranged,
    read_block,
    ring_bytes_code,
    sized,
    take,
    violation,
)
from .errors import LocalProtocolError
from .frozen import Frozen

_FIRST_CONTACT = 0x08

# engine_id host_id proof lid window rd_atomic dest_rd_atomic log2(recv_bytes),
# service, its address and port
_ANSWER_BLOCK = struct.Struct(">16s16s16sHHBBBxH16sH")
# Appended when the device is connected by rdma_cm: where (port, address) and with which token.
_ANSWER_CM = struct.Struct(">H16s16s")

_ANSWER = struct.Struct(">8s16s6s3sIBIBxQx3s")
_ANSWER_V2 = struct.Struct(">32s8x")
_FIRST_CONTACT_EXT = struct.Struct(">BB2x32s")
# Max connections, max links, features: from release 1 on. Before it the place is there and empty, but for
# the Accept of older Linux.
_FIRST_CONTACT_EXT_1 = struct.Struct(">BBH12x")
_GID_LIST = struct.Struct(">B3x")
_DIRECT = 0x80


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
    release: int = RELEASE
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
        size_mtu = ring_bytes_code(self.ring_bytes) << 4 | ranged(self.mtu, 1, 5, "mtu")
        parts = [
            _ANSWER.pack(
                sized(self.system_id, 8, "system_id"),
                sized(self.gid, 16, "GID"),
                sized(self.mac, 6, "mac"),
                ranged(self.qpn, 0, 0xFFFFFF, "qpn").to_bytes(3, "big"),
                ranged(self.rkey, 0, 0xFFFFFFFF, "rkey"),
                ranged(self.rmbe_index, 1, 255, "rmbe_index"),
                ranged(self.token, 1, 0xFFFFFFFF, "token"),
                size_mtu,
                ranged(self.rmb_addr, 0, (1 << 64) - 1, "rmb_addr"),
                ranged(self.psn, 0, 0xFFFFFF, "psn").to_bytes(3, "big"),
            ),
            _ANSWER_V2.pack(sized(self.eid, 32, "enterprise id")),
        ]
        if self.first_contact:
            name = self.hostname.encode("ascii", "replace")[:32].ljust(32)
            flags = _DIRECT if self.direct else 0
            release = ranged(self.release, 0, 15, "release")
            parts.append(_FIRST_CONTACT_EXT.pack(flags, OS_LINUX << 4 | release, name))
            limits = (
                ranged(self.max_conns, 1, 255, "max_conns"),
                ranged(self.max_links, 1, 255, "max_links"),
                FEATURES if self.is_aiordma else 0,
            )
            parts.append(_FIRST_CONTACT_EXT_1.pack(*limits if release else (0, 0, 0)))
            if self.kind_code == 3:
                parts.append(_GID_LIST.pack(ranged(len(self.gids), 0, 8, "number of GIDs")))
                parts.extend(sized(gid, 16, "GID") for gid in self.gids)
        elif self.gids:
            raise LocalProtocolError("CLC Confirm carries further GIDs on first contact only")
        parts.append(self._block())
        return frame(self.kind_code, b"".join(parts), _FIRST_CONTACT if self.first_contact else 0)

    def _block(self) -> bytes:
        if not (self.engine_id or self.host_id):
            return b""
        return pack_block(
            _ANSWER_BLOCK,
            sized(self.engine_id, 16, "engine_id"),
            sized(self.host_id, 16, "host_id"),
            sized(self.proof, 16, "proof"),
            ranged(self.lid, 0, 0xFFFF, "lid"),
            ranged(self.window, 1, 0x4000, "window"),
            ranged(self.rd_atomic, 0, 255, "rd_atomic"),
            ranged(self.dest_rd_atomic, 0, 255, "dest_rd_atomic"),
            ranged(self.recv_bytes, 64, 1 << 31, "recv_bytes").bit_length() - 1,
            ranged(self.service, 0, 0xFFFF, "service"),
            sized(self.service_address, 16, "address of the service"),
            ranged(self.service_port, 0, 0xFFFF, "port of the service"),
            appended=self._cm_fields(),
        )

    def _cm_fields(self) -> bytes:
        if not self.cm_port:
            return b""
        return _ANSWER_CM.pack(
            ranged(self.cm_port, 1, 0xFFFF, "port of rdma_cm"),
            sized(self.cm_address, 16, "address of rdma_cm"),
            sized(self.cm_token, 16, "token of rdma_cm"),
        )


class Accept(_Answer, kw_only=True):
    """Server to client: this is my QP and the ring you may write."""

    kind_code: ClassVar[int] = 2


class Confirm(_Answer, kw_only=True):
    """Client to server: agreed, and this is my QP and the ring you may write."""

    kind_code: ClassVar[int] = 3


def parse_answer(cls: type[Accept | Confirm], data: bytes) -> Accept | Confirm:
    """:raises RemoteProtocolError: it is none."""
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
