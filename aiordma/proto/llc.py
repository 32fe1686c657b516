"""LLC: control of a link, by SEND on the link itself (RFC 7609, section 3.3 and appendix A; Linux
``net/smc/smc_llc.c``). Messages of version 1 have 44 bytes. Those of version 2 (type ``0x2.``) have a length
of 16 bits, in the byte order of the sender's processor, and some of them are longer, up to 8 KiB.

No I/O here: :func:`decode` takes the bytes of one receive, ``encode()`` gives those of one send in version 1,
and :func:`in_version_2` makes version 2 of them. Messages that only aiordma has are in ``llcown.py``.
"""

from __future__ import annotations

import enum
import struct
import sys
from typing import ClassVar, TypeAlias

from .errors import LocalProtocolError
from .frozen import Frozen
from .llcframe import (
    BODY_BYTES,
    MESSAGE_BYTES,
    RESPONSE,
    is_version_1,
    pack,
    ranged,
    sized,
    take,
    violation,
)
from .llcown import RingResize, Ticket, TicketBack

MAX_MESSAGE_BYTES = 8192
"""Of version 2."""

_CONFIRM_LINK = struct.Struct(">6s16s3sBIBB8x")
_ADD_LINK = struct.Struct(">6s2x16s3sBB3s8x")
_ADD_LINK_V2 = struct.Struct(">Bx16s8x2s")
_NEW_KEY = struct.Struct(">IIQ")
_REQUEST_ADD_LINK = struct.Struct(">20xB3x")
_DELETE_LINK = struct.Struct(">BI35x")
_RTOKEN = struct.Struct(">BIQ")
_DELETE_RKEY = struct.Struct(">BB2x8I4x")
_DELETE_RKEY_V2_HEAD = 8
_TEST_LINK = struct.Struct(">16s24x")


class ConfirmLink(Frozen, kw_only=True):
    """Proves that a new link carries data, once in each direction (request from the server, response from the
    client)."""

    kind_code: ClassVar[int] = 0x01

    gid: bytes
    """GID of the sender's port."""
    qpn: int
    """Sender's QP number."""
    link_uid: int
    """Sender's unique id of the link."""
    link_num: int = 1
    """Number of the link in its group, given by the server."""
    mac: bytes = bytes(6)
    """MAC address of the sender's port."""
    max_links: int = 2
    """Links the sender allows in the group."""
    max_conns: int = 255
    """Connections the sender allows in the group."""
    response: bool = False
    """This is the answer."""

    def encode(self) -> bytes:
        body = _CONFIRM_LINK.pack(
            sized(self.mac, 6, "mac"),
            sized(self.gid, 16, "GID"),
            ranged(self.qpn, 0xFFFFFF, "qpn").to_bytes(3, "big"),
            ranged(self.link_num, 255, "link_num"),
            ranged(self.link_uid, 0xFFFFFFFF, "link_uid"),
            ranged(self.max_links, 255, "max_links"),
            ranged(self.max_conns, 255, "max_conns"),
        )
        flags = 0x03 | (RESPONSE if self.response else 0)  # 0x03: no eye catchers in the rings
        return pack(self.kind_code, flags, body)

    @classmethod
    def _parse(cls, data: bytes) -> ConfirmLink:
        mac, gid, qpn, num, uid, links, conns = _CONFIRM_LINK.unpack_from(data, 4)
        return cls(
            gid=gid,
            qpn=int.from_bytes(qpn, "big"),
            link_uid=uid,
            link_num=num,
            mac=mac,
            max_links=links,
            max_conns=conns,
            response=bool(data[3] & RESPONSE),
        )


class NewKey(Frozen):
    """How the peer reaches one memory region over a link that is added."""

    rkey: int
    """Its key on the link that carries the message."""
    new_rkey: int
    """Its key on the new link."""
    new_addr: int
    """Its virtual address on the new link."""


