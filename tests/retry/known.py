"""The tests that are known to be flaky (`tests/flaky.toml`), and what that says of one that was flaky now."""

from __future__ import annotations

import datetime
import tomllib
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).parents[1] / "flaky.toml"
#: A test may be flaky for so long: then its cause is found, or the test is red.
LONGEST = datetime.timedelta(days=14)


class ListError(Exception):
    """An entry of the list lacks something, or claims too much."""


@dataclass(frozen=True)
class Entry:
    """One test that is known to be flaky."""

    #: Its name as pytest prints it, without the brackets of its variant.
    test: str
    #: The commit at which it was first seen to be flaky.
    commit: str
    #: What is suspected.
    cause: str
    since: datetime.date
    expires: datetime.date


def _entry(values: dict[str, object]) -> Entry:
    for name in ("test", "commit", "cause"):
        value = values.get(name)
        if not isinstance(value, str) or not value.strip():
            raise ListError(f"{values.get('test')}: {name!r} must say something")
    for name in ("since", "expires"):
        if type(values.get(name)) is not datetime.date:
            raise ListError(f"{values['test']}: {name!r} must be a date, as in 2026-11-28")
    entry = Entry(**values)  # type: ignore[arg-type]
    if entry.expires - entry.since > LONGEST:
        raise ListError(f"{entry.test}: it expires more than {LONGEST.days} days after it was first seen")
    return entry


def read(path: Path = LIST) -> dict[str, Entry]:
    """The list, by the names of its tests.

    :raises ListError: an entry is not as :class:`Entry` says.
    """
    entries = [_entry(values) for values in tomllib.loads(path.read_text()).get("flaky", [])]
    return {entry.test: entry for entry in entries}


def objection(nodeid: str, known: dict[str, Entry], today: datetime.date) -> str | None:
    """Why a test that failed once and then passed makes the run red all the same; None if it does not."""
    entry = known.get(nodeid.partition("[")[0])
    if entry is None:
        return "it is not in tests/flaky.toml"
    if entry.expires < today:
        return f"its entry in tests/flaky.toml expired on {entry.expires}"
    return None
