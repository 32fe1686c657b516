"""LLC: control of a link, by SEND on the link itself (RFC 7609, section 3.3 and appendix A; Linux
``net/smc/smc_llc.c``). Messages of version 1 have 44 bytes. Those of version 2 (type ``0x2.``) have a length
of 16 bits, in the byte order of the sender's processor, and some of them are longer, up to 8 KiB.

No I/O here: :func:`decode` takes the bytes of one receive, ``encode()`` gives those of one send in version 1,
and :func:`in_version_2` makes version 2 of them.
"""

from __future__ import annotations

import enum
import struct
import sys
from typing import Any, ClassVar, TypeAlias

from .clcframe import MIN_RING_BYTES, ring_bytes_code
from .codes import Code
from .errors import LocalProtocolError, RemoteProtocolError
from .frozen import Frozen

MESSAGE_BYTES = 44
MAX_MESSAGE_BYTES = 8192
"""Of version 2."""
_RESPONSE = 0x80
_BODY_BYTES = 40

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
_TICKET = struct.Struct(">IHxBIIQ16x")
_TICKET_BACK = struct.Struct(">IH34x")
#: The last number is the length of a buffer, which older versions name to ends that say they know it.
_RING_RESIZE = struct.Struct(">IBBxxQIQQ4x")


def _violation(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"LLC: {text}", Code.PROTOCOL_VIOLATION)


def _pack(kind: int, flags: int, body: bytes, byte2: int = 0) -> bytes:
    return bytes((kind, MESSAGE_BYTES, byte2, flags)) + body


def _take(area: struct.Struct, data: bytes, at: int, name: str) -> tuple[Any, ...]:
    if at + area.size > len(data):
        raise _violation(f"{name} of {len(data)} bytes is too short")
    return area.unpack_from(data, at)


def _sized(value: bytes, size: int, name: str) -> bytes:
    if len(value) != size:
        raise LocalProtocolError(f"LLC {name} must be {size} bytes, not {len(value)}")
    return value


