"""The rules of the filter: what they match, what they may say, and that they repeat themselves."""

from __future__ import annotations

import contextlib
import re
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto.filter import STATUS_NAMES, Act, Direction, Filter, Op, Rule, parse, parse_rule

OPS = [op for op in Op if op.name]
T = TypeVar("T")

globs = st.text("abc*?[].:0123456789", min_size=1, max_size=12)


@st.composite
def any_rules(draw: st.DrawFn) -> Rule:
    """Every field at random; combinations that mean nothing are drawn again."""

    def maybe(strategy: st.SearchStrategy[T]) -> T | None:
        return draw(st.none() | strategy)

    low = draw(st.integers(0, 1 << 20))
    ops = maybe(st.lists(st.sampled_from(OPS), min_size=1))
    fields = {
        "act": draw(st.sampled_from(Act)),
        "direction": draw(st.sampled_from(Direction)),
        "ops": None if ops is None else Op(0) | Op(sum({op.value for op in ops})),
        "min_bytes": low,
        "max_bytes": maybe(st.integers(low, 1 << 30)),
        "nth": maybe(st.integers(1, 1000)),
        "probability": draw(st.floats(0, 1, exclude_min=True)),
        "times": maybe(st.integers(1, 1000)),
        "ms": maybe(st.floats(0, 86_400_000) | st.just(float("inf"))),
        "status": maybe(st.sampled_from(sorted(STATUS_NAMES))),
        "at": maybe(st.integers(0, 100)),
        "peer": maybe(globs),
        "side": maybe(st.sampled_from(["client", "server"])),
        "connection": maybe(st.integers(0, (1 << 32) - 1)),
    }
    try:
        return Rule(**fields)
    except ValueError:
        # Fields that belong to one act only are the usual reason.
        fields |= {"ms": None, "status": None, "at": None, "ops": None, "act": Act.CORRUPT}
        return Rule(**fields)


@given(any_rules())
def test_text_form_and_rule_are_the_same(rule: Rule) -> None:
    assert parse_rule(str(rule)) == rule
    assert parse(f" {rule} ; seed=0x10\n{rule};;") == (16, [rule, rule])


@given(st.lists(any_rules(), max_size=4), st.integers(), st.data())
def test_the_same_seed_and_traffic_give_the_same_decisions(
    rules: list[Rule], seed: int, data: st.DataObject
) -> None:
    one, other = Filter(seed, rules), Filter(seed, rules)
    traffic = data.draw(
        st.lists(st.tuples(st.sampled_from(Direction), st.sampled_from(OPS), st.integers(0, 1 << 21)))
    )
    for direction, op, size in traffic:
        decision = one.decide(direction, op, size, peer="a", side="client", connection=7)
        assert decision == other.decide(direction, op, size, peer="a", side="client", connection=7)
        if decision is not None:
            rule = decision.rule
            assert rule in rules
            assert rule.direction is direction
            assert rule.ops is not None
            assert op in rule.ops
            assert rule.min_bytes <= size <= (size if rule.max_bytes is None else rule.max_bytes)
    for rule, counters in one.rules().values():
        assert 0 <= counters.fired <= counters.matched
        assert counters.fired <= (counters.matched if rule.times is None else rule.times)
        assert rule.nth is None or counters.fired <= 1


@given(st.binary(max_size=100), st.sampled_from(Direction), st.none() | st.integers(0, 200), st.integers())
def test_corruption_changes_exactly_one_bit(
    data: bytes, direction: Direction, at: int | None, seed: int
) -> None:
    filter_ = Filter(seed, [Rule(act=Act.CORRUPT, direction=direction, at=at)])
    decision = filter_.decide(direction, Op.CDC, len(data))
    assert decision is not None
    changed = decision.corrupted(data)
    assert len(changed) == len(data)
    difference = [a ^ b for a, b in zip(data, changed, strict=True) if a != b]
    assert [d.bit_count() for d in difference] == ([1] if data else [])
    if data and at is not None:
        assert changed[at % len(data)] != data[at % len(data)]


def decide_all(text: str, ops: list[Op], **where: object) -> list[str | None]:
    seed, rules = parse(text)
    filter_ = Filter(seed, rules)
    found = [filter_.decide(Direction.OUT, op, 44, **where) for op in ops]  # type: ignore[arg-type]
    return [None if decision is None else decision.rule.act.value for decision in found]


def test_nth_counts_what_matches() -> None:
    traffic = [Op.CDC, Op.WRITE, Op.CDC, Op.LLC, Op.CDC]
    assert decide_all("drop op=cdc nth=2", traffic) == [None, None, "drop", None, None]
    assert decide_all("drop op=send nth=3", traffic) == [None, None, None, "drop", None]
    assert decide_all("drop op=cdc times=2", traffic) == ["drop", None, "drop", None, None]


