"""Memory of this end, as operations take it: buffers, arrays with steps, lists, and pieces of regions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ..verbs._dlpack import imported
from ..verbs._spans import Spans
from .region import Piece, Pieces, Region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer


class Array(Protocol):
    """An array that speaks DLPack, such as a tensor."""

    def __dlpack__(self) -> Any:
        """A capsule with its memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where that is."""


if TYPE_CHECKING:
    #: What an operation takes. (numpy's arrays are buffers, and say so to type checkers from Python 3.12 on.)
    Memory = Buffer | Array | Piece | Pieces | Sequence[Buffer | Array | Piece]


def resolve(local: Memory, *, writable: bool) -> tuple[Spans, Region | None]:
    """The pieces of it, and the region that all of them lie in; None: the memory is not registered.

    :raises BufferError: it is read-only and must not be. :raises TypeError: it is no buffer.
    """
    if isinstance(local, (list, tuple)):
        return _listed(local, writable)
    if isinstance(local, Region):
        local = local[:]
    if isinstance(local, Piece):
        local = local.region.pieces([(local.start, local.stop)])
    if isinstance(local, Pieces):
        if writable and local.region.readonly:
            raise BufferError("what is read into must be writable")
        return local.spans, local.region
    return Spans.buffers([_buffer(local)], writable), None


def _buffer(local: Any) -> Buffer:
    """:raises TypeError: it is none, and no array that can be used as one."""
    try:
        return memoryview(local)
    except TypeError:
        if not hasattr(local, "__dlpack__"):
            raise
    return imported(local)


def _listed(items: Sequence[Buffer | Array | Piece], writable: bool) -> tuple[Spans, Region | None]:
    pieces = [each[:] if isinstance(each, Region) else each for each in items]
    region = pieces[0].region if pieces and isinstance(pieces[0], Piece) else None
    inside = [(each.start, each.stop) for each in pieces if isinstance(each, Piece) and each.region is region]
    if region is not None and len(inside) == len(pieces):
        return resolve(region.pieces(inside), writable=writable)
    return (
        Spans.buffers([each.view if isinstance(each, Piece) else _buffer(each) for each in pieces], writable),
        None,
    )


def resolve_exactly(local: Memory, nbytes: int, *, writable: bool) -> tuple[Spans, Region | None]:
    """As :func:`resolve`, for remote memory of ``nbytes`` bytes.

    :raises ValueError: it has another length.
    """
    found = resolve(local, writable=writable)
    length = found[0].nbytes
    if length != nbytes:
        del found  # the error's traceback would keep the user's buffers
        check_length(length, nbytes)
    return found


def check_length(local: int, remote: int) -> None:
    """:raises ValueError: they differ."""
    if local != remote:
        raise ValueError(f"the buffer has {local} bytes, this remote memory {remote}: slice it")
