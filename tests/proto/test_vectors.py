"""What older versions send is understood, and what they understand is sent: their bytes, recorded.

A change here is one of a wire format.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from aiordma.errors import RemoteProtocolError
from aiordma.proto import clc, llc
from tests.proto import test_clc, test_llc
from tests.proto.vectors import FILE, messages

RECORDED: dict[str, dict[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))

#: Ring Resize about a buffer of the receiver's user: sent only to ends that say so in Confirm Link.
ENDED = ("llc 22", "llc 23")


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
        if name in ENDED:
            continue
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
    names = [name for name in RECORDED[version] if name.startswith(f"{prefix} ") and name not in ENDED]
    assert len(names) > 5
    for name in names:
        assert decode(bytes.fromhex(RECORDED[version][name])) == as_then(name)


@pytest.mark.parametrize("name", ENDED)
@pytest.mark.parametrize("version", RECORDED)
def test_what_is_not_known_any_more_is_refused(version: str, name: str) -> None:
    with pytest.raises(RemoteProtocolError, match="Ring Resize"):
        llc.decode(bytes.fromhex(RECORDED[version][name]))


def test_no_end_says_that_it_knows_what_has_ended() -> None:
    """Older versions ask only ends that set the byte behind the maximum of connections."""
    assert llc.ConfirmLink(gid=bytes(16), qpn=1, link_uid=1).encode()[36] == 0
    said = bytearray(llc.ConfirmLink(gid=bytes(16), qpn=1, link_uid=1).encode())
    said[36] = 1
    assert llc.decode(bytes(said)) == llc.ConfirmLink(gid=bytes(16), qpn=1, link_uid=1)