def _ranged(value: int, high: int, name: str) -> int:
    if not 0 <= value <= high:
        raise LocalProtocolError(f"LLC {name} must be from 0 to {high}, not {value}")
    return value


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
            _sized(self.mac, 6, "mac"),
            _sized(self.gid, 16, "GID"),
            _ranged(self.qpn, 0xFFFFFF, "qpn").to_bytes(3, "big"),
            _ranged(self.link_num, 255, "link_num"),
            _ranged(self.link_uid, 0xFFFFFFFF, "link_uid"),
            _ranged(self.max_links, 255, "max_links"),
            _ranged(self.max_conns, 255, "max_conns"),
        )
        flags = 0x03 | (_RESPONSE if self.response else 0)  # 0x03: no eye catchers in the rings
        return _pack(self.kind_code, flags, body)

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
            response=bool(data[3] & _RESPONSE),
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
        flags = _RESPONSE if self.response else 0
        if self.rejected is not None:
            flags |= 0x40
        body = _ADD_LINK.pack(
            _sized(self.mac, 6, "mac"),
            _sized(self.gid, 16, "GID"),
            _ranged(self.qpn, 0xFFFFFF, "qpn").to_bytes(3, "big"),
            _ranged(self.link_num, 255, "link_num"),
            _ranged(self.mtu, 15, "mtu"),
            _ranged(self.psn, 0xFFFFFF, "psn").to_bytes(3, "big"),
        )
        if self.keys:
            raise LocalProtocolError("LLC Add Link has keys in version 2 only: this end sends none")
        return _pack(self.kind_code, flags, body, _ranged(self.rejected or 0, 15, "reason"))

    @classmethod
    def _parse(cls, data: bytes) -> AddLink:
        mac, gid, qpn, num, mtu, psn = _ADD_LINK.unpack_from(data, 4)
        if not data[3] & 0x40 and not 1 <= mtu & 15 <= 5:
            raise _violation(f"Add Link with path MTU code {mtu & 15} (1 to 5 exist)")
        return cls(
            gid=gid,
            qpn=int.from_bytes(qpn, "big"),
            psn=int.from_bytes(psn, "big"),
            link_num=num,
            mtu=mtu & 15,
            mac=mac,
            response=bool(data[3] & _RESPONSE),
            rejected=(data[2] & 15 if is_version_1(data) else 0) if data[3] & 0x40 else None,
            keys=cls._parse_keys(data),
        )

    @classmethod
    def _parse_keys(cls, data: bytes) -> tuple[NewKey, ...]:
        if len(data) == MESSAGE_BYTES:
            return ()
        (_, _, raw) = _take(_ADD_LINK_V2, data, MESSAGE_BYTES, "Add Link")
        # In the sender's byte order, as the length: the one that fits to the bytes that are there.
        first = MESSAGE_BYTES + _ADD_LINK_V2.size
        size = (len(data) - first) // _NEW_KEY.size
        if size not in (int.from_bytes(raw, "little"), int.from_bytes(raw, "big")):
            raise _violation(f"Add Link of {len(data)} bytes says that it has {raw.hex()} (hex) keys")
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
            (_RESPONSE if self.response else 0)
            | (0x40 if self.all_links else 0)
            | (0x20 if self.orderly else 0)
        )
        number = _ranged(self.link_num, 255, "link_num")
        return _pack(
            self.kind_code, flags, _DELETE_LINK.pack(number, _ranged(self.reason, 0xFFFFFFFF, "reason"))
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
            response=bool(flags & _RESPONSE),
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
        return _pack(self.kind_code, _RESPONSE if self.response else 0, bytes(_BODY_BYTES))

    @classmethod
    def _parse(cls, data: bytes) -> RequestAddLink:
        gids: tuple[bytes, ...] = ()
        if not is_version_1(data):
            (count,) = _REQUEST_ADD_LINK.unpack_from(data, 4)
            first = 4 + _REQUEST_ADD_LINK.size
            end = first + 16 * count
            if end > len(data):
                raise _violation(f"Request Add Link of {len(data)} bytes cannot carry {count} GIDs")
            gids = tuple(data[at : at + 16] for at in range(first, end, 16))
        return cls(gids=gids, response=bool(data[3] & _RESPONSE))


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
            first = len(self.tokens) - 1 if i == 0 else _ranged(token.link_num, 255, "link_num")
            body += _RTOKEN.pack(
                first, _ranged(token.rkey, 0xFFFFFFFF, "rkey"), _ranged(token.addr, (1 << 64) - 1, "addr")
            )
        flags = (
            (_RESPONSE if self.response else 0) | (0x20 if self.negative else 0) | (0x10 if self.retry else 0)
        )
        return _pack(self.kind_code, flags, body.ljust(_BODY_BYTES, b"\0"))

    @classmethod
    def _parse(cls, data: bytes) -> ConfirmRKey:
        if data[4] > 2:
            raise _violation(f"Confirm RKey with {data[4]} further links (at most 2)")
        parts = [_RTOKEN.unpack_from(data, 4 + 13 * i) for i in range(data[4] + 1)]
        tokens = tuple(RToken(0 if i == 0 else p[0], p[1], p[2]) for i, p in enumerate(parts))
        flags = data[3]
        return cls(
            tokens=tokens,
            response=bool(flags & _RESPONSE),
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
        body = _TEST_LINK.pack(_sized(self.user_data, 16, "user_data"))
        return _pack(self.kind_code, _RESPONSE if self.response else 0, body)

    @classmethod
    def _parse(cls, data: bytes) -> TestLink:
        return cls(user_data=data[4:20], response=bool(data[3] & _RESPONSE))


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
        keys = [_ranged(key, 0xFFFFFFFF, "rkey") for key in self.rkeys] + [0] * (8 - len(self.rkeys))
        body = _DELETE_RKEY.pack(len(self.rkeys), _ranged(self.error_mask, 255, "error_mask"), *keys)
        flags = (_RESPONSE if self.response else 0) | (0x20 if self.negative else 0)
        return _pack(self.kind_code, flags, body)

    @classmethod
    def _parse(cls, data: bytes) -> DeleteRKey:
        count, mask = data[4], data[5]
        room = 8 if len(data) == MESSAGE_BYTES else (len(data) - _DELETE_RKEY_V2_HEAD) // 4
        if not 1 <= count <= room:
            raise _violation(f"Delete RKey with {count} keys (1 to {room})")
        flags = data[3]
        return cls(
            rkeys=struct.unpack_from(f">{count}I", data, _DELETE_RKEY_V2_HEAD),
            error_mask=mask,
            response=bool(flags & _RESPONSE),
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
        return _pack(self.kind_code, 0, bytes(_BODY_BYTES))

    @classmethod
    def _parse(cls, data: bytes) -> AnnounceAck:
        return cls()


class Ticket(Frozen, kw_only=True):
    """Server to client, aiordma's own: a ring handed out in advance. The client may begin a connection with
    it, by a CLC Claim on a new TCP connection, and write into the ring without waiting for an answer."""

    kind_code: ClassVar[int] = 0x0D

    number: int
    """Number of the ticket on this link; not 0."""
    service: int
    """The listener it is for (CLC Accept); not 0."""
    token: int
    """Alert token of the ring; not 0."""
    rkey: int
    """Remote key of the ring."""
    ring_addr: int
    """Remote address of the ring."""
    ring_bytes: int
    """Size of the ring: a power of two from 16 KiB to 512 MiB."""

    def encode(self) -> bytes:
        body = _TICKET.pack(
            _ranged(self.number, 0xFFFFFFFF, "number"),
            _ranged(self.service, 0xFFFF, "service"),
            ring_bytes_code(self.ring_bytes),
            _ranged(self.token, 0xFFFFFFFF, "token"),
            _ranged(self.rkey, 0xFFFFFFFF, "rkey"),
            _ranged(self.ring_addr, (1 << 64) - 1, "ring_addr"),
        )
        return _pack(self.kind_code, 0, body)

    @classmethod
    def _parse(cls, data: bytes) -> Ticket:
        number, service, size, token, rkey, addr = _TICKET.unpack_from(data, 4)
        if not number or not service or not token or size > 15:
            raise _violation(f"Ticket {number} of listener {service}, token {token}, size {size}")
        return cls(
            number=number,
            service=service,
            token=token,
            rkey=rkey,
            ring_addr=addr,
            ring_bytes=MIN_RING_BYTES << size,
        )


class TicketBack(Frozen, kw_only=True):
    """About tickets that are out, aiordma's own. From the client: it will not use this one, or gives up a
    connection that was begun with it. The server answers that the ring is free on both sides, or ``bound``:
    then the connection exists. From the server as a request: give back all tickets of this listener."""

    kind_code: ClassVar[int] = 0x0E

    number: int = 0
    """Number of the ticket; 0 (server only): all of the listener."""
    service: int
    """The listener."""
    response: bool = False
    """This is the answer."""
    bound: bool = False
    """In an answer: the ticket was claimed, and the connection exists."""
    used: bool = False
    """From the client: something may have been written to the ring."""

    def encode(self) -> bytes:
        body = _TICKET_BACK.pack(
            _ranged(self.number, 0xFFFFFFFF, "number"), _ranged(self.service, 0xFFFF, "service")
        )
        flags = (_RESPONSE if self.response else 0) | (0x40 if self.bound else 0) | (0x20 if self.used else 0)
        return _pack(self.kind_code, flags, body)

    @classmethod
    def _parse(cls, data: bytes) -> TicketBack:
        number, service = _TICKET_BACK.unpack_from(data, 4)
        flags = data[3]
        return cls(
            number=number,
            service=service,
            response=bool(flags & _RESPONSE),
            bound=bool(flags & 0x40),
            used=bool(flags & 0x20),
        )


class ResizeStage(enum.IntEnum):
    """The messages that replace a stream's receive ring, in this order."""

    OFFER = 1
    """From the ring's owner: another size would suit. Changes nothing by itself."""
    PAUSED = 2
    """From the writer: it writes no more, and has written up to ``position``. It waits for the next."""
    RING = 3
    """From the owner: write here from now on. It may be the ring of before."""


class RingResize(Frozen, kw_only=True):
    """Replaces a stream's receive ring while the stream lives; aiordma's own.

    The writer writes nothing between Paused and Ring. So at no time may the two ends disagree about the ring
    that a byte is in, wherever the link fails.
    """

    kind_code: ClassVar[int] = 0x0F

    token: int
    """Alert token of the stream at the receiver of this message; not 0."""
    stage: ResizeStage
    """Which of the messages this is."""
    refused: bool = False
    """In Paused: the writer has not paused and will not, for this stream."""
    position: int = 0
    """In Paused: bytes that the writer has written since the stream began."""
    rkey: int = 0
    """In Ring: remote key."""
    ring_addr: int = 0
    """In Ring: remote address."""
    ring_bytes: int = MIN_RING_BYTES
    """In Offer and Ring: size, a power of two from 16 KiB to 512 MiB."""

    def encode(self) -> bytes:
        body = _RING_RESIZE.pack(
            _ranged(self.token, 0xFFFFFFFF, "token"),
            self.stage,
            ring_bytes_code(self.ring_bytes),
            _ranged(self.position, (1 << 64) - 1, "position"),
            _ranged(self.rkey, 0xFFFFFFFF, "rkey"),
            _ranged(self.ring_addr, (1 << 64) - 1, "ring_addr"),
            0,
        )
        return _pack(self.kind_code, 0x20 if self.refused else 0, body)

    @classmethod
    def _parse(cls, data: bytes) -> RingResize:
        token, stage, size, position, rkey, addr, buffer = _RING_RESIZE.unpack_from(data, 4)
        if not token or not 1 <= stage <= 3 or size > 15 or buffer:
            raise _violation(f"Ring Resize, stage {stage}, of token {token}, size {size}")
        return cls(
            token=token,
            stage=ResizeStage(stage),
            refused=bool(data[3] & 0x20),
            position=position,
            rkey=rkey,
            ring_addr=addr,
            ring_bytes=MIN_RING_BYTES << size,
        )


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


def is_version_1(data: bytes) -> bool:
    """Whether a message is of version 1, by its first byte."""
    return data[0] >> 4 == 0


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
        raise _violation(f"message of {len(data)} bytes, and no message has less than 44")
    if not is_llc(data[0]):
        raise _violation(f"unknown message type 0x{data[0]:02x}")
    if not _length_fits(data):
        raise _violation(f"message of {len(data)} bytes that says {data[1:3].hex()} (hex)")
    return _TYPES[data[0] & 15]._parse(data)
