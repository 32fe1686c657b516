"""Every operation between the software device and the kernel's rxe, asked for by either."""

from __future__ import annotations

from typing import Any

import pytest

from .ends import RXE, End, Side, connect

SUCCESS, LOC_LEN, REM_INV, REM_ACCESS, REM_OP, RETRY, RNR_RETRY = 0, 1, 9, 10, 11, 12, 13
ERR = 6  # state of a queue pair
MIB = 1 << 20
Pair = tuple[Side, Side]

# Empty, padded, just a packet, a little more, many packets.
SIZES = [0, 1, 7, 1023, 1024, 1025, 4096, 4097, 65536, 200_001]


@pytest.mark.parametrize("mtu", [1024, 4096], ids="mtu{}".format)
def test_send(pair: Pair) -> None:
    a, b = pair
    for size in SIZES:
        a.end.fill(0, size, size)
        b.end.clear(MIB, size + 8)
        b.receive(size, offset=MIB, length=size + 8)
        a.post("send", wr_id=size + 1, pieces=[(0, size)])
        got = b.completion()
        assert (got["wr_id"], got["status"], got["opcode"], got["length"]) == (size, SUCCESS, "recv", size)
        assert got["imm"] is None
        done = a.completion()
        assert (done["wr_id"], done["status"], done["opcode"]) == (size + 1, SUCCESS, "send")
        assert b.end.digest(MIB, size) == a.end.digest(0, size)
        assert b.end.number(MIB + size) == 0  # and not a byte more


def test_send_with_immediate(pair: Pair) -> None:
    a, b = pair
    for size in 0, 5, 1024, 9001:
        a.end.fill(0, size, size)
        b.receive(1, offset=MIB, length=16384)
        a.post("send_imm", pieces=[(0, size)], imm=0x11223344)
        got = b.completion()
        assert (got["status"], got["opcode"], got["length"], got["imm"]) == (
            SUCCESS,
            "recv",
            size,
            0x11223344,
        )
        assert a.completion()["status"] == SUCCESS
        assert b.end.digest(MIB, size) == a.end.digest(0, size)


def test_inline_and_pieces(pair: Pair) -> None:
    a, b = pair
    a.end.fill(0, 64, 2)
    b.receive(1, offset=MIB, length=64)
    b.receive(2, offset=MIB + 64, length=64)
    a.post("send", pieces=[(0, 13)], flags=["signaled", "inline", "solicited"])
    a.post("send", pieces=[(13, 7), (20, 30), (50, 14)])
    assert [got["length"] for got in b.completions(2)] == [13, 51]
    assert [done["status"] for done in a.completions(2)] == [SUCCESS, SUCCESS]
    assert b.end.digest(MIB, 13) == a.end.digest(0, 13)
    assert b.end.digest(MIB + 64, 51) == a.end.digest(13, 51)


@pytest.mark.parametrize("mtu", [1024, 4096], ids="mtu{}".format)
def test_write(pair: Pair) -> None:
    a, b = pair
    for size in SIZES:
        a.end.fill(0, size, size + 1)
        b.end.clear(2 * MIB, size + 16)
        a.post("write", pieces=[(0, size)], **a.remote(2 * MIB + 8))
        assert a.completion()["status"] == SUCCESS
        assert b.end.digest(2 * MIB + 8, size) == a.end.digest(0, size)
        assert b.end.number(2 * MIB) == b.end.number(2 * MIB + 8 + size) == 0


def test_write_with_immediate(pair: Pair) -> None:
    a, b = pair
    for size in 0, 16, 2050, 100_000:
        a.end.fill(0, size, size + 3)
        b.receive(9, offset=MIB, length=64)
        a.post("write_imm", pieces=[(0, size)], imm=0xDEADBEEF, **a.remote(2 * MIB))
        got = b.completion()
        assert (got["wr_id"], got["status"], got["opcode"]) == (9, SUCCESS, "recv_write_imm")
        assert (got["length"], got["imm"]) == (size, 0xDEADBEEF)
        assert a.completion()["status"] == SUCCESS
        assert b.end.digest(2 * MIB, size) == a.end.digest(0, size)


