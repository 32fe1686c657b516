"""Which messages take no time to serialise, however long they are.

distributed has a thread serialise and deserialise what is longer than ``distributed.comm.offload`` (10 MB),
so that the event loop is not held up. But the memory of an array is sent as it is, and is an array again at
the receiver: that takes less time than the way to the thread and back.
"""

from __future__ import annotations

import dask
import numpy as np
from distributed.protocol.serialize import Serialize

__all__ = ["is_quick"]

#: Objects in a message that are looked at; one with more takes some time.
_MOST_OBJECTS = 64
#: Of text and bytes that are part of a message.
_MOST_BYTES = 65536


def is_quick(msg: object) -> bool:
    """Whether it consists of a few arrays that are sent without a copy, and little else."""
    if type(msg) is not dict or "data" not in msg or dask.config.get("distributed.comm.compression"):
        return False
    waiting: list[object] = [msg]
    for _ in range(_MOST_OBJECTS):
        if not waiting:
            return True
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        elif isinstance(one, Serialize):
            if not _is_sent_as_it_is(one.data):
                return False
        elif not (isinstance(one, str | bytes) and len(one) <= _MOST_BYTES) and not isinstance(
            one, int | float | None
        ):
            return False
    return False


def _is_sent_as_it_is(data: object) -> bool:
    return (
        type(data) is np.ndarray
        and not data.dtype.hasobject
        and (data.flags.c_contiguous or data.flags.f_contiguous)
    )
