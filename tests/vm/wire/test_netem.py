"""The software device and the kernel's rxe over a cable that loses, repeats, reorders and delays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from .ends import NAMESPACE, End, Side, connect, netem, run

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
ROUNDS = 24
# Loss of one packet in a hundred, as asked; the others often enough that each run has dozens.
HARM = {
    "loss": ["loss", "1%"],
    "duplicates": ["duplicate", "5%"],
    "order": ["delay", "1ms", "reorder", "95%"],
    "delay": ["delay", "2ms"],
    "all": ["delay", "1ms", "reorder", "97%", "loss", "1%", "duplicate", "2%"],
}


@pytest.fixture(params=HARM)
def harm(cable: None, request: pytest.FixtureRequest) -> Iterator[str]:
    """What happens to packets in both directions."""
    with netem(*HARM[request.param]):
        yield str(request.param)


def dropped() -> int:
    return sum(
        int(qdisc["drops"])
        for command in (["tc"], ["tc", "-n", NAMESPACE])
        for qdisc in json.loads(run(*command, "-s", "-j", "qdisc", "show", "dev", "cable"))
    )


@pytest.fixture
def fetching(
    ends: dict[str, End], asker: str, family: str, pair: tuple[Side, Side]
) -> Iterator[tuple[Side, Side]]:
    """The connection that READs and atomics go by.

    An acknowledgement that is overtaken by the answers to a READ makes rxe (6.12) lose its place in them: the
    READ ends as if it were complete, and the queue pair breaks. So where rxe asks, nothing else goes there.
    """
    if asker == "soft":
        yield pair
        return
    sides = connect(ends["rxe"], ends["soft"], family)
    yield sides
    for side in sides:
        side.close()


def test_everything_arrives_once(
    ends: dict[str, End], harm: str, asker: str, pair: tuple[Side, Side], fetching: tuple[Side, Side]
) -> None:
    """Messages whole and in order, atomics counted, data of READs right."""
    a, b = pair
    fetcher = fetching[0]
    before, packets = ends["rxe"].counters(), ends["soft"].counters()
    a.end.fill(0, 40_000, 1)
    b.end.fill(3 * MIB, 40_000, 2)
    b.end.number(MIB, 0)
    b.end.clear(4 * MIB, 2 * MIB)
    b.receive(0, offset=4 * MIB, length=40_000, count=ROUNDS)
    expected: dict[int, list[tuple[int, int, str]]] = {a.qpn: [], fetcher.qpn: []}
    for n in range(ROUNDS):
        size = (n * 7919) % 40_000
        a.post("send", wr_id=n, pieces=[(0, size)])
        fetcher.post("add", wr_id=n, pieces=[(MIB + 8 * n, 8)], compare_add=1, **a.remote(MIB))
        fetcher.post("read", wr_id=n, pieces=[(2 * MIB + 40_000 * n, size)], **a.remote(3 * MIB))
        a.post("write", wr_id=n, pieces=[(0, size)], **a.remote(5 * MIB + 40_000 * n))
        for side, what in (a, "send"), (fetcher, "add"), (fetcher, "read"), (a, "write"):
            expected[side.qpn].append((n, 0, what))
    done: dict[int, list[tuple[int, int, str]]] = {qpn: [] for qpn in expected}
    for wc in a.completions(4 * ROUNDS, 240):
        done[wc["qpn"]].append((wc["wr_id"], wc["status"], wc["opcode"]))
    assert done == expected
    got = b.completions(ROUNDS)
    assert [(wc["wr_id"], wc["length"]) for wc in got] == [(n, (n * 7919) % 40_000) for n in range(ROUNDS)]
    assert b.end.number(MIB) == ROUNDS
    for n in range(ROUNDS):
        size = (n * 7919) % 40_000
        assert a.end.number(MIB + 8 * n) == n
        assert b.end.digest(4 * MIB + 40_000 * n, size) == a.end.digest(0, size)
        assert a.end.digest(2 * MIB + 40_000 * n, size) == b.end.digest(3 * MIB, size)
        assert b.end.digest(5 * MIB + 40_000 * n, size) == a.end.digest(0, size)
    # And the cable did what it was asked to: some 1,500 packets went each way.
    after, now = ends["rxe"].counters(), ends["soft"].counters()
    assert now["sent"] - packets["sent"] + now["received"] - packets["received"] > 1000
    if harm in ("loss", "all"):
        assert dropped() > 0
    if harm == "duplicates" and asker == "soft":
        assert after["duplicate_request"] > before["duplicate_request"]


@pytest.mark.parametrize(
    "sizes", [[0], [0, 100], [100, 0], [5000, 0, 100]], ids=["0", "0-100", "100-0", "5000-0-100"]
)
@pytest.mark.parametrize("behind", ["read", "write"])
def test_answers_around_requests_for_nothing_are_lost(
    ends: dict[str, End], family: str, sizes: list[int], behind: str
) -> None:
    """rxe (6.12) forgets what it needs to answer a READ again: one of nothing, or one in front of such."""
    a, b = connect(ends["soft"], ends["rxe"], family)
    wanted = [("read", sizes[0]), *((behind, size) for size in sizes[1:])]
    b.end.fill(MIB, max(sizes), 3)
    a.end.faults("wire_drop=0.4")
    try:
        for _ in range(12):
            a.end.clear(0, max(sizes))
            for n, (what, size) in enumerate(wanted):
                to = 2 * MIB if what == "write" else MIB
                a.post(what, wr_id=n, pieces=[(0, size)], **a.remote(to))
            done = a.completions(len(wanted))
            assert [(wc["wr_id"], wc["status"], wc["opcode"]) for wc in done] == [
                (n, 0, what) for n, (what, _) in enumerate(wanted)
            ]
            assert a.end.digest(0, sizes[0]) == b.end.digest(MIB, sizes[0])
    finally:
        a.end.faults("")
    for side in a, b:
        side.close()