@pytest.mark.parametrize("mtu", [1024, 4096], ids="mtu{}".format)
def test_read(pair: Pair) -> None:
    a, b = pair
    for size in SIZES:
        b.end.fill(3 * MIB, size, size + 2)
        a.end.clear(0, size + 16)
        a.post("read", pieces=[(8, size)], **a.remote(3 * MIB))
        done = a.completion()
        assert (done["status"], done["opcode"]) == (SUCCESS, "read")
        assert a.end.digest(8, size) == b.end.digest(3 * MIB, size)
        assert a.end.number(0) == a.end.number(8 + size) == 0


def test_atomics(pair: Pair) -> None:
    a, b = pair
    b.end.number(MIB, 41)
    a.post("add", pieces=[(0, 8)], compare_add=2**63 + 7, **a.remote(MIB))
    assert a.completion()["opcode"] == "add"
    assert (a.end.number(0), b.end.number(MIB)) == (41, 2**63 + 48)
    a.post("swap", pieces=[(0, 8)], compare_add=2**63 + 48, swap=99, **a.remote(MIB))
    assert a.completion()["opcode"] == "swap"
    assert (a.end.number(0), b.end.number(MIB)) == (2**63 + 48, 99)
    a.post("swap", pieces=[(0, 8)], compare_add=5, swap=6, **a.remote(MIB))
    assert a.completion()["status"] == SUCCESS
    assert (a.end.number(0), b.end.number(MIB)) == (99, 99)  # it was not 5


def test_many_of_all_kinds(pair: Pair) -> None:
    """Posted at once: more READs and atomics than may be under way, SENDs and WRITEs among them, in order."""
    a, b = pair
    b.end.number(MIB, 0)
    b.end.fill(3 * MIB, 10_000, 5)
    a.end.fill(MIB, 5000, 6)
    b.receive(0, offset=4 * MIB, length=5000, count=16)
    expected = []
    for n in range(16):
        a.post("add", wr_id=n, pieces=[(8 * n, 8)], compare_add=1, **a.remote(MIB))
        a.post("read", wr_id=n, pieces=[(2 * MIB + 10_000 * n, 10_000)], **a.remote(3 * MIB))
        a.post("send", wr_id=n, pieces=[(MIB, 300 * n)])
        a.post("write", wr_id=n, pieces=[(MIB, 5000)], **a.remote(5 * MIB + 5000 * n))
        expected += [(n, SUCCESS, what) for what in ("add", "read", "send", "write")]
    done = [(wc["wr_id"], wc["status"], wc["opcode"]) for wc in a.completions(64)]
    assert done == expected
    assert [(wc["wr_id"], wc["length"]) for wc in b.completions(16)] == [(n, 300 * n) for n in range(16)]
    assert b.end.number(MIB) == 16
    for n in range(16):
        assert a.end.number(8 * n) == n
        assert a.end.digest(2 * MIB + 10_000 * n, 10_000) == b.end.digest(3 * MIB, 10_000)
        assert b.end.digest(4 * MIB + 5000 * n, 300 * n) == a.end.digest(MIB, 300 * n)
        assert b.end.digest(5 * MIB + 5000 * n, 5000) == a.end.digest(MIB, 5000)


@pytest.mark.parametrize("mtu", [256, 512, 2048], ids="mtu{}".format)
def test_other_path_mtus(pair: Pair) -> None:
    a, b = pair
    a.end.fill(0, 100_001, 8)
    a.post("write", pieces=[(0, 100_001)], **a.remote(2 * MIB))
    a.post("read", pieces=[(MIB, 100_001)], **a.remote(2 * MIB))
    assert [wc["status"] for wc in a.completions(2)] == [SUCCESS, SUCCESS]
    assert b.end.digest(2 * MIB, 100_001) == a.end.digest(0, 100_001) == a.end.digest(MIB, 100_001)


