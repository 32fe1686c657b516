"""Shared memory in huge pages."""

from __future__ import annotations

import ctypes
import mmap

import pytest

from aiordma.verbs.huge_pages import HUGE_BYTES, use_huge_pages
from tests.pages import resident, shared

MIB = 1 << 20


def test_fresh_shared_memory_is_put_into_huge_pages() -> None:
    memory, address = shared(8 * MIB)
    if not use_huge_pages(address, 8 * MIB):
        pytest.skip("the kernel makes no huge pages of shared memory")
    assert resident(address, 8 * MIB) == 8 * MIB
    assert ctypes.string_at(address, 8 * MIB) == bytes(8 * MIB)
    memory.close()


def test_only_whole_huge_pages_are_made_and_nothing_around_them() -> None:
    memory, address = shared(8 * MIB)
    page = mmap.PAGESIZE
    made = use_huge_pages(address + page, 6 * MIB - page)
    assert resident(address, HUGE_BYTES) == 0
    assert resident(address + 6 * MIB, HUGE_BYTES) == 0
    assert not use_huge_pages(address + 6 * MIB + page, 2 * MIB - 2 * page), "too short for one"
    if made:
        assert resident(address + HUGE_BYTES, 4 * MIB) == 4 * MIB
    memory.close()


def test_memory_that_was_given_back_meanwhile() -> None:
    memory, address = shared(4 * MIB)
    memory.close()
    assert not use_huge_pages(address, 4 * MIB)
