"""CDC: the format, the state of a connection, and two ends that never hang."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .cores import CORES

FIELDS = ("seq", "token", "prod_wrap", "prod_count", "cons_wrap", "cons_count", "prod_flags", "state_flags")

# Messages of a Linux 6.12 kernel (SMC-Rv2 over rxe): first data, answer with data, both sides' close.
KERNEL = [
    ("fe2c000100000001" + "0000000000001000" + "00" * 28, (1, 1, 0, 4096, 0, 0, 0, 0)),
    ("fe2c000100000002" + "0000000000001000" * 2 + "00" * 20, (1, 2, 0, 4096, 0, 4096, 0, 0)),
    ("fe2c000200000001" + "0000000000001000" * 2 + "0040" + "00" * 18, (2, 1, 0, 4096, 0, 4096, 0, 0x40)),
]


def fields(m: Any) -> tuple[int, ...]:
    return tuple(getattr(m, name) for name in FIELDS)


@pytest.mark.parametrize("end", [0x80, 0x40])
def test_nothing_behind_the_end_is_to_be_read(core: Any, end: int) -> None:
    """A peer that goes on after it has finished, or closed, has broken the protocol."""
    cdc, cursor = core.cdc, core.cursor
    connection = cdc.CdcConnection(cursor.TxWindow(65536), cursor.RxWindow(65536), 1)
    message = cdc.CdcMessage()
    message.seq, message.prod_count, message.state_flags = 1, 10, end
    assert connection.receive(message) & cdc.Change.DATA
    message.seq, message.prod_count = 2, 20
    assert connection.receive(message) == cdc.Change.INVALID
    assert connection.rx.available() == 10


@pytest.mark.parametrize(("text", "values"), KERNEL)
def test_kernel_messages(core: Any, text: str, values: tuple[int, ...]) -> None:
    data = bytes.fromhex(text)
    message = core.cdc.CdcMessage.decode(data)
    assert fields(message) == values
    assert message.encode() == data


def test_a_connection_to_a_kernel_without_the_check_word(core: Any) -> None:
    """A user-space client that Linux 6.12 understood: 12 bytes, their echo, and both sides' close."""
    cdc, cursor = core.cdc, core.cursor
    connection = cdc.CdcConnection(cursor.TxWindow(65536), cursor.RxWindow(65536), 1)
    connection.checked = 0
    out = bytearray(44)
    connection.tx.produce(12)
    connection.write(out)
    assert out == bytes.fromhex("fe2c000100000001" + "000000000000000c" + "00" * 28)
    echo = bytes.fromhex("fe2c00010057fccc" + "000000000000000c" * 2 + "00" * 20)
    assert connection.receive(cdc.CdcMessage.decode(echo)) == cdc.Change.DATA | cdc.Change.CREDIT
    connection.rx.consume(12)
    connection.set_local_state(cdc.StateFlag.CLOSED)
    connection.write(out)
    assert out == bytes.fromhex("fe2c000200000001" + "000000000000000c" * 2 + "0040" + "00" * 18)
    seen = []
    for number, state in (2, 0x80), (3, 0xC0):
        close = bytes.fromhex(
            f"fe2c{number:04x}0057fccc" + "000000000000000c" * 2 + f"00{state:02x}" + "00" * 18
        )
        seen.append(cdc.Change(connection.receive(cdc.CdcMessage.decode(close))))
    assert seen == [cdc.Change.PEER_DONE, cdc.Change.PEER_CLOSED]
    assert connection.fault == 0
    connection.checked = 1
    connection.write(out)
    assert out[40:] != bytes(4)


@given(
    st.tuples(
        st.integers(0, 0xFFFF),
        st.integers(0, 0xFFFFFFFF),
        st.integers(0, 0xFFFF),
        st.integers(0, 0xFFFFFFFF),
        st.integers(0, 0xFFFF),
        st.integers(0, 0xFFFFFFFF),
        st.integers(0, 255),
        st.integers(0, 255),
    )
)
def test_roundtrip(values: tuple[int, ...]) -> None:
    for core in CORES.values():
        message = core.cdc.CdcMessage()
        names = (
            "seq",
            "token",
            "prod_wrap",
            "prod_count",
            "cons_wrap",
            "cons_count",
            "prod_flags",
            "state_flags",
        )
        for name, value in zip(names, values, strict=True):
            setattr(message, name, value)
        data = message.encode()
        assert len(data) == 44
        assert fields(core.cdc.CdcMessage.decode(data)) == values


