"""The tests' own limits: what ends a hang is never short, and what is a test's subject stays as it is."""

from __future__ import annotations

import anyio
import pytest

from tests.virtual import in_virtual_time
from tests.world import PATIENCE

pytestmark = pytest.mark.anyio


@in_virtual_time
async def test_a_limit_that_ends_what_hangs_is_patient() -> None:
    with anyio.fail_after(5):
        await anyio.sleep(PATIENCE - 1)


@in_virtual_time
async def test_one_that_is_the_subject_of_a_test_is_kept() -> None:
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.01):
            await anyio.sleep(PATIENCE - 1)
