"""Metadata of calls, as a CALL, a REPLY and HEADERS carry it: entries, one behind the other.

An entry is ``kind u8 (0 text, 1 bytes), key length u8, value length u16, key, value``, big-endian.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from .errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ENTRY = Struct("!BBH")

#: Most entries of metadata: each costs memory far beyond its bytes.
MAX_ENTRIES = 512


def encode_metadata(metadata: Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]) -> bytes:
    """The entries of ``metadata``.

    :raises ValueError: a key that is empty, longer than 255 characters, not printable ASCII or not in lower
        case; a value of more than 65535 bytes; more than ``MAX_ENTRIES``.
    :raises TypeError: keys that are not text, values that are neither text nor bytes.
    """
    parts = []
    items = metadata.items() if hasattr(metadata, "items") else metadata
    for key, value in items:
        if not isinstance(key, str):
            raise TypeError(f"metadata key {key!r}: must be a str")
        if not key or len(key) > 255 or not key.isascii() or not key.isprintable() or key != key.lower():
            raise ValueError(
                f"metadata key {key!r}: must be 1 to 255 printable ASCII characters in lower case"
            )
        if isinstance(value, str):
            kind, data = 0, value.encode()
        elif isinstance(value, (bytes, bytearray, memoryview)):
            kind, data = 1, bytes(value)
        else:
            raise TypeError(f"metadata {key}={value!r}: values must be str or bytes")
        if len(data) > 65535:
            raise ValueError(f"metadata {key}: a value of {len(data)} bytes; 65535 are allowed")
        parts.append(_ENTRY.pack(kind, len(key), len(data)) + key.encode() + data)
    if len(parts) > MAX_ENTRIES:
        raise ValueError(f"{len(parts)} entries of metadata; {MAX_ENTRIES} are allowed")
    return b"".join(parts)


def decode_metadata(data: bytes) -> dict[str, str | bytes]:
    """The metadata of its entries.

    :raises RemoteProtocolError: anything :func:`encode_metadata` would not have made.
    """
    found: dict[str, str | bytes] = {}
    at = 0
    total = len(data)
    while at < total:
        if at + 4 > total:
            raise RemoteProtocolError("metadata: an entry is cut off")
        if len(found) == MAX_ENTRIES:
            raise RemoteProtocolError(f"metadata: more than {MAX_ENTRIES} entries")
        kind, key_bytes, value_bytes = _ENTRY.unpack_from(data, at)
        at += 4
        if at + key_bytes + value_bytes > total:
            raise RemoteProtocolError("metadata: an entry is cut off")
        raw = data[at : at + key_bytes]
        at += key_bytes
        try:
            key = raw.decode("ascii")
            if not key or not key.isprintable() or key != key.lower() or key in found:
                raise RemoteProtocolError(f"metadata: key {raw!r} is empty, repeated or not allowed")
            value = data[at : at + value_bytes]
            found[key] = value.decode() if kind == 0 else value
        except UnicodeDecodeError:
            raise RemoteProtocolError(f"metadata: entry {raw!r} is not text") from None
        if kind > 1:
            raise RemoteProtocolError(f"metadata: entry {key!r} of unknown kind {kind}")
        at += value_bytes
    return found
