"""The end of an engine: one part that cannot be given back keeps nothing else."""

from __future__ import annotations

import functools
import os
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from aiordma.errors import VerbsError
from aiordma.links import engine as engines

from .link_pairs import connect

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from aiordma.links.engine import Engine

pytestmark = pytest.mark.anyio


def verbs_descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return [name for name in found if "softdev-slab" in name or "infiniband" in name]


@pytest.mark.parametrize("part", ["pd", "qp", "local", "rings", "cq", "pool", "messages"])
async def test_a_part_that_cannot_be_closed(
    part: str,
    open_engine: Callable[..., AbstractAsyncContextManager[Engine]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = verbs_descriptors()
    closed: list[str] = []
    async with open_engine() as engine:
        await connect(engine)
        first = next(iter(engine.all_groups))
        parts = first.link.parts
        owners = {"pd": parts.pd, "qp": parts.qp, "local": parts.local, "rings": first.rings}
        owners |= {"cq": engine.cq, "pool": engine.pool, "messages": first.messages}
        refused: list[Any] = []

        def refuse(really: Callable[[], None]) -> None:
            if not refused:
                refused.append(really)
                closed.append("failed")
                raise VerbsError(16, f"close of {part}")
            really()

        if part == "pd":  # an extension type: nothing of it can be replaced
            pd = parts.pd
            monkeypatch.setattr(parts, "pd", SimpleNamespace(close=lambda: refuse(pd.close)))
        else:
            kind = type(owners[part])
            original = kind.close
            ours = owners[part]  # another engine may just be going

            def close(self: Any) -> None:
                if self is ours:
                    refuse(functools.partial(original, self))
                else:
                    original(self)

            monkeypatch.setattr(kind, "close", close)
        backend_close = engine.backend.close

        def note() -> None:
            closed.append("backend")
            backend_close()

        monkeypatch.setattr(engine.backend, "close", note)
        poller = engine.poller
        engine.close()
        assert closed[0] == "failed"
        assert closed[-1] == "backend"
        assert "was not released completely" in caplog.text
        assert f"close of {part}" in caplog.text
        assert id(engine.waker) not in engines.ENGINES
        assert not engine.all_groups
        monkeypatch.undo()
        # What failed on purpose is closed here, so that the device can go.
        refused[0]()
        poller.close()
        backend_close()
    assert not Counter(verbs_descriptors()) - Counter(before)