class AddLink(Frozen, kw_only=True):
    """Offers a second link (over another port) for the group, or answers such an offer."""

    kind_code: ClassVar[int] = 0x02

    gid: bytes
    """GID of the sender's port for the new link."""
    qpn: int
    """Sender's QP number for the new link."""
    psn: int
    """Sender's first PSN."""
    link_num: int
    """Number of the new link in its group."""
    mtu: int = 3
    """Sender's path MTU as ``ibv_mtu``."""
    mac: bytes = bytes(6)
    """MAC address of the sender's port."""
    response: bool = False
    """This is the answer."""
    rejected: int | None = None
    """In an answer: the reason for a refusal (1 = no alternate path), None when accepted. Version 2 has no
    place for the reason (0)."""
    keys: tuple[NewKey, ...] = ()
    """Version 2 only: the sender's memory regions."""

    def encode(self) -> bytes:
        flags = RESPONSE if self.response else 0
        if self.rejected is not None:
            flags |= 0x40
        body = _ADD_LINK.pack(
            sized(self.mac, 6, "mac"),
            sized(self.gid, 16, "GID"),
            ranged(self.qpn, 0xFFFFFF, "qpn").to_bytes(3, "big"),
            ranged(self.link_num, 255, "link_num"),
            ranged(self.mtu, 15, "mtu"),
            ranged(self.psn, 0xFFFFFF, "psn").to_bytes(3, "big"),
        )
        if self.keys:
            raise LocalProtocolError("LLC Add Link has keys in version 2 only: this end sends none")
        return pack(self.kind_code, flags, body, ranged(self.rejected or 0, 15, "reason"))

    @classmethod
    def _parse(cls, data: bytes) -> AddLink:
        mac, gid, qpn, num, mtu, psn = _ADD_LINK.unpack_from(data, 4)
        if not data[3] & 0x40 and not 1 <= mtu & 15 <= 5:
            raise violation(f"Add Link with path MTU code {mtu & 15} (1 to 5 exist)")
        return cls(
            gid=gid,
            qpn=int.from_bytes(qpn, "big"),
            psn=int.from_bytes(psn, "big"),
            link_num=num,
            mtu=mtu & 15,
            mac=mac,
            response=bool(data[3] & RESPONSE),
            rejected=(data[2] & 15 if is_version_1(data) else 0) if data[3] & 0x40 else None,
            keys=cls._parse_keys(data),
        )

    @classmethod
    def _parse_keys(cls, data: bytes) -> tuple[NewKey, ...]:
        if len(data) == MESSAGE_BYTES:
            return ()
        (_, _, raw) = take(_ADD_LINK_V2, data, MESSAGE_BYTES, "Add Link")
        # In the sender's byte order, as the length: the one that fits to the bytes that are there.
        first = MESSAGE_BYTES + _ADD_LINK_V2.size
        size = (len(data) - first) // _NEW_KEY.size
        if size not in (int.from_bytes(raw, "little"), int.from_bytes(raw, "big")):
            raise violation(f"Add Link of {len(data)} bytes says that it has {raw.hex()} (hex) keys")
        return tuple(
            NewKey(*_NEW_KEY.unpack_from(data, at))
            for at in range(first, first + size * _NEW_KEY.size, _NEW_KEY.size)
        )


class DeleteReason(enum.IntEnum):
    """Why a link goes away."""

    LOST_PATH = 0x00010000
    OPERATOR = 0x00020000
    PROGRAM = 0x00030000
    PROTOCOL_VIOLATION = 0x00040000
    NO_ASYMMETRIC_LINK = 0x00050000


class DeleteLink(Frozen, kw_only=True):
    """Takes one link, or all of them (the end of the group), out of use."""

    kind_code: ClassVar[int] = 0x04

    reason: int
    """A :class:`DeleteReason`, or a number that we do not know."""
    link_num: int = 0
    """Number of the link; ignored with ``all_links``."""
    all_links: bool = False
    """The whole group ends."""
    orderly: bool = False
    """Nothing is lost: connections have been moved or closed."""
    response: bool = False
    """This is the answer."""

    def encode(self) -> bytes:
        flags = (
            (RESPONSE if self.response else 0)
            | (0x40 if self.all_links else 0)
            | (0x20 if self.orderly else 0)
        )
        number = ranged(self.link_num, 255, "link_num")
        return pack(
            self.kind_code, flags, _DELETE_LINK.pack(number, ranged(self.reason, 0xFFFFFFFF, "reason"))
        )

    @classmethod
    def _parse(cls, data: bytes) -> DeleteLink:
        num, reason = _DELETE_LINK.unpack_from(data, 4)
        flags = data[3]
        return cls(
            reason=reason,
            link_num=num,
            all_links=bool(flags & 0x40),
            orderly=bool(flags & 0x20),
            response=bool(flags & RESPONSE),
        )