@given(st.data())
def test_a_wrong_bit_is_found(data: st.DataObject) -> None:
    """In any field; what is still reserved means nothing to anybody."""
    ring = 1 << data.draw(st.integers(6, 20))
    token, produced = data.draw(st.integers(0, 0xFFFFFFFF)), data.draw(st.integers(0, ring))
    state = data.draw(st.sampled_from([0, 0x80, 0x40, 0x20]))
    bit = data.draw(st.integers(0, 44 * 8 - 1))
    for core in CORES.values():
        source = end(core, ring, token)
        source.tx.produce(produced)
        source.set_local_state(state)
        out = bytearray(44)
        source.write(out)
        sound = fields(core.cdc.CdcMessage.decode(bytes(out)))
        out[bit // 8] ^= 1 << bit % 8
        message = core.cdc.CdcMessage()
        if 28 <= bit // 8 < 40:
            assert message.parse(bytes(out), 44) == 0
            assert fields(message) == sound
        else:
            assert message.parse(bytes(out), 44) == -1


@given(st.binary(max_size=60))
def test_fuzz_random_bytes(data: bytes) -> None:
    for core in CORES.values():
        try:
            core.cdc.CdcMessage.decode(data)
        except Exception as exc:
            assert type(exc).__name__ == "RemoteProtocolError"  # noqa: PT017


@pytest.mark.parametrize("data", [b"", b"\xfe", bytes(44), b"\xfe\x2b" + bytes(42), b"\xfe\x2c" + bytes(43)])
def test_other_bytes_are_no_message(core: Any, data: bytes) -> None:
    message = core.cdc.CdcMessage()
    message.seq = 7
    assert message.parse(data, len(data)) == -1
    assert message.seq == 7


def end(core: Any, size: int = 64, token: int = 5) -> Any:
    return core.cdc.CdcConnection(core.cursor.TxWindow(size), core.cursor.RxWindow(size), token)


def tell(source: Any, target: Any, core: Any, **changes: int) -> int:
    """The message that ``source`` would send, with forged fields, delivered to ``target``."""
    out = bytearray(44)
    source.write(out)
    message = core.cdc.CdcMessage.decode(out)
    for name, value in changes.items():
        setattr(message, name, value)
    return int(target.receive(message))


def test_changes(core: Any) -> None:
    change = core.cdc.Change
    a, b = end(core), end(core, token=9)
    a.tx.produce(10)
    assert tell(a, b, core) == change.DATA
    b.rx.consume(10)
    assert tell(b, a, core) == change.CREDIT
    assert tell(b, a, core) == 0
    assert a.tx.free() == 64
    a.request_update = 1
    assert tell(a, b, core) == change.UPDATE_DUE
    assert tell(a, b, core) == change.UPDATE_DUE  # until it is answered
    tell(b, a, core)
    assert tell(a, b, core) == 0
    assert a.set_local_state(core.cdc.StateFlag.SENDING_DONE) == 1
    assert a.set_local_state(core.cdc.StateFlag.SENDING_DONE) == 0
    a.tx.produce(1)
    assert tell(a, b, core) == change.DATA | change.PEER_DONE
    assert tell(a, b, core) == 0
    assert a.set_local_state(core.cdc.StateFlag.CLOSED) == 1
    assert tell(a, b, core) == change.PEER_CLOSED
    b.set_local_state(core.cdc.StateFlag.CLOSED)
    assert tell(b, a, core) == change.PEER_DONE | change.PEER_CLOSED
    b.set_local_state(core.cdc.StateFlag.ABNORMAL_CLOSE)
    assert tell(b, a, core) == change.PEER_ABORTED
    assert tell(b, a, core) == change.STALE
    assert tell(a, b, core, prod_flags=core.cdc.ProdFlag.FAILOVER_VALIDATION) == change.FAILOVER


def test_a_message_that_was_foretold_is_the_next_one_and_counts_as_none(core: Any) -> None:
    a, b = end(core), end(core, token=9)
    a.tx.produce(30)
    tell(a, b, core)
    b.rx.consume(30)
    b.tx.produce(64)
    assert b.tx.mark_blocked() == 0
    b.request_update = 1
    assert b.rx.told == 0
    foretold = bytearray(44), bytearray(44)
    for out in foretold:
        b.foretell(out)
    assert (b.rx.told, b.tx.blocked_told, b.request_update) == (0, 0, 1)
    written = bytearray(44)
    b.write(written)
    assert foretold[0] == foretold[1] == written
    again = bytearray(44)
    b.write(again)
    assert again != written


def test_write_blocked_reaches_the_peer_and_is_reconsidered(core: Any) -> None:
    change = core.cdc.Change
    a, b = end(core), end(core)
    a.tx.produce(30)
    assert tell(a, b, core) == change.DATA
    b.rx.consume(30)
    assert b.rx.update_due() == 0  # enough room is left, as far as the reader can see
    assert a.tx.mark_blocked() == 1  # but the writer wants all of the ring at once
    assert tell(a, b, core) == change.UPDATE_DUE
    assert a.tx.mark_blocked() == 0  # told
    assert tell(b, a, core) == change.CREDIT
    assert a.tx.blocked == 0


def test_all_that_is_read_is_told_to_a_writer_of_an_urgent_byte(core: Any) -> None:
    """Linux sends nothing behind one before that, also when its other messages say nothing of it."""
    change, flag = core.cdc.Change, core.cdc.ProdFlag
    a, b = end(core), end(core)
    a.tx.produce(3)
    assert tell(a, b, core, prod_flags=flag.URGENT_PENDING) == change.DATA
    a.tx.produce(1)
    assert tell(a, b, core, prod_flags=flag.URGENT_PENDING | flag.URGENT_PRESENT) == change.DATA
    assert tell(a, b, core) == 0
    b.rx.consume(3)
    assert b.rx.update_due() == 0
    assert tell(b, a, core) == change.CREDIT
    b.rx.consume(1)
    assert b.rx.update_due() == 1
    assert tell(b, a, core) == change.CREDIT
    a.tx.produce(3)
    assert tell(a, b, core) == change.DATA
    b.rx.consume(3)
    assert b.rx.update_due() == 0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"prod_count": 64}, "producer cursor"),
        ({"prod_count": 9}, "producer cursor"),
        ({"prod_wrap": 2}, "producer cursor"),
        ({"prod_wrap": 1, "prod_count": 11}, "producer cursor"),
        ({"prod_wrap": 0xFFFF}, "producer cursor"),
        ({"cons_count": 21}, "consumer cursor"),
        ({"cons_count": 4}, "consumer cursor"),
        ({"cons_wrap": 1, "cons_count": 5}, "consumer cursor"),
        ({"cons_count": 0xFFFFFFFF}, "consumer cursor"),
    ],
)
def test_forged_cursors_break_the_connection(core: Any, changes: dict[str, int], word: str) -> None:
    change = core.cdc.Change
    a, b = end(core), end(core)
    b.tx.produce(20)
    tell(b, a, core)
    a.rx.consume(5)
    a.tx.produce(10)
    assert tell(a, b, core) == change.DATA | change.CREDIT
    assert tell(a, b, core, **changes) == change.INVALID
    assert word in b.fault_text()
    assert tell(a, b, core) == change.STALE
    assert 0 <= b.rx.available() <= 64
    assert 0 <= b.tx.free() <= 64