def test_the_first_rule_that_fires_decides_and_later_ones_do_not_count() -> None:
    filter_ = Filter(0, parse("delay op=cdc nth=1; drop op=cdc; disconnect")[1])
    acts = [filter_.decide(Direction.OUT, op, 44) for op in (Op.CDC, Op.CDC, Op.WRITE)]
    assert [each.rule.act for each in acts if each] == [Act.DELAY, Act.DROP, Act.DISCONNECT]
    assert [(c.matched, c.fired) for _, c in filter_.rules().values()] == [(2, 1), (1, 1), (1, 1)]


def test_where_a_rule_looks() -> None:
    assert decide_all("drop peer=10.0.*", [Op.CDC], peer="10.0.0.1:5") == ["drop"]
    assert decide_all("drop peer=10.0.*", [Op.CDC], peer="10.1.0.1:5") == [None]
    assert decide_all("drop side=server", [Op.CDC], side="client") == [None]
    assert decide_all("drop side=server", [Op.CDC], side="server") == ["drop"]
    assert decide_all("drop connection=0x10", [Op.CDC], connection=16) == ["drop"]
    assert decide_all("drop connection=0x10", [Op.CDC], connection=None) == [None]
    assert decide_all("drop size=45..", [Op.CDC]) == [None]
    assert decide_all("drop size=..44", [Op.CDC]) == ["drop"]
    assert decide_all("drop size=44", [Op.CDC]) == ["drop"]
    assert decide_all("drop dir=in", [Op.CDC]) == [None]


def test_rules_come_and_go() -> None:
    filter_ = Filter()
    assert not filter_
    first = filter_.add(parse_rule("drop"))
    second = filter_.add(parse_rule("delay dir=in"))
    assert filter_.remove(first).act is Act.DROP
    with pytest.raises(KeyError):
        filter_.remove(first)
    assert list(filter_.rules()) == [second]
    assert filter_
    assert filter_.add(parse_rule("drop")) > second
    assert filter_.decide(Direction.IN, Op.CDC, 44) is not None


def test_a_share_of_the_traffic() -> None:
    fired = decide_all("seed=1; drop p=0.25", [Op.CDC] * 4000).count("drop")
    assert 850 < fired < 1150
    assert decide_all("seed=2; drop p=0.5", [Op.CDC] * 64) != decide_all("seed=3; drop p=0.5", [Op.CDC] * 64)


@pytest.mark.parametrize(
    ("text", "word", "advice"),
    [
        ("lose op=cdc", "'lose'", "drop, delay"),
        ("drop op=cdc,foo", "'op=cdc,foo'", "cdc, llc, message"),
        ("drop size=x..", "'size=x..'", "N..M"),
        ("drop size=9..5", "max_bytes=5", "no less than"),
        ("drop colour=red", "'colour=red'", "dir, op"),
        ("drop p", "'p'", "key=value"),
        ("drop p=", "'p='", "key=value"),
        ("drop p=nan", "'p=nan'", "above 0"),
        ("drop p=1.5", "probability=1.5", "at most 1"),
        ("drop nth=0", "nth=0", "1 or more"),
        ("drop nth=1 nth=2", "'nth=2'", "twice"),
        ("drop size=1 size=2", "'size=2'", "twice"),
        ("delay ms=never", "ms=inf", "drop and rnr"),
        ("delay ms=-1", "ms=-1.0", "0 to"),
        ("corrupt ms=1", "ms=1.0", "takes no time"),
        ("drop dir=in ms=1", "ms=1.0", "takes no time"),
        ("drop dir=up", "'dir=up'", "in or out"),
        ("error status=BAD", "status='BAD'", "RETRY_EXC_ERR"),
        ("drop status=FATAL_ERR", "status='FATAL_ERR'", "only error"),
        ("drop at=1", "at=1", "only corrupt"),
        ("corrupt op=read", "ops", "bytes of ours"),
        ("reorder", "reorder", "use dir=in"),
        ("rnr dir=in", "rnr", "use dir=out"),
        ("rnr op=write", "ops", "receive"),
        ("drop dir=in op=write", "ops", "messages only"),
        ("drop side=left", "side='left'", "client or server"),
        ("seed=abc; drop", "'seed=abc'", "whole number"),
    ],
)
def test_errors_name_the_word_and_what_is_allowed(text: str, word: str, advice: str) -> None:
    with pytest.raises(ValueError, match=re.escape(word)) as caught:
        parse(text)
    assert advice in str(caught.value)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        seed, rules = parse(text)
        assert isinstance(seed, int)
        assert parse(";".join(map(str, rules))) == (0, rules)


def test_a_glob_that_the_text_form_cannot_carry_is_refused() -> None:
    with pytest.raises(ValueError, match="peer"):
        Rule(act=Act.DROP, peer="a b")
