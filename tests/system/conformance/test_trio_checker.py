"""trio's executable specification of a stream, on every kind of pipe.

``wait_send_all_might_not_block`` has no counterpart in anyio's contract, so the adapter has none that waits,
and the checker's ``clogged_stream_maker`` is used for what concerns closing and cancelling only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from tests.streams.pairs import MAKERS, Pair

from .trio_adapter import TrioStream


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_half_closeable_stream(maker: Callable[[], Awaitable[Pair]]) -> None:
    async def make() -> tuple[TrioStream, TrioStream]:
        one, other = await maker()
        return TrioStream(one), TrioStream(other)

    trio.run(trio.testing.check_half_closeable_stream, make, None)
