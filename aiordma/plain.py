# cython: annotation_typing=False
"""Buffers whose bytes may leave the process or come from a peer: not those that hold Python objects.

An array of objects is a buffer of their addresses. A peer's bytes in it would be taken for objects, and its
own bytes tell a peer where this process' memory lies.
"""

from __future__ import annotations

from typing import Any


def check_plain(data: Any) -> int:
    """:raises TypeError: it holds Python objects. (Whether it is a buffer at all, others find out.)"""
    kind = data.__class__
    if kind is bytes or kind is bytearray:
        return 0
    if kind is memoryview:
        form = data.format
    else:
        try:
            with memoryview(data) as view:
                form = view.format
        except (TypeError, ValueError, BufferError):
            # No buffer; or an array with items that the buffer protocol has no format for.
            form = "O" if getattr(getattr(data, "dtype", None), "hasobject", False) else ""
    if form != "B" and "O" in form:
        _refuse_objects(form)
    return 0


def _refuse_objects(form: str) -> None:
    # Names of fields stand between colons.
    if any("O" in part for part in form.split(":")[::2]):
        raise TypeError(
            f"a buffer that holds Python objects (format {form!r}) cannot be sent, received into or "
            "registered: it has their addresses, not their values; convert it to an array of numbers, or "
            "encode the objects"
        )
