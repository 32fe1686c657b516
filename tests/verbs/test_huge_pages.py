"""Which memory is in huge pages, as the kernel says."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from pathlib import Path

import pytest

from aiordma.verbs._window import address_of
from aiordma.verbs.huge_pages import HUGE_BYTES, in_huge_pages, use_huge_pages
from tests.pages import resident, shared

MIB = 1 << 20


def mapped(nbytes: int, advice: int) -> mmap.mmap:
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(advice)
    return memory


def huge_bytes() -> int:
    """Of this process, in transparent huge pages."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages"))


def test_small_pages_and_fresh_memory() -> None:
    memory = mapped(16 * MIB, mmap.MADV_NOHUGEPAGE)
    address = address_of(memory)
    assert not in_huge_pages(address, len(memory)), "fresh"
    memory[:] = bytes(len(memory))
    assert not in_huge_pages(address, len(memory))


def test_huge_pages_are_found_where_the_kernel_gives_some() -> None:
    before = huge_bytes()
    memory = mapped(32 * MIB, mmap.MADV_HUGEPAGE)
    memory[:] = b"\1" * len(memory)
    address = address_of(memory)
    # The kernel may have none, or be older than the question.
    known = in_huge_pages(address, len(memory))
    if huge_bytes() - before < 30 * MIB:
        pytest.skip("the kernel gave no huge pages")
    if known:
        assert not in_huge_pages(address, 3 * MIB), "too little to tell"
    else:
        release = tuple(map(int, Path("/proc/sys/kernel/osrelease").read_text().split("-")[0].split(".")[:2]))
        assert release < (6, 7)


@pytest.mark.parametrize("error", [OSError("no such file"), PermissionError()])
def test_where_it_cannot_be_known(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    def refuse(*_: object) -> int:
        raise error

    memory = bytearray(8 * MIB)
    monkeypatch.setattr(fcntl, "ioctl", refuse)
    assert not in_huge_pages(address_of(memory), len(memory))
    monkeypatch.setattr(os, "open", refuse)
    assert not in_huge_pages(address_of(memory), len(memory))


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
