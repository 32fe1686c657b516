"""Descriptions of networks that no planner can plan: one line says so, at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocefabric.errors import NetworkError
from rocefabric.model import load, parse

PLAIN = """
[[switches]]
name = "s"
[[hosts]]
name = "h"
count = 4
[[links]]
a = "s"
b = "h"
rate_gbps = 100
"""
ABSURD = {
    "many hosts": PLAIN.replace("count = 4", "count = 1000000000"),
    "many cables": PLAIN + "count = 1000000000\n",
    "a mesh": PLAIN.replace("count = 4", "count = 19000") + "pattern = 'mesh'\ncount = 100\n",
    "infinite": PLAIN.replace("rate_gbps = 100", "rate_gbps = inf"),
    "no number": PLAIN.replace("rate_gbps = 100", "rate_gbps = nan"),
    "a large number": PLAIN.replace("rate_gbps = 100", "rate_gbps = 1e300"),
    "many digits": PLAIN.replace("count = 4", "count = " + "9" * 5000),
    "many hexadecimal digits": PLAIN.replace("count = 4", "count = 0x" + "f" * 5000),
    "deep lists": PLAIN + "length_m = " + "[" * 5000 + "]" * 5000 + "\n",
    "less deep lists": PLAIN + "length_m = " + "[" * 200 + "]" * 200 + "\n",
    "deep tables": PLAIN + "x = " + "{a=" * 5000 + "1" + "}" * 5000 + "\n",
    "a long dscp": PLAIN.replace('name = "s"', f'name = "s"\ndscp_queue = {{ {"1" * 5000} = 5 }}'),
}


@pytest.mark.parametrize("kind", ABSURD)
def test_it_is_refused(kind: str) -> None:
    with pytest.raises(NetworkError) as caught:
        parse(ABSURD[kind], "it.toml")
    assert str(caught.value).startswith("it.toml:")
    assert len(str(caught.value)) < 400


def test_the_plain_one_is_fine() -> None:
    assert parse(PLAIN).hosts[0].count == 4


def test_files_that_are_no_descriptions(tmp_path: Path) -> None:
    path = tmp_path / "it.toml"
    path.write_bytes(b"name = 'x'\n\xff\n")
    with pytest.raises(NetworkError, match=r"it.toml:2: the file is not UTF-8"):
        load(path)
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(NetworkError, match="the file has more than"):
        load(path)
