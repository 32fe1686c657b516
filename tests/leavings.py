"""What a failed test leaves is collected at once, so that no later test is blamed for it.

Its traceback holds its frames, and with them streams that it would have closed. ``sys.last_value`` keeps the
traceback until the next test; after that it is garbage, and the collector finds it in the middle of any
test, which would fail with "unclosed".

What tests leave on purpose, such as pytest's own records of them, is taken out of the collector's sight:
some forty objects a test, and a collection after 2,600 tests took three times as long as at first. Hundreds
of tests collect.
"""

from __future__ import annotations

import gc
import itertools
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

#: After so many tests.
_FREEZE_EVERY = 50

#: Finalizers may leave more; a transport of uvloop's that is still open comes back each time.
_ROUNDS = 20

_FAILED = pytest.StashKey[bool]()


_tests = itertools.count(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if item.stash.get(_FAILED, False):
        _collect()
    if next(_tests) % _FREEZE_EVERY == 0:
        gc.collect()  # garbage that is frozen stays for ever
        gc.freeze()
    return result


def _collect() -> None:
    """That something was not closed follows from the failure that has been reported, and is no second one."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        for _ in range(_ROUNDS):
            if not gc.collect():
                break
    finally:
        sys.unraisablehook = hook
