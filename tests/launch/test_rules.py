"""Rules: what they match, and which of them wins."""

from __future__ import annotations

import pytest

from aiordma.launch.rules import WELL_KNOWN, Rule, Rules


@pytest.mark.parametrize(
    ("pattern", "direction", "host", "port", "expected"),
    [
        ("*", "in", "10.1.2.3", 80, True),
        ("*:80", "out", "anything", 80, True),
        ("*:80", "out", "anything", 81, False),
        ("*:80-90", "out", "anything", 90, True),
        ("*:80-90", "out", "anything", 91, False),
        ("10.0.0.0/8", "out", "10.255.0.1", 1, True),
        ("10.0.0.0/8", "out", "11.0.0.1", 1, False),
        ("10.0.0.0/8:6379", "out", "10.0.0.1", 6380, False),
        ("10.1.2.3", "out", "10.1.2.3", 1, True),
        ("10.1.2.3", "out", "server", 1, False),
        ("fd00::/8", "out", "fd00::1%eth0", 1, True),
        ("[fd00::]/8:70", "out", "fd12::1", 70, True),
        ("[::1]:70", "out", "::1", 71, False),
        ("*.Example.org:443", "out", "www.example.ORG", 443, True),
        ("example.org", "out", "www.example.org", 443, False),
        ("in:*:80", "out", "a", 80, False),
        ("in:*:80", "in", "a", 80, True),
        ("out:10.0.0.0/8", "out", "10.0.0.1", 80, True),
        ("out:10.0.0.0/8", "in", "10.0.0.1", 80, False),
        ("10.0.0.0/8", "in", "::ffff:10.0.0.1", 80, True),
        ("10.0.0.0/8", "in", "::ffff:11.0.0.1", 80, False),
        ("10.1.2.3", "in", "::ffff:10.1.2.3", 80, True),
        ("10.1.2.3", "in", "::FFFF:a01:203", 80, True),
        ("10.1.*:80", "in", "::ffff:10.1.2.3", 80, True),
        ("10.2.*:80", "in", "::ffff:10.1.2.3", 80, False),
        ("::ffff:10.1.2.3", "in", "10.1.2.3", 80, True),
        ("::ffff:10.1.2.3", "in", "::ffff:10.1.2.3", 80, True),
        ("::ffff:10.1.2.3", "in", "10.1.2.4", 80, False),
        ("::ffff:10.1.*", "in", "10.1.2.3", 80, True),
        ("[::ffff:10.0.0.0]/104:80", "in", "10.1.2.3", 80, True),
        ("[::ffff:10.0.0.0]/104:80", "in", "::ffff:10.1.2.3", 80, True),
        ("[::ffff:10.0.0.0]/104:80", "in", "11.1.2.3", 80, False),
        ("::/0", "in", "::ffff:10.1.2.3", 80, True),
        ("10.0.0.0/8", "in", "::a01:203", 80, False),
    ],
)
def test_what_a_rule_matches(pattern: str, direction: str, host: str, port: int, expected: bool) -> None:
    assert Rule.of(True, pattern).matches(direction, host, port) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "allow",
        "permit *",
        "allow 10.0.0.0/99",
        "deny *:http",
        "deny *:0",
        "deny *:90-80",
        "deny *:70000",
        "allow in:",
    ],
)
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(ValueError, match=r"rule .*(begin with|address|network|port)"):
        Rules.parse(text)


def test_deny_wins_and_allow_lists_what_is_allowed() -> None:
    text = "allow 10.0.0.0/8  # ours\n\ndeny *:81; deny out:10.9.0.0/16"
    for rules in (Rules.parse(text), Rules.parse(str(Rules.parse(text)))):
        assert rules.forbid("out", "10.1.1.1", 80) is None
        assert rules.forbid("out", "10.1.1.1", 81) == "rule `deny *:81`"
        assert rules.forbid("out", "10.9.1.1", 80) == "rule `deny out:10.9.0.0/16`"
        assert rules.forbid("in", "10.9.1.1", 80) is None
        assert rules.forbid("in", "11.1.1.1", 80) == "no rule allows it"


def test_allowing_one_direction_says_nothing_about_the_other() -> None:
    rules = Rules.parse("allow out:*:7000")
    assert rules.forbid("out", "a", 7001) == "no rule allows it"
    assert rules.forbid("in", "a", 7001) is None


def test_well_known_ports_want_to_be_named() -> None:
    for port, name in WELL_KNOWN.items():
        assert name in (Rules.parse("").forbid("out", "a", port) or "")
        assert name in (Rules.parse("allow *").forbid("in", "a", port) or "")
        assert Rules.parse(f"allow *:{port}").forbid("out", "a", port) is None
        assert not Rules.parse("allow *").may_allow("in", port)
        assert Rules.parse(f"allow in:*:{port}").may_allow("in", port)


def test_which_ports_a_server_may_negotiate_on() -> None:
    assert Rules.parse("").may_allow("in", 80)
    assert not Rules.parse("deny in:*:80").may_allow("in", 80)
    assert Rules.parse("deny 10.0.0.0/8:80").may_allow("in", 80)
    assert not Rules.parse("allow in:*:81").may_allow("in", 80)
    assert Rules.parse("allow out:*:81").may_allow("in", 80)
