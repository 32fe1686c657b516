"""An open device for the tests that need one: the one aiordma would use here, or what AIORDMA_DEVICE says."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

import pytest

from aiordma.verbs.abi import QpMask, QpState
from aiordma.verbs.backend import open_backend
from aiordma.verbs.cq import CompletionQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.verbs.device import Backend
    from aiordma.verbs.qp import RcQp

DEVICE = os.environ.get("AIORDMA_DEVICE") or None


@pytest.fixture
def backend() -> Iterator[Backend]:
    opened = open_backend(DEVICE)
    yield opened
    opened.close()


@pytest.fixture
def queue(backend: Backend) -> Iterator[CompletionQueue]:
    made = CompletionQueue(backend, 64)
    yield made
    made.close()


def state_of(qp: RcQp) -> QpState:
    """The state the device has it in: an error moves a QP to ERR without being asked."""
    soft = qp._backend.soft
    library = ctypes.CDLL("libibverbs.so.1" if soft is None else str(soft.path))
    attr, init = ctypes.create_string_buffer(512), ctypes.create_string_buffer(512)  # larger than the structs
    assert library.ibv_query_qp(ctypes.c_void_p(qp.pointer), attr, int(QpMask.STATE), init) == 0
    return QpState(ctypes.c_int.from_buffer(attr).value)  # its first field
