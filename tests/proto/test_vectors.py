"""What older versions send is understood, and what they understand is sent: their bytes, recorded.

A change here is one of a wire format.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from aiordma.proto import clc, llc
from tests.proto import test_clc, test_llc
from tests.proto.vectors import FILE, messages

RECORDED: dict[str, dict[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("version", RECORDED)
def test_the_same_messages_have_the_same_bytes(version: str) -> None:
    ours = {name: data.hex() for name, data in messages().items()}
    assert {name: ours.get(name) for name in RECORDED[version]} == RECORDED[version]


@pytest.mark.parametrize(
    ("prefix", "decode", "expected"),
    [("clc", clc.decode, test_clc.MESSAGES), ("llc", llc.decode, test_llc.MESSAGES)],
)
@pytest.mark.parametrize("version", RECORDED)
def test_theirs_mean_what_ours_mean(version: str, prefix: str, decode: Any, expected: list[Any]) -> None:
    names = [name for name in RECORDED[version] if name.startswith(f"{prefix} ")]
    assert len(names) > 5
    for name in names:
        assert decode(bytes.fromhex(RECORDED[version][name])) == expected[int(name.split()[1])]
