"""No source file is longer than one reads at a sitting, but for those named here: they may only shrink."""

from __future__ import annotations

from .tree import ROOT, tracked_files

#: Most lines of a source file, by its suffix.
CAPS = {".py": 600, ".pyi": 600, ".pyx": 500, ".pxd": 500, ".c": 600, ".h": 600}

#: Files that are longer, and how long they may be.
LONG = {
    "aiordma/_cq.pyx": 640,
    "aiordma/datapath/_qp.pyx": 550,
    "softdev/tests/roce/fuzz_receiver.c": 740,
    "softdev/tests/shm/fuzz_peer.c": 1090,
}


def lengths() -> dict[str, tuple[int, int]]:
    """Of each source file its lines and the cap."""
    return {
        str(path.relative_to(ROOT)): (len(path.read_bytes().splitlines()), CAPS[path.suffix])
        for path in tracked_files()
        if path.suffix in CAPS
    }


def test_files_are_not_too_long() -> None:
    long = {name: lines for name, (lines, cap) in lengths().items() if lines > LONG.get(name, cap)}
    assert long == {}


def test_no_exception_has_become_needless() -> None:
    found = lengths()
    assert [name for name in LONG if name not in found or found[name][0] <= found[name][1]] == []


def test_files_were_looked_at() -> None:
    assert {"aiordma/pipes/_ring.pyx", "softdev/src/shm/lane_requester.c", "tests/project/tree.py"} <= set(
        lengths()
    )
