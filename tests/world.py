"""Where the tests run: on which device, and how much slower than a machine of its own the place is.

pytest's options ``--device`` and ``--slower`` say it, and processes that tests start learn it, too.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from typing import Any

import anyio
import pytest

#: The device of every test that needs RDMA and does not care whose.
DEVICE = os.environ.get("AIORDMA_TEST_DEVICE", "soft")
#: The card that the software device is like, if any: softdev/personalities.
PERSONALITY = os.environ.get("SOFTDEV_PERSONALITY", "soft")
#: It delivers when it likes; the software device does so before the call that posts has returned.
LATE = DEVICE != "soft" or bool(os.environ.get("AIORDMA_FILTER"))
#: The deadlines of the tests, which end what hangs, are this many times longer.
SLOWER = float(os.environ.get("AIORDMA_TEST_SLOWER", "1"))
#: Whether aiordma's objects are pyverbs'.
PYVERBS = os.environ.get("AIORDMA_VERBS") != "own" and importlib.util.find_spec("pyverbs") is not None
#: For tests' own programs that are written with pyverbs, whichever binding aiordma uses. Debian's is built
#: for the release's own Python only.
pyverbs_is_here = pytest.mark.skipif(
    importlib.util.find_spec("pyverbs") is None, reason="pyverbs is not built for this Python"
)
#: For tests that look into pyverbs' objects, or post work requests of their own with them.
needs_pyverbs = pytest.mark.skipif(not PYVERBS, reason="aiordma's own verbs binding is used")


#: Longer than anything takes that works, also on a machine with much else to do.
PATIENCE = float(os.environ.get("AIORDMA_TEST_PATIENCE", "30"))
#: The same for those who do not wait by ``anyio.fail_after``, which :func:`_stretch` stretches.
FULL_PATIENCE = PATIENCE * SLOWER


def _stretch() -> None:
    """Let ``anyio.fail_after`` give tests, and nobody else, more time.

    A limit of a second or more ends what hangs. It says how long the test may take where nothing else runs,
    so it is no shorter than :data:`PATIENCE`, whatever the machine does beside it.
    """
    original = anyio.fail_after

    @functools.wraps(original)
    def fail_after(delay: float | None, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals["__name__"]
        if delay is not None and caller.partition(".")[0] == "tests":
            delay = max(delay * SLOWER, PATIENCE if delay >= 1 else 0)
        return original(delay, *args, **kwargs)

    anyio.fail_after = fail_after


_stretch()
