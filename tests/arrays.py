"""numpy, for tests that need it."""

from __future__ import annotations

import pytest

try:
    import numpy
except RuntimeError as error:
    # The CPU of the virtual machines lacks CMPXCHG16B, which QEMU before 8.0 gets wrong (tests/vm/run).
    pytest.skip(f"numpy does not run on this CPU: {error}", allow_module_level=True)

__all__ = ["numpy"]