def test_sequence_numbers_wrap(ends: dict[str, End], asker: str, family: str) -> None:
    """In the middle of each kind of transfer."""
    other = "soft" if asker == "rxe" else "rxe"
    for what in ("send", "write", "read"):
        for before in (1, 33):
            a, b = connect(ends[asker], ends[other], family, psn=0x1000000 - before)
            try:
                a.end.fill(0, 100_000, before)
                b.end.fill(2 * MIB, 100_000, before + 1)
                if what == "send":
                    b.receive(1, offset=2 * MIB, length=100_000)
                a.post(what, pieces=[(0, 100_000)], **({} if what == "send" else a.remote(2 * MIB)))
                assert a.completion()["status"] == SUCCESS
                if what == "send":
                    assert b.completion()["length"] == 100_000
                assert a.end.digest(0, 100_000) == b.end.digest(2 * MIB, 100_000)
            finally:
                a.close()
                b.close()


def test_invalidate(pair: Pair) -> None:
    """SEND with invalidate takes a memory window's key away from the one who sent it."""
    a, b = pair
    b.receive(1, offset=0, length=4096)
    rkey = b.end.window(b.qpn, 2 * MIB, 4096)
    a.end.fill(0, 64, 4)
    a.post("write", pieces=[(0, 64)], raddr=a.peer_addr + 2 * MIB, rkey=rkey)
    assert a.completion()["status"] == SUCCESS
    assert b.end.digest(2 * MIB, 64) == a.end.digest(0, 64)
    a.post("send_inv", pieces=[(0, 4)], imm=rkey)
    assert a.completion()["status"] == SUCCESS
    got = b.completion()
    assert got["status"] == SUCCESS
    # rxe gives user programs the kernel's flag, which has another number there.
    assert got["invalidated"] or b.end.device == RXE
    a.post("write", pieces=[(0, 64)], raddr=a.peer_addr + 2 * MIB, rkey=rkey)
    assert a.completion()["status"] == REM_ACCESS


def test_receive_posted_late(pair: Pair) -> None:
    """The asker is told to wait, as often as it takes."""
    a, b = pair
    a.end.fill(0, 5000, 9)
    a.post("send", pieces=[(0, 5000)])
    assert a.end.poll(1, 0.2) == []
    b.receive(1, offset=MIB, length=5000)
    assert b.completion()["length"] == 5000
    assert a.completion()["status"] == SUCCESS
    assert b.end.digest(MIB, 5000) == a.end.digest(0, 5000)


def failing(ends: dict[str, End], asker: str, family: str, **settings: Any) -> Pair:
    other = "soft" if asker == "rxe" else "rxe"
    return connect(ends[asker], ends[other], family, **settings)


def test_no_receive_at_all(ends: dict[str, End], asker: str, family: str) -> None:
    a, b = failing(ends, asker, family, rnr_retry=2)
    a.post("send", pieces=[(0, 8)])
    assert a.completion()["status"] == RNR_RETRY
    assert a.end.state(a.qpn) == ERR
    for side in (a, b):
        side.close()


@pytest.mark.parametrize("what", ["write", "read", "add"])
def test_wrong_key(ends: dict[str, End], asker: str, family: str, what: str) -> None:
    a, b = failing(ends, asker, family)
    b.end.clear(2 * MIB, 8)
    a.post(what, wr_id=1, pieces=[(0, 8)], raddr=a.peer_addr + 2 * MIB, rkey=a.peer_rkey ^ 0xFF00)
    a.post("write", wr_id=2, pieces=[(0, 8)], **a.remote(2 * MIB))
    first, second = a.completions(2)
    assert (first["wr_id"], first["status"]) == (1, REM_ACCESS)
    assert (second["wr_id"], second["status"]) == (2, 5)  # flushed
    assert b.end.number(2 * MIB) == 0
    assert a.end.state(a.qpn) == ERR
    for side in (a, b):
        side.close()


