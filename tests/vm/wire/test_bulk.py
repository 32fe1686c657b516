"""Streams over the wire on a cable that loses and delays, as `python -m benchmarks.lossy` measures them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import lossy

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def lossy_cable() -> Iterator[None]:
    with lossy.cable(lossy.HARM):
        yield


@pytest.mark.parametrize("path", lossy.PATHS)
def test_stream_arrives_whole(lossy_cable: None, path: str) -> None:
    """Some 2,000 packets, twenty of them lost; compared by hash. TCP shows what the cable does to others."""
    assert lossy.run(path, 8)[1]
