"""Captures: bounded, in any thread, without payload unless that is asked for, and whole negotiations only."""

from __future__ import annotations

import pytest

from aiordma.observe import capture
from aiordma.observe.capture import Capture
from aiordma.proto.filter import Direction, Op

ENDS = ("192.0.2.1", 40000), ("192.0.2.2", 7000)


class _Gid:
    raw = bytes(10) + b"\xff\xff\xc0\x00\x02\x01"


class _Link:
    """What a capture asks of a link."""

    class engine:
        class backend:
            gid = _Gid

    peer = "192.0.2.2:7000"
    peer_qpn, qp_num = 17, 18


def show(to: Capture, op: Op, data: bytes, size: int | None = None) -> bytes:
    to.on_link(_Link, Direction.OUT, op, data, len(data) if size is None else size, None, 0)
    return to.packets()[-1].data


@pytest.mark.parametrize("payload", [False, True])
def test_payload_is_left_out_unless_asked_for(payload: bool) -> None:
    it = Capture(payload=payload)
    secret = b"the secret of a user, which is long enough to be seen"
    assert (secret in show(it, Op.WRITE, secret)) == payload
    assert (secret in show(it, Op.MESSAGE, b"\xc0" + bytes(11) + secret)) == payload
    assert (secret in show(it, Op.MESSAGE, b"\xc2" + bytes(27) + secret)) == payload
    control = b"\xfe" + bytes(range(43))
    assert control in show(it, Op.CDC, control)
    # What is left out is still counted.
    packet = it.packets()[0]
    assert packet.length - len(packet.data) == (0 if payload else len(secret))


def test_old_messages_go() -> None:
    it = Capture(kept_bytes=10_000)
    for number in range(1000):
        show(it, Op.CDC, b"\xfe" + number.to_bytes(43))
    kept = it.packets()
    assert it.seen == 1000
    assert 10 < len(kept) < 100
    assert sum(len(packet.data) for packet in kept) < 10_000
    assert (999).to_bytes(43) in kept[-1].data
    assert it.told.startswith(
        f"1000 messages were seen: the first {1000 - len(kept)} of them did not fit into "
    )


def test_what_has_room_is_whole() -> None:
    it = Capture(kept_bytes=10_000)
    for number in range(10):
        show(it, Op.CDC, b"\xfe" + number.to_bytes(43))
    assert it.told == "10 messages were seen"


def test_negotiations_are_kept_whole_and_without_keys() -> None:
    it = Capture()
    accept = b"\xe2\xd4\xc3\xd9\x02" + (80).to_bytes(2) + b"\x20" + bytes(range(8, 80))
    for part in (accept[:3], accept[3:45], accept[45:]):
        it.on_clc(*ENDS, part, outbound=False)
    it.on_clc(*ENDS, accept, outbound=True)
    first, second = it.packets()
    assert (first.outbound, second.outbound) == (False, True)
    for packet in (first, second):
        assert accept[41:45] not in packet.data
        assert accept[:41] in packet.data
    # Bytes that are no message are neither waited for nor kept for ever.
    it.on_clc(*ENDS, b"GET / HTTP/1.1\r\n", outbound=False)
    assert len(it.packets()) <= 3


def test_bounds() -> None:
    assert capture.running() is None
    for wrong in (0, 4095, (64 << 20) + 1):
        with pytest.raises(ValueError, match="a capture keeps from 4096 to"):
            capture.start(wrong)
    assert capture.running() is None
    capture.on_clc(*ENDS, b"nothing looks", outbound=True)