class RequestAddLink(Frozen, kw_only=True):
    """From a client: the server shall offer a second link, since the client has got another port."""

    kind_code: ClassVar[int] = 0x05

    gids: tuple[bytes, ...] = ()
    """Version 2: the client's GIDs."""
    response: bool = False
    """This is the answer."""

    def encode(self) -> bytes:
        if self.gids:
            raise LocalProtocolError("LLC Request Add Link has GIDs in version 2 only: none are sent")
        return pack(self.kind_code, RESPONSE if self.response else 0, bytes(BODY_BYTES))

    @classmethod
    def _parse(cls, data: bytes) -> RequestAddLink:
        gids: tuple[bytes, ...] = ()
        if not is_version_1(data):
            (count,) = _REQUEST_ADD_LINK.unpack_from(data, 4)
            first = 4 + _REQUEST_ADD_LINK.size
            end = first + 16 * count
            if end > len(data):
                raise violation(f"Request Add Link of {len(data)} bytes cannot carry {count} GIDs")
            gids = tuple(data[at : at + 16] for at in range(first, end, 16))
        return cls(gids=gids, response=bool(data[3] & RESPONSE))


class RToken(Frozen):
    """How the peer reaches one memory region over one link."""

    link_num: int
    """The link it holds for; ignored for the first of a message, which holds for the link it travels on."""
    rkey: int
    """Remote key."""
    addr: int
    """Virtual address of the region."""


class ConfirmRKey(Frozen, kw_only=True):
    """Announces a new memory region, with its key for up to three links."""

    kind_code: ClassVar[int] = 0x06

    tokens: tuple[RToken, ...]
    """One for the link that carries the message, then those of the other links (at most 3 in all)."""
    response: bool = False
    """This is the answer."""
    negative: bool = False
    """In an answer: refused."""
    retry: bool = False
    """In a negative answer: try again later."""

    def encode(self) -> bytes:
        if not 1 <= len(self.tokens) <= 3:
            raise LocalProtocolError(f"LLC Confirm RKey takes 1 to 3 tokens, not {len(self.tokens)}")
        body = b""
        for i, token in enumerate(self.tokens):
            first = len(self.tokens) - 1 if i == 0 else ranged(token.link_num, 255, "link_num")
            body += _RTOKEN.pack(
                first, ranged(token.rkey, 0xFFFFFFFF, "rkey"), ranged(token.addr, (1 << 64) - 1, "addr")
            )
        flags = (
            (RESPONSE if self.response else 0) | (0x20 if self.negative else 0) | (0x10 if self.retry else 0)
        )
        return pack(self.kind_code, flags, body.ljust(BODY_BYTES, b"\0"))

    @classmethod
    def _parse(cls, data: bytes) -> ConfirmRKey:
        if data[4] > 2:
            raise violation(f"Confirm RKey with {data[4]} further links (at most 2)")
        parts = [_RTOKEN.unpack_from(data, 4 + 13 * i) for i in range(data[4] + 1)]
        tokens = tuple(RToken(0 if i == 0 else p[0], p[1], p[2]) for i, p in enumerate(parts))
        flags = data[3]
        return cls(
            tokens=tokens,
            response=bool(flags & RESPONSE),
            negative=bool(flags & 0x20),
            retry=bool(flags & 0x10),
        )


class TestLink(Frozen, kw_only=True):
    """Asks the peer's software (not only its NIC) for a sign of life; the answer carries the same 16
    bytes."""

    __test__: ClassVar[bool] = False  # not a pytest class
    kind_code: ClassVar[int] = 0x07

    user_data: bytes = bytes(16)
    """Echoed by the answer."""
    response: bool = False
    """This is the answer."""

    def encode(self) -> bytes:
        body = _TEST_LINK.pack(sized(self.user_data, 16, "user_data"))
        return pack(self.kind_code, RESPONSE if self.response else 0, body)

    @classmethod
    def _parse(cls, data: bytes) -> TestLink:
        return cls(user_data=data[4:20], response=bool(data[3] & RESPONSE))


