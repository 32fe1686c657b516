"""What type checkers are told of a call's result; mypy reads this file, and the values are as it says."""

from __future__ import annotations

import pickle
from typing import Any, assert_type

import pytest

from aiordma import rpc
from aiordma.testing.rpc import rpc_pair

pytestmark = pytest.mark.anyio


async def add(one: int, other: int) -> int:
    return one + other


async def test_a_call_has_the_type_that_it_asks_for() -> None:
    service = rpc.Service("t")
    service.method(add)
    async with rpc_pair(service) as pair:
        assert assert_type(await pair.client.call("t.add", 1, 2, returns=int), int) == 3
        assert assert_type(await pair.client.call("t.add", 1, 2), Any) == 3


def test_unreachable_survives_pickling() -> None:
    error = rpc.RpcUnreachable("cannot connect", 111)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.errno, again.not_started) == (
        rpc.RpcUnreachable,
        "UNAVAILABLE: cannot connect",
        111,
        True,
    )
