"""The LLC messages that are aiordma's own: tickets, and another ring for a stream."""

from __future__ import annotations

import enum
import struct
from typing import ClassVar

from .clcframe import MIN_RING_BYTES, ring_bytes_code
from .frozen import Frozen
from .llcframe import RESPONSE, pack, ranged, violation

_TICKET = struct.Struct(">IHxBIIQ16x")
_TICKET_BACK = struct.Struct(">IH34x")
#: The last number is the length of a buffer, which older versions name to ends that say they know it.
_RING_RESIZE = struct.Struct(">IBBxxQIQQ4x")


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
            ranged(self.number, 0xFFFFFFFF, "number"),
            ranged(self.service, 0xFFFF, "service"),
            ring_bytes_code(self.ring_bytes),
            ranged(self.token, 0xFFFFFFFF, "token"),
            ranged(self.rkey, 0xFFFFFFFF, "rkey"),
            ranged(self.ring_addr, (1 << 64) - 1, "ring_addr"),
        )
        return pack(self.kind_code, 0, body)

    @classmethod
    def _parse(cls, data: bytes) -> Ticket:
        number, service, size, token, rkey, addr = _TICKET.unpack_from(data, 4)
        if not number or not service or not token or size > 15:
            raise violation(f"Ticket {number} of listener {service}, token {token}, size {size}")
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
            ranged(self.number, 0xFFFFFFFF, "number"), ranged(self.service, 0xFFFF, "service")
        )
        flags = (RESPONSE if self.response else 0) | (0x40 if self.bound else 0) | (0x20 if self.used else 0)
        return pack(self.kind_code, flags, body)

    @classmethod
    def _parse(cls, data: bytes) -> TicketBack:
        number, service = _TICKET_BACK.unpack_from(data, 4)
        flags = data[3]
        return cls(
            number=number,
            service=service,
            response=bool(flags & RESPONSE),
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
            ranged(self.token, 0xFFFFFFFF, "token"),
            self.stage,
            ring_bytes_code(self.ring_bytes),
            ranged(self.position, (1 << 64) - 1, "position"),
            ranged(self.rkey, 0xFFFFFFFF, "rkey"),
            ranged(self.ring_addr, (1 << 64) - 1, "ring_addr"),
            0,
        )
        return pack(self.kind_code, 0x20 if self.refused else 0, body)

    @classmethod
    def _parse(cls, data: bytes) -> RingResize:
        token, stage, size, position, rkey, addr, buffer = _RING_RESIZE.unpack_from(data, 4)
        if not token or not 1 <= stage <= 3 or size > 15 or buffer:
            raise violation(f"Ring Resize, stage {stage}, of token {token}, size {size}")
        return cls(
            token=token,
            stage=ResizeStage(stage),
            refused=bool(data[3] & 0x20),
            position=position,
            rkey=rkey,
            ring_addr=addr,
            ring_bytes=MIN_RING_BYTES << size,
        )
