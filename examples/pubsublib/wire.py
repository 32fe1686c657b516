"""Messages of publish and subscribe. The first byte says what it is; lengths are checked, never trusted."""

from __future__ import annotations

import struct
from typing import NamedTuple

SUBSCRIBE, PUBLISH, MESSAGE, LOST, REFUSED = b"S", b"P", b"M", b"L", b"R"

MOST_TOPIC_BYTES = 255
_TOPIC = struct.Struct(">cB")
_COUNT = struct.Struct(">cQ")


class WireError(Exception):
    """The peer sent what no peer should send."""


class Message(NamedTuple):
    """Something about a topic: PUBLISH on its way to the broker, MESSAGE behind it."""

    topic: str
    payload: bytes


def subscribe(pattern: str) -> bytes:
    """:param pattern: a topic, or the beginning of topics followed by ``*``."""
    return SUBSCRIBE + _checked(pattern)


def publish(topic: str, payload: bytes) -> bytes:
    """Raises WireError for a topic that is empty, too long, or a pattern."""
    name = _checked(topic)
    if topic.endswith("*"):
        raise WireError(f"{topic!r} is a pattern: publish to a topic")
    return _TOPIC.pack(PUBLISH, len(name)) + name + payload


def relay(published: bytes) -> bytes:
    """The broker's message to subscribers, from the publisher's: only the first byte differs."""
    return MESSAGE + published[1:]


def lost(count: int) -> bytes:
    """So many messages found no room at this subscriber."""
    return _COUNT.pack(LOST, count)


def refused(reason: str) -> bytes:
    return REFUSED + reason.encode()


def read_pattern(data: bytes) -> str:
    return _text(data[1:])


def read_message(data: bytes) -> Message:
    if len(data) < _TOPIC.size:
        raise WireError(f"a message of {len(data)} bytes is too short for a topic")
    _, length = _TOPIC.unpack_from(data)
    end = _TOPIC.size + length
    if len(data) < end:
        raise WireError(f"a topic of {length} bytes in a message of {len(data)}")
    return Message(_text(data[_TOPIC.size : end]), data[end:])


def read_lost(data: bytes) -> int:
    if len(data) != _COUNT.size:
        raise WireError(f"a count of losses in {len(data)} bytes")
    count: int = _COUNT.unpack(data)[1]
    return count


def read_reason(data: bytes) -> str:
    return data[1:].decode(errors="replace")


def _checked(topic: str) -> bytes:
    name = topic.encode()
    if not 0 < len(name) <= MOST_TOPIC_BYTES:
        raise WireError(f"a topic has 1 to {MOST_TOPIC_BYTES} bytes, not {len(name)}")
    return name


def _text(data: bytes) -> str:
    if not 0 < len(data) <= MOST_TOPIC_BYTES:
        raise WireError(f"a topic has 1 to {MOST_TOPIC_BYTES} bytes, not {len(data)}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise WireError("a topic that is not UTF-8") from error