def test_receive_too_small(ends: dict[str, End], asker: str, family: str) -> None:
    a, b = failing(ends, asker, family)
    b.receive(1, offset=MIB, length=4)
    b.end.clear(MIB, 16)
    a.post("send", pieces=[(0, 9)])
    # rxe says "operation failed" where the standard has "invalid request".
    assert a.completion()["status"] in (REM_INV, REM_OP)
    assert b.completion()["status"] != SUCCESS
    assert b.end.number(MIB + 4) == 0
    for side in (a, b):
        side.close()


def test_nobody_answers(ends: dict[str, End], asker: str, family: str) -> None:
    """The other queue pair is gone: the asker gives up."""
    a, b = failing(ends, asker, family, timeout=10, retry=3)
    b.close()
    a.post("write", pieces=[(0, 8)], **a.remote(0))
    assert a.completion()["status"] == RETRY
    a.close()


def test_unreliable_connection(ends: dict[str, End], asker: str, family: str) -> None:
    """UC: SEND and WRITE, with and without immediate; nothing is acknowledged, and here nothing is lost."""
    other = "soft" if asker == "rxe" else "rxe"
    a, b = connect(ends[asker], ends[other], family, kind="uc")
    for size in 0, 1, 1024, 1025, 65536:
        a.end.fill(0, size, size + 5)
        b.end.clear(MIB, 2 * MIB)
        b.receive(7, offset=MIB, length=size + 8)
        b.receive(8, offset=0, length=64)
        a.post("send", pieces=[(0, size)])
        a.post("write_imm", pieces=[(0, size)], imm=size, **a.remote(2 * MIB))
        sent, written = b.completions(2)
        assert (sent["wr_id"], sent["status"], sent["opcode"], sent["length"]) == (7, SUCCESS, "recv", size)
        assert (written["wr_id"], written["opcode"], written["imm"]) == (8, "recv_write_imm", size)
        assert [done["status"] for done in a.completions(2)] == [SUCCESS, SUCCESS]
        assert b.end.digest(MIB, size) == b.end.digest(2 * MIB, size) == a.end.digest(0, size)
    for side in (a, b):
        side.close()


@pytest.mark.parametrize("size", [0, 1, 1000, 1024])
def test_datagrams(ends: dict[str, End], asker: str, family: str, size: int) -> None:
    other = "soft" if asker == "rxe" else "rxe"
    a, b = connect(ends[asker], ends[other], family, kind="ud")
    a.end.fill(0, size, 7)
    b.receive(3, offset=MIB, length=2048, count=2)
    to = [a.gid, b.gid, b.qpn]
    a.post("send", pieces=[(0, size)], to=to)
    a.post("send_imm", pieces=[(0, size)], imm=77, to=to)
    assert [wc["status"] for wc in a.completions(2)] == [SUCCESS, SUCCESS]
    for n, got in enumerate(b.completions(2)):
        assert (got["wr_id"], got["status"], got["length"], got["src"]) == (3 + n, SUCCESS, size + 40, a.qpn)
        assert got["imm"] == (77 if n else None)
        assert b.end.digest(MIB + 2048 * n + 40, size) == a.end.digest(0, size)
    for side in (a, b):
        side.close()


def test_checksums_were_right(ends: dict[str, End]) -> None:
    """Last in this file: nothing that came was refused for how it looked."""
    counters = ends["soft"].counters()
    assert counters["received"] > 0
    assert {name: counters[name] for name in ("malformed", "bad_icrc", "wrong_peer", "send_failed")} == {
        "malformed": 0, "bad_icrc": 0, "wrong_peer": 0, "send_failed": 0,
    }  # fmt: skip
