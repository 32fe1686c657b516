"""Tests give the library's peers a long time, since on a busy machine a peer that works is late, too.

``tests/patient.py`` sees to those that set none of these times. Where a test sets a short one outside virtual
time, it is about a peer that is late, or its outcome is the same; the list may only get shorter.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from . import real_time
from .test_real_time import OTHER_ROOMS, TESTS

#: For each reason the files, and how often they set a short time.
ALLOWED: dict[str, dict[str, int]] = {
    "what it limits never comes, however long it takes": {
        "channels/test_pairings.py": 1,
        "datagrams/test_listener.py": 1,
        "datagrams/test_unreliable.py": 2,
        "links/failover/test_first_contact.py": 2,
        "links/failover/test_one_end.py": 1,
        "links/test_third_hosts.py": 3,
        "negotiation/test_hostile.py": 1,
        "negotiation/test_tls.py": 1,
        "system/adversity/test_half_open.py": 2,
        "system/adversity/test_hostile_handshake.py": 3,
        "system/adversity/test_stopped.py": 3,
    },
    "the peer is a plain one, and is that sooner or later": {
        "integrations/test_nats.py": 1,
        "integrations/test_websockets.py": 1,
        "negotiation/test_connectors.py": 1,
        "negotiation/test_pairings.py": 4,
        "negotiation/test_silent_peers.py": 3,
        "negotiation/test_tls.py": 3,
    },
    "a connection that fails is an outcome, too": {
        "faults/test_calls.py": 3,
        "faults/test_random.py": 2,
        "faults/test_streams.py": 2,
        "negotiation/test_hostile.py": 2,
        "system/adversity/test_descriptors.py": 1,
    },
    "the client is late, and the test waits until it is": {"links/pregranted/test_opening.py": 1},
    "its time is virtual: it makes the loop itself, or it is for tests that have a mark": {
        "links/test_unanswered.py": 1,
        "negotiation/test_arrival.py": 3,
    },
    "it has no peer": {"test_config.py": 1},
}


def found(tests: Path) -> dict[str, list[int]]:
    """Files with lines that set a short time, and these lines."""
    each = {path.relative_to(tests).as_posix(): path for path in sorted(tests.rglob("*.py"))}
    read = {name: real_time.short_times(path) for name, path in each.items()}
    return {name: lines for name, lines in read.items() if lines and name.split("/")[0] not in OTHER_ROOMS}


def test_no_other_peer_has_a_short_time() -> None:
    """Leave the time as it is, or put the test on ``tests/virtual.py``."""
    allowed = Counter[str]()
    for files in ALLOWED.values():
        allowed.update(files)
    lines = found(TESTS)
    more = {name: at for name, at in lines.items() if len(at) > allowed[name]}
    assert more == {}
    # One that is gone leaves the list.
    assert {name: number for name, number in allowed.items() if number > len(lines.get(name, ()))} == {}


@pytest.mark.parametrize(
    "planted",
    [
        "Config(head_start_ms=1)",
        "tuned(base, link_timeout_ms=300)",
        "engine.changed(negotiate_timeout_ms=round(700 * SLOWER))",
        "process(ECHO, server_first_wait_ms=29_999)",
        "engine.change_settings(failover_timeout_ms=_SHORT_MS)",
        "Config(**{'keepalive_timeout_ms': 10 * 20})",
    ],
)
def test_what_is_planted_is_found(tmp_path: Path, planted: str) -> None:
    (tmp_path / "pipes").mkdir()
    path = tmp_path / "pipes" / "test_ring.py"
    text = f"_SHORT_MS = 20\nasync def test():\n    {planted}\n"
    path.write_text(text, encoding="utf-8")
    assert found(tmp_path) == {"pipes/test_ring.py": [3]}
    path.write_text(text.replace("async", "@in_virtual_time\nasync"), encoding="utf-8")
    assert found(tmp_path) == {}


@pytest.mark.parametrize(
    "harmless",
    [
        "Config(head_start_ms=0)",
        "Config(negotiate_timeout_ms=30_000)",
        "Config(keepalive_ms=100)",
        "Config(link_timeout_ms=x)",
    ],
)
def test_what_is_long_or_nothing_is_not_found(tmp_path: Path, harmless: str) -> None:
    (tmp_path / "test_ring.py").write_text(harmless, encoding="utf-8")
    assert found(tmp_path) == {}
