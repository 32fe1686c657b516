"""What all LLC messages have in common: four bytes, a body, and how their fields are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .codes import Code
from .errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    import struct

MESSAGE_BYTES = 44
RESPONSE = 0x80
BODY_BYTES = 40


def violation(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"LLC: {text}", Code.PROTOCOL_VIOLATION)


def pack(kind: int, flags: int, body: bytes, byte2: int = 0) -> bytes:
    return bytes((kind, MESSAGE_BYTES, byte2, flags)) + body


def take(area: struct.Struct, data: bytes, at: int, name: str) -> tuple[Any, ...]:
    if at + area.size > len(data):
        raise violation(f"{name} of {len(data)} bytes is too short")
    return area.unpack_from(data, at)


def sized(value: bytes, size: int, name: str) -> bytes:
    if len(value) != size:
        raise LocalProtocolError(f"LLC {name} must be {size} bytes, not {len(value)}")
    return value


def ranged(value: int, high: int, name: str) -> int:
    if not 0 <= value <= high:
        raise LocalProtocolError(f"LLC {name} must be from 0 to {high}, not {value}")
    return value


def is_version_1(data: bytes) -> bool:
    """Whether a message is of version 1, by its first byte."""
    return data[0] >> 4 == 0
