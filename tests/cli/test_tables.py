"""Numbers for people."""

from __future__ import annotations

import pytest

from aiordma.cli.tables import micros_text, moment_text


@pytest.mark.parametrize(
    ("name", "count", "text"),
    [
        ("p99", 99, "-"),
        ("p99", 100, "48.2"),
        ("p999", 999, "-"),
        ("p999", 1000, "48.2"),
        ("median", 1, "48.2"),
        ("max", 1, "48.2"),
    ],
)
def test_no_percentile_beyond_the_samples(name: str, count: int, text: str) -> None:
    assert micros_text(48.21, name, count) == text


@pytest.mark.parametrize("moment", [0.0, float("nan"), float("inf"), -1e300])
def test_what_is_no_moment(moment: float) -> None:
    assert moment_text(moment) == ""


def test_a_moment_of_another_day() -> None:
    assert moment_text(86_400.0 * 365).startswith("197")
