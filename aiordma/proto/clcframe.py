"""What CLC messages have in common (``clc``): header and trailer, the block for what SMC does not have, and
fields that several of them have.
"""

from __future__ import annotations

import struct
from typing import Any

from .codes import Code
from .errors import LocalProtocolError, RemoteProtocolError

EYE_CATCHER = b"\xe2\xd4\xc3\xd9"  # "SMCR" in EBCDIC
MAX_MESSAGE_BYTES = 4096
"""No message of ours or of Linux is near this size; a longer one is refused when its header arrives."""
HEADER = struct.Struct(">4sBHB")
CLAIM = 0x41  # far from the types of SMC
_MIN_BYTES = {1: 52, 2: 68, 3: 68, 4: 28, CLAIM: 80}
NAMES = {1: "Proposal", 2: "Accept", 3: "Confirm", 4: "Decline", CLAIM: "Claim"}
_VERSION = 2
_MAGIC = b"aiordma\x01"
_BLOCK_HEADER = struct.Struct(">8sHH")

EID = b"AIORDMA".ljust(32)
"""The enterprise id that every aiordma end offers."""
MIN_RING_BYTES = 16 * 1024
OS_LINUX = 2
RELEASE = 1
FEATURES = 1  # between aiordma's ends, where nothing follows from it; to others: none


def violation(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"CLC: {text}", Code.PROTOCOL_VIOLATION)


def frame(kind: int, body: bytes, flags: int, version: int = _VERSION) -> bytes:
    length = HEADER.size + len(body) + len(EYE_CATCHER)
    return HEADER.pack(EYE_CATCHER, kind, length, version << 4 | flags) + body + EYE_CATCHER


def take(area: struct.Struct, data: bytes, at: int, what: str) -> tuple[tuple[Any, ...], int]:
    """Unpack ``area`` at ``at``; the trailer is out of bounds. Returns the values and the offset behind
    them."""
    end = at + area.size
    if end > len(data) - len(EYE_CATCHER):
        raise violation(f"{NAMES[data[4]]} of {len(data)} bytes is too short for its {what}")
    return area.unpack_from(data, at), end


def read_block(
    area: struct.Struct, data: bytes, at: int, appended: struct.Struct | None = None
) -> tuple[Any, ...] | None:
    """Our own block at ``at``, or None when the message has none. ``appended`` counts as zeros where it is
    missing.
    """
    body_end = len(data) - len(EYE_CATCHER)
    if data[at : at + len(_MAGIC)] != _MAGIC or at + _BLOCK_HEADER.size > body_end:
        return None
    _, length, _ = _BLOCK_HEADER.unpack_from(data, at)
    if length < _BLOCK_HEADER.size + area.size or at + length > body_end:
        raise violation(f"the aiordma block of a {NAMES[data[4]]} says {length} bytes, which cannot be")
    values = area.unpack_from(data, at + _BLOCK_HEADER.size)
    if appended is None:
        return values
    tail = data[at + _BLOCK_HEADER.size + area.size : at + length][: appended.size]
    return values + appended.unpack(tail if len(tail) == appended.size else bytes(appended.size))


def read_needs(data: bytes, at: int) -> int:
    """The first byte of the flags of our own block at ``at``, which :func:`read_block` has read."""
    _, _, flags = _BLOCK_HEADER.unpack_from(data, at)
    return int(flags) >> 8


def pack_block(area: struct.Struct, *values: int | bytes, appended: bytes = b"", needs: int = 0) -> bytes:
    fields = area.pack(*values) + appended
    return _BLOCK_HEADER.pack(_MAGIC, _BLOCK_HEADER.size + len(fields), needs << 8) + fields


def looks_like_clc(prefix: bytes | bytearray | memoryview) -> bool | None:
    """Whether a stream that begins with ``prefix`` begins a negotiation: True, False, or None (need more
    bytes).

    Eight bytes decide for True, the first wrong one for False: a plain client is never kept waiting for a
    reason that its first byte already excludes.
    """
    if len(prefix) >= HEADER.size:
        eye, kind, length, version = HEADER.unpack_from(prefix)
        known = eye == EYE_CATCHER and kind in NAMES and version >> 4 > 0
        return known and _MIN_BYTES[kind] <= length <= MAX_MESSAGE_BYTES
    head = bytes(prefix)
    if not EYE_CATCHER.startswith(head[:4]):
        return False
    if len(head) > 4 and head[4] not in NAMES:
        return False
    if len(head) > 5 and head[5] > MAX_MESSAGE_BYTES >> 8:
        return False
    return None


def version_of(data: bytes) -> int:
    """The version by which to answer a message that starts with these 8 or more bytes: 1 or 2."""
    return max(1, min(data[7] >> 4, _VERSION))


def message_length(data: bytes) -> int:
    """The length field of a message that starts with these 8 or more bytes."""
    eye, kind, length, version = HEADER.unpack_from(data)
    if eye != EYE_CATCHER:
        raise violation(f"the stream begins with {data[:4].hex(' ')}, not with the eye catcher")
    if kind not in NAMES:
        raise violation(f"unknown message type {kind}")
    if not _MIN_BYTES[kind] <= length <= MAX_MESSAGE_BYTES:
        raise violation(f"{NAMES[kind]} of {length} bytes (from {_MIN_BYTES[kind]} to {MAX_MESSAGE_BYTES})")
    if version >> 4 == 0:
        raise violation(f"{NAMES[kind]} of version 0")
    return int(length)


def ring_bytes_code(ring_bytes: int) -> int:
    """The RMBE size code ``c`` of a ring of ``16 KiB << c`` bytes.

    :raises LocalProtocolError: not a power of two from 16 KiB to 512 MiB.
    """
    code = ring_bytes.bit_length() - MIN_RING_BYTES.bit_length()
    if not 0 <= code <= 15 or ring_bytes != MIN_RING_BYTES << code:
        raise LocalProtocolError(f"ring of {ring_bytes} bytes: must be a power of two from 16 KiB to 512 MiB")
    return code


def sized(value: bytes, size: int, name: str) -> bytes:
    if len(value) != size:
        raise LocalProtocolError(f"CLC {name} must be {size} bytes, not {len(value)}")
    return value


def ranged(value: int, low: int, high: int, name: str) -> int:
    if not low <= value <= high:
        raise LocalProtocolError(f"CLC {name} must be from {low} to {high}, not {value}")
    return value
