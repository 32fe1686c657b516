"""The credit of a channel: both halves against a plain model, also where the running totals wrap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto.message import MAX_HEAD_BYTES, MESSAGE_OVERHEAD, ReceiveBudget, SendBudget, check_size

EVENTS = st.lists(
    st.one_of(st.integers(0, 3000), st.sampled_from(["take", "report", "arrive"])), max_size=200
)


@given(limit=st.integers(1, 5000), rounds=st.integers(0, 4), events=EVENTS)
def test_sender_and_receiver_agree(limit: int, rounds: int, events: list[int | str]) -> None:
    out, inc = SendBudget(limit), ReceiveBudget(limit)
    for _ in range(rounds):  # totals of 32 bits wrap after four of these
        assert out.send((1 << 30) - MESSAGE_OVERHEAD + 100) == inc.received + (1 << 30) + 100 & 0xFFFFFFFF
        assert inc.receive((1 << 30) - MESSAGE_OVERHEAD + 100)
        assert inc.take((1 << 30) - MESSAGE_OVERHEAD + 100)
        assert out.receive_report(inc.report())
    waiting: list[int] = []
    unreported = on_the_way = in_flight = 0
    reports: list[int] = []
    for event in events:
        if isinstance(event, int):
            cost = event + MESSAGE_OVERHEAD
            assert out.allows(event) == (in_flight == 0 or in_flight + cost <= limit)
            if out.allows(event):
                out.send(event)
                # Nothing that the sender may send is too much for the receiver.
                assert inc.receive(event)
                waiting.append(event)
                in_flight += cost
        elif event == "take" and waiting:
            size = waiting.pop(0)
            unreported += size + MESSAGE_OVERHEAD
            assert inc.take(size) == (unreported >= limit >> 2)
        elif event == "report":
            reports.append(inc.report())
            on_the_way += unreported
            unreported = 0
        elif event == "arrive" and reports:
            assert out.receive_report(reports[-1])
            reports.clear()
            in_flight -= on_the_way
            on_the_way = 0
        assert out.outstanding == in_flight
        assert inc.waiting == sum(size + MESSAGE_OVERHEAD for size in waiting)


@given(st.integers(0, 0xFFFFFFFF))
def test_a_total_that_cannot_be_is_refused(total: int) -> None:
    out = SendBudget(10_000)
    out.send(100)
    out.send(200)
    first, both = 100 + MESSAGE_OVERHEAD, 300 + 2 * MESSAGE_OVERHEAD
    assert out.receive_report(first)
    assert out.receive_report(total) == (first <= total <= both)


def test_more_than_the_budget_is_refused() -> None:
    inc = ReceiveBudget(1000)
    assert inc.receive(5000)  # alone
    assert not inc.receive(0)
    inc.take(5000)
    assert not inc.receive(0)  # the sender does not know yet
    inc.report()
    assert inc.receive(1000 - MESSAGE_OVERHEAD)
    assert not inc.receive(0)
    assert inc.high_water == 5000 + MESSAGE_OVERHEAD


def test_sizes() -> None:
    check_size(MAX_HEAD_BYTES, 1000, 1000)
    with pytest.raises(ValueError, match="head has 513 bytes, at most 512"):
        check_size(MAX_HEAD_BYTES + 1, 600, 1000)
    with pytest.raises(ValueError, match="1001 bytes, at most 1000"):
        check_size(0, 1001, 1000)
