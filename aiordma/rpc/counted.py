"""What a message would become is counted before it is decoded: its objects, and keys that may collide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..proto.objects import count_keys, count_objects
from .bulk import Bulk
from .errors import Code, RpcError

if TYPE_CHECKING:
    Payload = bytes | bytearray | memoryview | Bulk

#: Shorter messages are not looked at: each object has a byte or more, and settings allow more than so many.
UNCOUNTED_BYTES = 1000

_RAW, _BULK = 0, 3
#: What to do about too many keys, or why something counts as one, by ``also`` of ``count_keys()``.
_WHY = (
    ", those that are no strings; send them as a list of pairs, or as strings",
    "; its type has sets, so what lists hold is counted, but for strings",
    "; its type has keys that are made of strings, so those count, too",
    "; its type has sets, and keys that are made of strings: all that lists hold and all keys are counted",
)


def check_objects(encoding: int, payload: Payload, most: int, most_keys: int, also: int, where: str) -> int:
    """Refuse what would become too many objects, or too many keys with hashes that the peer chooses; returns
    how many objects it would become.

    :param also: what else are keys, by the type of the value (``proto/objects.py``).
    :param where: what it is, for error messages.
    :raises RpcError: ``RESOURCE_EXHAUSTED``, there are more than ``most``, or than ``most_keys``.
    """
    if encoding == _RAW:
        return 1
    if encoding == _BULK:
        try:
            payload = Bulk.of(payload).description
        except msgspec.DecodeError:
            return 1  # decoding it says what is wrong
    objects = count_objects(payload, most)  # type: ignore[arg-type]
    if objects > most:
        raise RpcError(
            Code.RESOURCE_EXHAUSTED,
            f"{where}: a message of more than {most} objects (setting max_message_objects); send bulk data "
            "as bytes or an array, or as a stream of smaller items",
        )
    if objects > most_keys and count_keys(payload, most_keys, also) > most_keys:  # type: ignore[arg-type]
        raise RpcError(
            Code.RESOURCE_EXHAUSTED,
            f"{where}: more than {most_keys} keys, or items of sets, that could be chosen to collide "
            f"(max_message_keys){_WHY[also]}",
        )
    return objects


def check_held(held: int, more: int, most: int, where: str) -> None:
    """:raises RpcError: ``RESOURCE_EXHAUSTED``, one client would have more than ``most`` objects."""
    if held + more > most:
        raise RpcError(
            Code.RESOURCE_EXHAUSTED,
            f"{where}: {more} objects, and calls in flight on this connection have {held} of {most} "
            "(max_connection_objects); make fewer such calls at a time",
        )
