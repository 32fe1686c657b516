"""The alert rules: each metric and label in them exists, and Prometheus reads them, where it is there."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import NamedTuple

import pytest

from tests.project.tree import ROOT

from .test_dashboard import COUNTERS, KNOWN

ALERTS = ROOT / "examples" / "grafana" / "alerts.yml"


_RULE = re.compile(r"(\w+)\n +expr: (?:>-\s+)?(.+?)\n +(?:for|labels):.+?annotations:\n(.+)", re.DOTALL)


class Rule(NamedTuple):
    """One of them, as text."""

    name: str
    #: on one line
    expression: str
    annotations: str


def rules() -> list[Rule]:
    """Those of the file."""
    _, *parts = re.split(r"(?m)^ +- alert: ", ALERTS.read_text(encoding="utf-8"))
    found = []
    for part in parts:
        match = re.fullmatch(
            r"(\w+)\n +expr: (?:>-\s+)?(.+?)\n +(?:for|labels):.+?annotations:\n(.+)", part, re.DOTALL
        )
        assert match is not None, part
        found.append(Rule(match[1], " ".join(match[2].split()), match[3]))
    return found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_what_a_rule_looks_at_exists(rule: Rule) -> None:
    used = re.findall(r"(rate|increase)?\(?(aiordma_\w+)(?:\{([^}]*)\})?(\[\w+\])?", rule.expression)
    assert used
    by = {
        name.strip() for names in re.findall(r"by \(([^)]*)\)", rule.expression) for name in names.split(",")
    }
    assert "instance" in by
    for function, metric, selector, window in used:
        labels = KNOWN[metric] | {"instance"}
        assert by <= labels
        assert set(re.findall(r"(\w+)=", selector)) <= labels
        # A counter only tells by its growth.
        assert bool(function) == bool(window) == (metric in COUNTERS)
    # What the sentences name is there.
    assert set(re.findall(r"\$labels\.(\w+)", rule.annotations)) <= by
    assert {"summary", "description"} <= set(re.findall(r"(?m)^ +(\w+): ", rule.annotations))


def test_names_are_different() -> None:
    names = [rule.name for rule in rules()]
    assert len(names) == len(set(names)) == ALERTS.read_text(encoding="utf-8").count("expr:") == 10


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_reads_them() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "10 rules found" in done.stdout) == (0, True), done.stdout + done.stderr
