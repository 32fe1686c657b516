"""The C pointers behind pyverbs' objects, on the software device."""

from __future__ import annotations

import ctypes
import importlib
import os
from typing import TYPE_CHECKING, Any

import pytest

from aiordma.verbs.abi import EventType
from aiordma.verbs.cq import CompletionQueue
from aiordma.verbs.qp import QpSize, RcQp
from tests.world import needs_pyverbs

if TYPE_CHECKING:
    from aiordma.verbs.device import Backend


@pytest.fixture
def accessors(backend: Backend) -> Any:
    return backend.binding.pointers


@needs_pyverbs
def test_the_proof_refuses_objects_that_do_not_belong_together(
    backend: Backend, queue: CompletionQueue, accessors: Any
) -> None:
    memory = ctypes.create_string_buffer(4096)
    address = ctypes.addressof(memory)
    pd, other_pd = backend.alloc_pd(), backend.alloc_pd()
    other_queue = CompletionQueue(backend, 8)
    qp = RcQp(backend, pd, queue, QpSize())
    mr = backend.binding.MR(pd, 4096, 1, address)
    good: dict[str, Any] = {"qp_num": qp.number, "lkey": mr.lkey, "address": address}

    def check(wrong_pd: Any = pd, channel: Any = queue.channel, cq: Any = queue.cq, **values: int) -> None:
        accessors.check(backend.context, wrong_pd, channel, cq, qp.qp, mr, **{**good, **values})

    check()
    for wrong, names in (
        ({"wrong_pd": other_pd}, "QP, MR"),
        ({"channel": other_queue.channel}, "CQ"),
        ({"cq": other_queue.cq}, "CQ, QP"),
        ({"qp_num": qp.number + 1}, "QP"),
        ({"lkey": mr.lkey + 1}, "MR"),
        ({"address": address + 8}, "MR"),
    ):
        with pytest.raises(RuntimeError, match=f"layout of pyverbs' {names} is not"):
            check(**wrong)
    mr.close()
    with pytest.raises(RuntimeError, match="layout of pyverbs' MR is not"):
        check()
    qp.close()
    other_queue.close()
    for domain in (pd, other_pd):
        domain.close()


def test_what_is_closed_has_no_pointer(backend: Backend, accessors: Any) -> None:
    pd = backend.alloc_pd()
    queue = CompletionQueue(backend, 8)
    qp = RcQp(backend, pd, queue, QpSize())
    assert accessors.qp_pointer(qp.qp) == qp.pointer != 0
    assert accessors.cq_pointer(queue.cq) == queue.cq_pointer != 0
    qp.close()
    queue.close()
    pd.close()
    for function, closed in (
        (accessors.qp_pointer, qp.qp),
        (accessors.cq_pointer, queue.cq),
        (accessors.cq_depth, queue.cq),
        (accessors.comp_channel_pointer, queue.channel),
        (accessors.comp_channel_fd, queue.channel),
        (accessors.pd_pointer, pd),
    ):
        with pytest.raises(ValueError, match="is closed"):
            function(closed)


def test_descriptors_are_open_ones(backend: Backend, queue: CompletionQueue, accessors: Any) -> None:
    assert accessors.comp_channel_fd(queue.channel) == queue.fd
    assert not os.get_blocking(queue.fd)
    os.fstat(accessors.async_fd(backend.context))


@needs_pyverbs
@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (EventType.PORT_ERR, "port"),
        (EventType.GID_CHANGE, "port"),
        (EventType.CQ_ERR, "cq"),
        (EventType.SRQ_LIMIT_REACHED, "srq"),
        (EventType.DEVICE_FATAL, "device"),
    ],
)
def test_an_event_tells_what_it_is_about(accessors: Any, kind: EventType, source: str) -> None:
    event = importlib.import_module("pyverbs.device").AsyncEvent(int(kind))
    assert accessors.async_event_source(event) == (source, 0)
