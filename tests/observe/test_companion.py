"""What begins with a loop's first connection, where there is no descriptor left for it."""

from __future__ import annotations

import errno
import importlib
import logging
import sys
from typing import NoReturn

import pytest

from aiordma.observe import companion


def test_without_a_descriptor_for_the_module(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says once what is missing; nothing is printed behind it."""

    def refuse(name: str) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files", name)

    own = vars(companion)
    monkeypatch.delitem(sys.modules, own["_ADMIN"], raising=False)
    monkeypatch.setattr(importlib, "import_module", refuse)
    with caplog.at_level(logging.WARNING, "aiordma.admin"):
        assert own["_prepare"]("asyncio") is None
        own["_tidy"]()
    [said] = caplog.messages
    assert "cannot be seen by `aiordma stat`" in said
    assert "Too many open files" in said
