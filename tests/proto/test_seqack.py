"""The message window: two ends, any order of completion, the wrap of the sequence; never RNR, never a
stall."""

import random
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest


def test_first_message(core: Any) -> None:
    w = core.seqack.SeqAckWindow(4)
    assert w.credit() == 4
    assert w.send() == 1 << 16
    assert [w.send() >> 16 for _ in range(3)] == [2, 3, 4]
    assert w.send() == -1
    assert w.credit() == 0
    assert w.receive_nop(3) == 3
    assert w.credit() == 3
    assert w.receive_nop(3) == 0


def test_a_message_that_was_foretold_is_the_next_one(core: Any) -> None:
    w = core.seqack.SeqAckWindow(4, 65535)
    assert w.foretell() == w.foretell() == w.send() == 0
    assert w.foretell() == 1 << 16
    assert w.receive(1 << 16) == 1
    assert w.complete(1) == 1
    assert w.foretell() == 1 << 16 | 1
    assert w.ack_owed() == 1
    assert w.send() == 1 << 16 | 1


@pytest.mark.parametrize("window", [0, -1, 3, 48, 32768])
def test_windows_that_are_refused(core: Any, window: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        core.seqack.SeqAckWindow(window)
    with pytest.raises(ValueError, match="sequences"):
        core.seqack.SeqAckWindow(4, 65536, 0)


def test_faults_of_the_peer(core: Any) -> None:
    bad_sequence, bad_ack, overrun = -1, -2, -3
    w = core.seqack.SeqAckWindow(2)
    assert w.receive(2 << 16) == bad_sequence
    assert w.receive(0) == bad_sequence
    assert w.receive(1 << 16) == 0
    assert w.receive(1 << 16) == bad_sequence
    assert w.receive(2 << 16) == 0
    assert w.receive(3 << 16) == overrun
    assert w.wta == 2
    w.complete(1)
    assert w.receive(3 << 16) == overrun  # finished, but the peer was not told
    w.nop()
    assert w.receive(3 << 16 | 1) == bad_ack
    assert w.receive(3 << 16 | 0xFFFF) == bad_ack
    assert w.receive(3 << 16) == 0
    w.send()
    assert w.receive_nop(2) == bad_ack
    assert w.receive_nop(1) == 1
    assert w.receive_nop(0) == bad_ack  # taken back
    assert "sequence" in w.fault_text(bad_sequence)
    assert len({w.fault_text(code) for code in (-1, -2, -3)}) == 3


def test_completion_in_any_order(core: Any) -> None:
    w = core.seqack.SeqAckWindow(8)
    for seq in range(1, 7):
        assert w.receive(seq << 16) == 0
    assert w.complete(3) == 0
    assert w.complete(2) == 0
    assert w.complete(3) == -1  # twice
    assert w.complete(7) == -1  # not received
    assert w.complete(0) == -1
    assert w.ack_owed() == 0
    assert w.complete(1) == 3
    assert w.ack_owed() == 1
    assert (w.rta, w.nop_due()) == (3, 0)
    assert w.complete(1) == -1
    assert w.complete(4) == 1
    assert w.nop_due() == 1
    assert w.nop() == 4
    assert (w.nop_due(), w.ack_owed()) == (0, 0)


def test_quiet_completions_start_no_timer_but_hide_no_loud_one(core: Any) -> None:
    w = core.seqack.SeqAckWindow(8)
    for seq in (1, 2, 3):
        w.receive(seq << 16)
    assert w.complete_quiet(1) == 1
    assert w.ack_owed() == 0
    assert w.complete(3) == 0
    w.send()  # tells 1; message 3 is finished, but behind a gap
    assert w.complete_quiet(2) == 2
    assert w.ack_owed() == 1


class End:
    """A link end on a receive queue that counts: an arrival without a posted receive is RNR."""

    def __init__(self, core: Any, rng: random.Random, window: int, start: int, peer_start: int) -> None:
        self.w = core.seqack.SeqAckWindow(window, start, peer_start)
        self.rng = rng
        self.posted = window + core.seqack.NOP_RESERVE
        self.wire: deque[tuple[str, int]] = deque()  # arrived in the receive queue, not yet polled
        self.open: list[tuple[int, bool]] = []
        self.sent = self.acked = self.received = self.nops = 0
        self.peer: End

    def _post(self, kind: str, imm: int) -> None:
        peer = self.peer
        assert peer.posted > 0, "RNR"
        peer.posted -= 1
        peer.wire.append((kind, imm))

    def send(self, kind: str = "data") -> bool:
        imm = self.w.send()
        if imm < 0:
            return False
        self.sent += 1
        self._post(kind, imm)
        return True

    def poll(self) -> None:
        if not self.wire:
            return
        kind, imm = self.wire.popleft()
        if kind == "nop":
            acked = self.w.receive_nop(imm)
            self.posted += 1
        else:
            acked = self.w.receive(imm)
            self.open.append((imm >> 16, kind == "ack"))
            self.received += kind == "data"
        assert acked >= 0, self.w.fault_text(acked)
        self.acked += acked

    def finish(self) -> None:
        if not self.open:
            return
        seq, quiet = self.open.pop(self.rng.randrange(len(self.open)))
        self.posted += 1
        assert (self.w.complete_quiet(seq) if quiet else self.w.complete(seq)) >= 0
        if self.w.nop_due():
            self._post("nop", self.w.nop())
            self.nops += 1

    def timer(self) -> None:
        if self.w.ack_owed():
            self.send("ack")

    def check(self) -> None:
        w, p = self.w, self.peer.w
        assert (w.seq - w.acked) & 0xFFFF <= w.window
        order = [w.acked, p.rta, p.wta, w.seq]
        gaps = [(y - x) & 0xFFFF for x, y in pairwise(order)]
        assert sum(gaps) <= w.window


@pytest.mark.parametrize("window", [1, 2, 4, 64])
@pytest.mark.parametrize("one_way", [False, True])
def test_two_ends(core: Any, window: int, one_way: bool) -> None:
    for seed in range(8):
        rng = random.Random(seed * 1000 + window)
        a = End(core, rng, window, 65536 - 50, 65536 - 20)
        b = End(core, rng, window, 65536 - 20, 65536 - 50)
        a.peer, b.peer = b, a
        senders = (a,) if one_way else (a, b)
        steps: list[Callable[[], object]] = [
            s for e in (a, b) for s in (e.poll, e.poll, e.finish, e.finish, e.timer)
        ]
        steps += [e.send for e in senders for _ in range(3)]
        for _ in range(3000):
            rng.choice(steps)()
            a.check()
            b.check()
        assert a.sent > 65536 % 100
        # Quiescence: no new messages; polls, completions and the ack timer alone must settle everything.
        for _ in range(20 * window + 200):
            for step in (a.poll, b.poll, a.finish, b.finish, a.timer, b.timer):
                step()
        assert not a.wire
        assert not b.wire
        assert (a.w.ack_owed(), b.w.ack_owed()) == (0, 0)
        assert a.w.credit() > 0
        assert b.w.credit() > 0
        assert a.received + b.received > 0


@pytest.mark.parametrize("window", [1, 2, 8, 64])
def test_slow_peer_cannot_be_overrun(core: Any, window: int) -> None:
    """The peer sends one message at a time, the ack timer fires after each, and it never polls."""
    rng = random.Random(1)
    a, b = End(core, rng, window, 0, 0), End(core, rng, window, 0, 0)
    a.peer, b.peer = b, a
    while a.send():
        b.poll()
        b.finish()
        b.timer()
    assert b.nops <= 2
    for _ in range(4 * window + 8):
        a.poll()
        a.finish()
    assert a.w.credit() > 0


def test_idle_ends_fall_silent(core: Any) -> None:
    rng = random.Random(2)
    a, b = End(core, rng, 8, 0, 0), End(core, rng, 8, 0, 0)
    a.peer, b.peer = b, a
    a.send()
    for _ in range(50):
        for e in (a, b):
            e.poll()
            e.finish()
            e.timer()
    assert a.acked == 1
    assert (a.sent, b.sent) == (1, 1)  # one message, one acknowledgement, and then nothing
    assert (a.nops, b.nops) == (0, 0)
