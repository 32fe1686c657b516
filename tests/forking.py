"""`os.fork()` in tests of what becomes of aiordma in the child."""

from __future__ import annotations

import os
import warnings


def fork() -> int:
    """Fork although there are threads, as the software device's or a helper's.

    Since 3.12 Python warns programs that do. That the child does not hang is what these tests are about.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        return os.fork()