def test_data_after_the_end_breaks_the_connection(core: Any) -> None:
    a, b = end(core), end(core)
    a.set_local_state(core.cdc.StateFlag.SENDING_DONE)
    tell(a, b, core)
    a.tx.produce(1)
    assert tell(a, b, core) == core.cdc.Change.INVALID
    assert "no more" in b.fault_text()


@pytest.mark.parametrize("step", [0, -1, -100, 0x8000, 0x9000])
def test_old_sequences_are_dropped(core: Any, step: int) -> None:
    a, b = end(core), end(core)
    for _ in range(3):
        assert tell(a, b, core) == 0
    a.tx.produce(1)
    assert tell(a, b, core, seq=(3 + step) & 0xFFFF) == core.cdc.Change.STALE
    assert b.rx.available() == 0
    assert tell(a, b, core, seq=3 + 0x7FFF) == core.cdc.Change.DATA


def test_sequence_wraps(core: Any) -> None:
    a, b = end(core), end(core)
    for _ in range(65536 + 10):
        assert tell(a, b, core) == 0
    assert a.tx_seq == b.rx_seq == 10


class Half:
    """One program on one end: writes everything it has, reads what it likes, by the rules of the data
    path."""

    def __init__(self, core: Any, rng: random.Random, size: int, data: bytes, least: int) -> None:
        self.core, self.rng = core, rng
        self.cdc = end(core, size)
        self.ring = bytearray(size)  # ours, written by the peer
        self.to_send, self.sent, self.least = data, 0, least
        self.got = bytearray()
        self.cdc_pending = False
        self.peer: Half
        self.inbox: list[bytes] = []

    def write(self) -> None:
        tx = self.cdc.tx
        left = len(self.to_send) - self.sent
        if not left:
            return
        # Some writers want a whole record to fit (datagrams), streams take any room.
        if tx.free() < min(self.least, left):
            self.cdc_pending |= bool(tx.mark_blocked())
            return
        left = min(left, tx.free(), self.rng.randint(1, tx.size))
        while left:
            n = min(left, tx.contiguous())
            at = tx.offset()
            self.peer.ring[at : at + n] = self.to_send[self.sent : self.sent + n]
            assert tx.produce(n) == 0
            self.sent += n
            left -= n
        self.cdc_pending = True

    def read(self) -> None:
        rx = self.cdc.rx
        if not rx.available():
            return
        n = min(rx.contiguous(), self.rng.randint(1, rx.size))
        self.got += self.ring[rx.offset() : rx.offset() + n]
        assert rx.consume(n) == 0
        self.cdc_pending |= bool(rx.update_due())

    def post(self) -> None:
        if self.cdc_pending:
            out = bytearray(44)
            self.cdc.write(out)
            self.peer.inbox.append(bytes(out))
            self.cdc_pending = False

    def deliver(self) -> None:
        if self.inbox:
            changed = self.cdc.receive(self.core.cdc.CdcMessage.decode(self.inbox.pop(0)))
            assert not changed & (
                self.core.cdc.CHANGE_INVALID if hasattr(self.core.cdc, "CHANGE_INVALID") else 0x80
            )
            self.cdc_pending |= bool(changed & 0x04)