class DeleteRKey(Frozen, kw_only=True):
    """Announces that memory regions are gone: the peer must not use these keys any more."""

    kind_code: ClassVar[int] = 0x09

    rkeys: tuple[int, ...]
    """Remote keys, at most 8; in version 2, at most 255."""
    error_mask: int = 0
    """In an answer: bit 7 - i set when key i was not known."""
    response: bool = False
    """This is the answer."""
    negative: bool = False
    """In an answer: some key was not known."""

    def encode(self) -> bytes:
        if not 1 <= len(self.rkeys) <= 8:
            raise LocalProtocolError(f"LLC Delete RKey takes 1 to 8 keys, not {len(self.rkeys)}")
        keys = [ranged(key, 0xFFFFFFFF, "rkey") for key in self.rkeys] + [0] * (8 - len(self.rkeys))
        body = _DELETE_RKEY.pack(len(self.rkeys), ranged(self.error_mask, 255, "error_mask"), *keys)
        flags = (RESPONSE if self.response else 0) | (0x20 if self.negative else 0)
        return pack(self.kind_code, flags, body)

    @classmethod
    def _parse(cls, data: bytes) -> DeleteRKey:
        count, mask = data[4], data[5]
        room = 8 if len(data) == MESSAGE_BYTES else (len(data) - _DELETE_RKEY_V2_HEAD) // 4
        if not 1 <= count <= room:
            raise violation(f"Delete RKey with {count} keys (1 to {room})")
        flags = data[3]
        return cls(
            rkeys=struct.unpack_from(f">{count}I", data, _DELETE_RKEY_V2_HEAD),
            error_mask=mask,
            response=bool(flags & RESPONSE),
            negative=bool(flags & 0x20),
        )


class AnnounceAck(Frozen):
    """Carries nothing but its immediate data: the acknowledgement that the ack timer sends when nothing else
    does.

    It takes a place in the window, so that any number of them cannot outrun the posted receives (``seqack``).
    The type is the one of the credit announcement in Alibaba's kernel, with 0 credits.
    """

    kind_code: ClassVar[int] = 0x0A

    def encode(self) -> bytes:
        return pack(self.kind_code, 0, bytes(BODY_BYTES))

    @classmethod
    def _parse(cls, data: bytes) -> AnnounceAck:
        return cls()


LlcMessage: TypeAlias = (
    ConfirmLink
    | AddLink
    | DeleteLink
    | RequestAddLink
    | ConfirmRKey
    | TestLink
    | DeleteRKey
    | AnnounceAck
    | Ticket
    | TicketBack
    | RingResize
)

_TYPES: dict[int, type[LlcMessage]] = {
    cls.kind_code: cls
    for cls in (
        ConfirmLink,
        AddLink,
        DeleteLink,
        RequestAddLink,
        ConfirmRKey,
        TestLink,
        DeleteRKey,
        AnnounceAck,
        Ticket,
        TicketBack,
        RingResize,
    )
}


def is_llc(first_byte: int) -> bool:
    """Whether a received message with this first byte is LLC (of either version)."""
    return first_byte >> 4 in (0, 2) and first_byte & 15 in _TYPES


def _length_fits(data: bytes) -> bool:
    if is_version_1(data):
        return data[1] == len(data) == MESSAGE_BYTES
    said = data[1:3]
    if not MESSAGE_BYTES <= len(data) <= MAX_MESSAGE_BYTES:
        return False
    return len(data) in (int.from_bytes(said, "little"), int.from_bytes(said, "big"))


def in_version_2(data: bytes) -> bytes:
    """An encoded message as SMC-Rv2 has it."""
    return bytes((data[0] | 0x20,)) + len(data).to_bytes(2, sys.byteorder) + data[3:]


def decode(data: bytes | bytearray | memoryview) -> LlcMessage:
    """One message.

    :raises RemoteProtocolError: wrong size, unknown type or version, or a field that cannot be.
    """
    data = bytes(data)
    if len(data) < MESSAGE_BYTES:
        raise violation(f"message of {len(data)} bytes, and no message has less than 44")
    if not is_llc(data[0]):
        raise violation(f"unknown message type 0x{data[0]:02x}")
    if not _length_fits(data):
        raise violation(f"message of {len(data)} bytes that says {data[1:3].hex()} (hex)")
    return _TYPES[data[0] & 15]._parse(data)
