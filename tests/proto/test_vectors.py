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


def as_then(name: str) -> Any:
    """What ours means to who sent it before; the two have differed since."""
    kind, number = name.split()
    message = {"clc": test_clc.MESSAGES, "llc": test_llc.MESSAGES}[kind][int(number)]
    if isinstance(message, (clc.Accept, clc.Confirm)) and message.first_contact:
        return message.changed(direct=False)  # it was not said that no gateway lies between
    return message


@pytest.mark.parametrize("version", RECORDED)
def test_the_same_messages_have_the_same_bytes(version: str) -> None:
    ours = messages()
    for name, recorded in RECORDED[version].items():
        sent = ours[name]
        if name.startswith(("clc", "llc")):
            message = as_then(name)
            sent = message.encode()
            if isinstance(message, clc.Decline):  # it had 28 bytes in version 2, too
                sent = sent[:6] + b"\x1c" + sent[7:24] + sent[-4:]
        assert sent.hex() == recorded, name


@pytest.mark.parametrize(("prefix", "decode"), [("clc", clc.decode), ("llc", llc.decode)])
@pytest.mark.parametrize("version", RECORDED)
def test_theirs_mean_what_ours_mean(version: str, prefix: str, decode: Any) -> None:
    names = [name for name in RECORDED[version] if name.startswith(f"{prefix} ")]
    assert len(names) > 5
    for name in names:
        assert decode(bytes.fromhex(RECORDED[version][name])) == as_then(name)
