"""CLC messages that are alike: the connections of one link differ in a ring, a token and a proof, and
Proposals to one server in a nonce. So most of such a message is written once, and read once (``clc``).

Positions are those of messages without first contact, and with one enterprise id. What is remembered of other
processes' messages is bounded, and no more than what :func:`clc.decode` has made of the same bytes.
"""

from __future__ import annotations

import struct
from typing import Any

from .clcframe import EYE_CATCHER

#: Of an Accept or Confirm: rkey, index, token, size and MTU, address of the ring; and the proof.
_RING = struct.Struct(">IBIBxQx")
_RING_AT = 41
_RING_END = _RING_AT + _RING.size
_PROOF_AT, _PROOF_END = 148, 164
#: Of a Proposal.
_NONCE_AT, _NONCE_END = 180, 196
#: Where a Proposal says where its parts are, and what says that they are where these positions have them.
_PARTS = (slice(38, 40), b"\0\0"), (slice(50, 52), b"\0\x1c"), (slice(80, 82), b"\x01\0")
_FIRST_CONTACT = 0x08
_SMALLEST_RING = 16 * 1024

#: What was read, by the bytes that messages have in common.
_read: dict[bytes, Any] = {}
_MOST = 64


def write_answer(
    like: bytes, proof: bytes, rkey: int, index: int, token: int, size_mtu: int, addr: int
) -> bytes:
    """An Accept or Confirm like that one. :raises struct.error: a number is too large."""
    ring = _RING.pack(rkey, index, token, size_mtu, addr)
    return like[:_RING_AT] + ring + like[_RING_END:_PROOF_AT] + proof + like[_PROOF_END:]


def write_proposal(like: bytes, nonce: bytes) -> bytes:
    """A Proposal like that one."""
    return like[:_NONCE_AT] + nonce + like[_NONCE_END:]


def _common(data: bytes) -> bytes | None:
    """What a message has in common with others; None: it is of another kind."""
    kind, size = data[4], len(data) - len(EYE_CATCHER)
    if kind == 1 and size >= _NONCE_END:
        return data[:_NONCE_AT] + data[_NONCE_END:]
    if kind in (2, 3) and size >= _PROOF_END and not data[7] & _FIRST_CONTACT:
        return data[:_RING_AT] + data[_RING_END:_PROOF_AT] + data[_PROOF_END:]
    return None


def recall(data: bytes) -> Any:
    """The message, by one that was alike; None: there was none, or it is not valid."""
    common = _common(data)
    found = None if common is None else _read.get(common)
    if found is None:
        return None
    if data[4] == 1:
        return found.alike(nonce=data[_NONCE_AT:_NONCE_END])
    rkey, index, token, size_mtu, addr = _RING.unpack_from(data, _RING_AT)
    if not index or not token or not 1 <= size_mtu & 15 <= 5:
        return None
    return found.alike(
        rkey=rkey,
        rmbe_index=index,
        token=token,
        mtu=size_mtu & 15,
        ring_bytes=_SMALLEST_RING << (size_mtu >> 4),
        rmb_addr=addr,
        proof=data[_PROOF_AT:_PROOF_END],
    )


def remember(data: bytes, message: Any) -> None:
    """These bytes were that message."""
    common = _common(data)
    if common is None or not getattr(message, "engine_id", b""):
        return
    if data[4] == 1 and any(data[at] != value for at, value in _PARTS):
        return
    if len(_read) >= _MOST:
        _read.clear()
    _read[common] = message
