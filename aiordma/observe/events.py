"""The last events of links, devices and paths in this process, with their times, for tools.

What repeats within a few seconds is one event with a count: thousands of streams may leave a link that fails.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

#: How many are kept, characters of each, and seconds within which the same is the same event.
_KEPT, _CHARACTERS, _TOGETHER_S = 256, 300, 10.0


@dataclass(slots=True)
class Happened:
    """An event, perhaps several times in a row."""

    kind: str
    text: str
    #: seconds since the epoch: the first time, and the last one
    first_at: float
    last_at: float
    count: int = 1


_events: dict[tuple[str, str], Happened] = {}
#: Those that have happened again since.
_older: list[Happened] = []


def note(kind: str, text: str) -> None:
    """Something has happened. In any thread; not on the data path.

    :param kind: two or three words, such as ``link lost``.
    """
    if len(text) > _CHARACTERS:
        text = text[: _CHARACTERS - 3] + "..."
    now, key = time.time(), (kind, text)
    known = _events.pop(key, None)
    if known is not None and 0 <= now - known.last_at < _TOGETHER_S:
        known.last_at, known.count = now, known.count + 1
        _events[key] = known
        return
    if known is not None:
        _older.append(known)
    _events[key] = Happened(*key, now, now)
    if len(_events) + len(_older) > _KEPT:
        _forget()


def _forget() -> None:
    kept = recent()[-_KEPT // 2 :]
    _events.clear()
    _older.clear()
    for each in kept:
        earlier = _events.get((each.kind, each.text))
        if earlier is not None:
            _older.append(earlier)
        _events[each.kind, each.text] = each


def recent() -> list[Happened]:
    """Those that are kept, the one that happened last at the end."""
    return sorted([*_older, *list(_events.values())], key=lambda each: each.last_at)
