"""The compiled and the interpreted cores are the same machine: equal answers to any calls."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from .cores import CORES, IS_COMPILED

pytestmark = pytest.mark.skipif(not IS_COMPILED, reason="built without compiled protocol cores")

TX = ("prod", "cons", "size", "mask", "shift", "blocked", "blocked_told")
RX = ("prod", "cons", "told", "size", "update_limit", "peer_blocked", "requested")
CDC = ("peer_token", "tx_seq", "rx_seq", "local_state", "peer_state", "request_update", "fault")
SEQ = ("seq", "acked", "wta", "rta", "sent_ack", "early", "owed", "window", "half")


def snapshot(owner: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(getattr(owner, name) for name in names)


def trace(play: Callable[[Any, random.Random], list[Any]], seed: int) -> None:
    compiled, interpreted = (play(CORES[name], random.Random(seed)) for name in ("compiled", "interpreted"))
    assert compiled == interpreted


def play_rings(core: Any, rng: random.Random) -> list[Any]:
    size = 1 << rng.randrange(12)
    tx, rx = core.cursor.TxWindow(size), core.cursor.RxWindow(size)
    out: list[Any] = []
    calls: list[Callable[[int, int], Any]] = [
        lambda n, w: tx.produce(n),
        lambda n, w: tx.peer_consumed(w, n),
        lambda n, w: tx.peer_consumed(rx.wrap(), rx.count()),
        lambda n, w: (tx.free(), tx.contiguous(), tx.mark_blocked()),
        lambda n, w: rx.consume(n),
        lambda n, w: rx.peer_produced(w, n),
        lambda n, w: rx.peer_produced(tx.wrap(), tx.count()),
        lambda n, w: (rx.contiguous(), rx.update_due(), rx.mark_told()),
    ]
    for _ in range(300):
        out.append(rng.choice(calls)(rng.randrange(size + 2), rng.randrange(4)))
        out.append((snapshot(tx, TX), snapshot(rx, RX)))
        out.append((tx.wrap(), tx.count(), rx.wrap(), rx.count(), rx.offset()))
    return out


def play_cdc(core: Any, rng: random.Random) -> list[Any]:
    size = 1 << rng.randrange(1, 10)
    ends = [
        core.cdc.CdcConnection(core.cursor.TxWindow(size), core.cursor.RxWindow(size), token)
        for token in (0xFFFFFFFF, 7)
    ]
    out: list[Any] = []
    for _ in range(200):
        a, b = rng.sample(ends, 2)
        a.tx.produce(rng.randrange(size + 1))
        a.rx.consume(rng.randrange(size + 1))
        if rng.random() < 0.02:
            out.append(a.set_local_state(rng.choice([0x80, 0x40, 0x20])))
        if rng.random() < 0.1:
            out.append(a.tx.mark_blocked())
        if rng.random() < 0.1:
            a.request_update = 1
        raw = bytearray(44)
        a.write(raw)
        if rng.random() < 0.05:
            raw[rng.randrange(44)] = rng.randrange(256)
        message = core.cdc.CdcMessage()
        parsed = message.parse(bytes(raw), len(raw))
        changed = b.receive(message) if parsed == 0 else None
        out.append((bytes(raw), parsed, message.encode(), changed, b.fault_text()))
        out.append([(snapshot(e, CDC), snapshot(e.tx, TX), snapshot(e.rx, RX)) for e in ends])
    return out


def play_seqack(core: Any, rng: random.Random) -> list[Any]:
    w = core.seqack.SeqAckWindow(1 << rng.randrange(7), rng.randrange(65536), rng.randrange(65536))
    out: list[Any] = []
    calls: list[Callable[[int, int], Any]] = [
        lambda imm, seq: w.send(),
        lambda imm, seq: (w.credit(), w.nop_due(), w.ack_owed()),
        lambda imm, seq: w.nop(),
        lambda imm, seq: w.receive(imm),
        lambda imm, seq: w.receive(rng.randrange(1 << 32)),
        lambda imm, seq: w.receive_nop(imm),
        lambda imm, seq: w.complete(seq),
        lambda imm, seq: w.complete_quiet(seq),
    ]
    for _ in range(600):
        imm = ((w.wta + 1) & 0xFFFF) << 16 | ((w.acked + rng.randrange(3)) & 0xFFFF)
        out.append((rng.choice(calls)(imm, (w.rta + rng.randrange(4)) & 0xFFFF), snapshot(w, SEQ)))
    return out


@pytest.mark.parametrize("play", [play_rings, play_cdc, play_seqack], ids=lambda f: f.__name__)
@pytest.mark.parametrize("seed", range(40))
def test_same_traces(play: Callable[[Any, random.Random], list[Any]], seed: int) -> None:
    trace(play, seed)