def state(half: Half) -> tuple[int, ...]:
    return half.sent, len(half.got), len(half.inbox), half.cdc_pending, half.cdc.rx_seq, half.cdc.tx_seq


@pytest.mark.parametrize("size", [1, 2, 16, 64])
@pytest.mark.parametrize("whole_ring", [False, True])
def test_two_ends_never_hang(core: Any, size: int, whole_ring: bool) -> None:
    """Whatever the interleaving, when nothing is left to do, everything has arrived. No timer helps."""
    for seed in range(25):
        rng = random.Random(seed)
        least = size if whole_ring else 1
        a = Half(core, rng, size, rng.randbytes(rng.randint(0, 6 * size)), least)
        b = Half(core, rng, size, rng.randbytes(rng.randint(0, 6 * size)), least)
        a.peer, b.peer = b, a
        steps = [step for half in (a, b) for step in (half.write, half.read, half.post, half.deliver)]
        for _ in range(rng.randint(0, 200)):
            rng.choice(steps)()
        for _ in range(60 * (6 * size + 10)):
            before = state(a), state(b)
            for step in rng.sample(steps, len(steps)):
                step()
            if before == (state(a), state(b)):
                break
        assert bytes(b.got) == a.to_send
        assert bytes(a.got) == b.to_send


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 0xFFFF),
            st.integers(0, 80),
            st.integers(0, 3),
            st.integers(0, 80),
            st.integers(0, 255),
            st.integers(0, 255),
            st.integers(0, 64),
        ),
        max_size=30,
    )
)
def test_fuzz_a_hostile_peer(messages: list[tuple[int, ...]]) -> None:
    """Any messages, while we write and read as we may: our view of both rings stays possible."""
    for core in CORES.values():
        ours = end(core)
        for wrap, seq, prod, cons_wrap, cons, prod_flags, state_flags, n in messages:
            ours.tx.produce(min(n, ours.tx.free()))
            ours.rx.consume(min(n, ours.rx.available()))
            message = core.cdc.CdcMessage()
            message.seq = (ours.rx_seq + 1) & 0xFFFF if seq % 4 else seq
            message.prod_wrap, message.prod_count = wrap, prod
            message.cons_wrap, message.cons_count = cons_wrap, cons
            message.prod_flags, message.state_flags = prod_flags, state_flags if seq % 8 == 1 else 0
            before = ours.rx.available(), ours.tx.free()
            changed = ours.receive(message)
            if changed & core.cdc.Change.STALE:
                assert (ours.rx.available(), ours.tx.free()) == before
            assert bool(changed & core.cdc.Change.DATA) == (ours.rx.available() > before[0])
            assert 0 <= ours.rx.contiguous() <= ours.rx.available() <= 64
            assert 0 <= ours.tx.contiguous() <= ours.tx.free() <= 64
            assert ours.rx.offset() < 64
            assert ours.tx.offset() < 64
