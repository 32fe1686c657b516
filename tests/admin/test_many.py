"""Programs with much to tell: no message is longer than a tool takes, and no turn of the loop is long."""

from __future__ import annotations

from itertools import repeat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from aiordma import wake
from aiordma.admin import answers
from aiordma.admin.messages import MAX_ANSWER_BYTES, packed
from aiordma.observe.calls import past
from tests.memory.pairs import pair

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

MANY = 4000
#: In one message. Between two messages the loop may have a turn.
FEW = 16


def check(parts: Iterator[Any]) -> None:
    count = 0
    for part in parts:
        assert len(packed(part)) < MAX_ANSWER_BYTES
        assert len(part.rows) <= FEW
        count += len(part.rows)
    assert count >= MANY


async def test_many_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server has one for each process of its clients."""
    async with pair("rdma"):
        (engine,) = answers._engines(wake.current())
        groups = list(repeat(next(iter(engine.all_groups)), MANY))
        many = SimpleNamespace(backend=engine.backend, config=engine.config, all_groups=groups)
        monkeypatch.setattr(answers, "_engines", lambda _: [many])
        check(answers._links(wake.current()))


async def test_many_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {("server", f"/some.package.Service/Method{number}"): (1, 0) for number in range(MANY)}
    assert isinstance(past(wake.current()), dict)
    monkeypatch.setattr(answers, "past", lambda _: counts)
    check(answers._rpc(wake.current()))


async def test_many_connections_to_valkey(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiordma.valkey.connection")
    row = SimpleNamespace(number=1)
    monkeypatch.setattr("aiordma.valkey.connection.connections", lambda _: set(range(MANY)))
    monkeypatch.setattr(answers, "describe_valkey", lambda *_: row)
    monkeypatch.setattr("tests.admin.test_many.packed", lambda _: b"")
    check(answers._connections(wake.current()))
