"""Control path on the software device: open, CQ, QP states, registered memory, events, fork."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import select
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from aiordma.errors import VerbsError
from aiordma.verbs.abi import Access, EventType, Mtu, QpState
from aiordma.verbs.backend import open_backend
from aiordma.verbs.cq import CompletionQueue
from aiordma.verbs.device import inspect
from aiordma.verbs.events import AsyncEvents, DeviceEvent
from aiordma.verbs.memory.pool import MemoryPool
from aiordma.verbs.qp import QpPath, QpSize, RcQp
from aiordma.verbs.registrar import DeviceRegistrar
from tests.forking import fork
from tests.health import descriptors
from tests.world import PERSONALITY, needs_pyverbs

from .conftest import DEVICE, state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.verbs.device import Backend

# Of verbs.h; pyverbs has them in another module since rdma-core 59.
IBV_WR_RDMA_WRITE = 0
IBV_SEND_SIGNALED = 1 << 1


@pytest.fixture
def pd(backend: Backend) -> Iterator[Any]:
    made = backend.alloc_pd()
    yield made
    made.close()


@pytest.fixture
def pair(backend: Backend, queue: CompletionQueue, pd: Any) -> Iterator[tuple[RcQp, RcQp]]:
    left, right = (RcQp(backend, pd, queue, QpSize()) for _ in range(2))
    yield left, right
    left.close()
    right.close()


def connect(left: RcQp, right: RcQp, path: QpPath | None = None) -> None:
    for qp in (left, right):
        qp.to_init(path)
    left.to_rtr(right.address, path)
    right.to_rtr(left.address, path)
    left.to_rts(right.address, path)
    right.to_rts(left.address, path)


def test_the_open_device_describes_itself(backend: Backend, pd: Any) -> None:
    assert any(backend.gid.raw)
    assert backend.mtu in Mtu
    assert backend.limits.max_qp_wr >= 256
    assert backend.limits.max_sge >= 2
    assert backend.limits.max_cqe >= 4096
    queue = CompletionQueue(backend, 16)
    RcQp(backend, pd, queue, QpSize()).close()  # the first one finds what goes inline
    queue.close()
    if backend.is_soft and PERSONALITY == "soft":
        assert backend.limits.max_inline_bytes == 1 << 20


def test_an_engine_opens_its_own_context() -> None:
    first, second = open_backend(DEVICE), open_backend(DEVICE)
    assert first.context is not second.context
    first.close()
    first.close()
    CompletionQueue(second, 4).close()
    second.close()


def test_opening_and_closing_leaks_no_descriptor() -> None:
    open_backend(DEVICE).close()
    before = len(descriptors())
    for _ in range(5):
        backend = open_backend(DEVICE)
        CompletionQueue(backend, 16).close()
        backend.close()
    assert len(descriptors()) == before


def test_functions_are_those_of_the_device(backend: Backend) -> None:
    assert backend.symbol("ibv_get_cq_event") != 0
    assert backend.symbol("ibv_ack_cq_events") != backend.symbol("ibv_get_cq_event")


@pytest.mark.parametrize("depth", [1, 5, 4096])
def test_a_cq_has_at_least_the_depth_asked_for(backend: Backend, depth: int) -> None:
    queue = CompletionQueue(backend, depth)
    assert queue.depth >= depth
    queue.close()
    queue.close()


def test_a_cq_deeper_than_the_device_allows_gets_the_maximum(backend: Backend) -> None:
    queue = CompletionQueue(backend, 1 << 30)
    assert queue.depth == backend.limits.max_cqe
    queue.close()
    with pytest.raises(ValueError, match="0 entries"):
        CompletionQueue(backend, 0)


def test_a_qp_gets_what_it_asked_for_and_all_inline_there_is(pair: tuple[RcQp, RcQp]) -> None:
    size = pair[0].size
    assert size.send_wr >= QpSize().send_wr
    assert size.recv_wr >= QpSize().recv_wr
    assert size.send_sge >= 2
    assert size.inline_bytes == pair[1].size.inline_bytes
    assert size.inline_bytes is not None
    assert size.inline_bytes >= 64
    assert pair[0].number != pair[1].number


def test_sizes_above_the_limits_are_cut(backend: Backend, queue: CompletionQueue, pd: Any) -> None:
    # Not the device's own: some would spend a second and a gigabyte on them.
    backend.limits.max_qp_wr = 100
    backend.limits.max_sge = 3
    qp = RcQp(backend, pd, queue, QpSize(1 << 30, 1 << 30, 1 << 20, 1 << 20, inline_bytes=64))
    assert 100 <= qp.size.send_wr < 1000
    assert 3 <= qp.size.send_sge < 100
    assert qp.size.inline_bytes is not None
    assert 64 <= qp.size.inline_bytes
    qp.close()


def test_a_qp_goes_up_down_and_up_again(pair: tuple[RcQp, RcQp]) -> None:
    left, right = pair
    psns = set()
    for _ in range(4):
        psns.add(left.psn)
        connect(left, right)
        assert state_of(left) == state_of(right) == QpState.RTS
        left.to_error()
        assert state_of(left) == QpState.ERR
        for qp in pair:
            qp.to_reset()
            assert state_of(qp) == QpState.RESET
    # Late packets of one connection must not fit into the next one.
    assert len(psns) > 1


def test_a_step_that_is_not_allowed_is_refused_and_changes_nothing(pair: tuple[RcQp, RcQp]) -> None:
    left, right = pair
    with pytest.raises(VerbsError, match=f"QP {left.number} RESET to RTS") as caught:
        left.to_rts(right.address)
    assert caught.value.errno == errno.EINVAL
    assert caught.value.operation == "ibv_modify_qp"
    assert left.state == state_of(left) == QpState.RESET
    left.to_init()
    with pytest.raises(VerbsError, match="INIT to RTS"):
        left.to_rts(right.address)
    assert state_of(left) == QpState.INIT


def test_a_peer_address_that_is_no_address_is_refused(pair: tuple[RcQp, RcQp]) -> None:
    left, right = pair
    left.to_init()
    with pytest.raises(ValueError, match="16 bytes"):
        left.to_rtr(right.address._replace(gid=b"short"))
    assert state_of(left) == QpState.INIT


def write(backend: Backend, qp: RcQp, queue: CompletionQueue, source: Any, target: Any, length: int) -> int:
    """One signalled RDMA WRITE through pyverbs; returns the completion's status."""
    wr = importlib.import_module("pyverbs.wr")
    request = wr.SendWR(
        wr_id=7,
        opcode=IBV_WR_RDMA_WRITE,
        num_sge=1,
        sg=[wr.SGE(source.address, length, source.lkey)],
        send_flags=IBV_SEND_SIGNALED,
    )
    request.set_wr_rdma(target.rkey, target.address)
    queue.cq.req_notify()
    qp.qp.post_send(request)
    poll = select.poll()
    poll.register(queue.fd, select.POLLIN)
    assert poll.poll(10_000), "no completion event"
    queue.channel.get_cq_event(queue.cq)
    (completion,) = queue.cq.poll(1)[1]
    assert completion.wr_id == 7
    return int(completion.status)


@needs_pyverbs
def test_blocks_of_the_pool_carry_data_between_qps(
    backend: Backend, queue: CompletionQueue, pd: Any, pair: tuple[RcQp, RcQp]
) -> None:
    connect(*pair)
    pool = MemoryPool()
    local = pool.arena(DeviceRegistrar(backend, pd, remote=False))
    remote = pool.arena(DeviceRegistrar(backend, pd, remote=True), first_slab_bytes=256 * 1024)
    source, target = local.allocate(4096), remote.allocate(100_000)
    source.view()[:5] = b"hello"
    assert write(backend, pair[0], queue, source, target, 5) == 0
    assert bytes(target.view()[:6]) == b"hello\0"
    # A slab for sending gives peers no rights: the same WRITE to it fails, and breaks only this connection.
    other = local.allocate(4096)
    assert write(backend, pair[0], queue, source, other, 5) != 0
    assert not any(other.view())
    assert state_of(pair[0]) == QpState.ERR
    for block in (source, other):
        block.free()
    target.free(used_bytes=5)
    pool.close()
    assert pool.statistics().registered_bytes == 0


def test_registered_memory_is_given_back(backend: Backend, pd: Any) -> None:
    before = len(descriptors())
    for _ in range(20):
        pool = MemoryPool(slab_bytes=1 << 20)
        pool.arena(DeviceRegistrar(backend, pd, remote=True)).allocate(4096).free()
        pool.close()
    assert len(descriptors()) == before


def test_a_registration_that_is_refused_is_an_os_error(backend: Backend, pd: Any) -> None:
    with pytest.raises(OSError, match="bytes"):
        DeviceRegistrar(backend, pd, remote=True).register(1 << 60)


@needs_pyverbs
def test_a_refused_access_is_reported_as_event_on_the_responder(
    backend: Backend, queue: CompletionQueue, pd: Any, pair: tuple[RcQp, RcQp]
) -> None:
    if not backend.is_soft:
        pytest.skip("rdma_rxe raises no asynchronous event for a refused access")
    events = AsyncEvents(backend)
    assert events.read() == []
    path = QpPath(access=Access.LOCAL_WRITE)
    connect(*pair, path)
    pool = MemoryPool()
    block = pool.arena(DeviceRegistrar(backend, pd, remote=True)).allocate(4096)
    assert write(backend, pair[0], queue, block, block, 8) != 0
    poll = select.poll()
    poll.register(events.fd, select.POLLIN)
    assert poll.poll(10_000), "no asynchronous event"
    (event,) = events.read()
    assert event.source == "qp"
    assert event.number == pair[1].number
    assert event.is_fatal
    assert event.type in (EventType.QP_ACCESS_ERR, EventType.QP_REQ_ERR)
    assert events.read() == []
    block.free()
    pool.close()


def test_events_read_well() -> None:
    assert str(DeviceEvent(EventType.PORT_ERR, "port", 1)) == "PORT_ERR on port 0x1"
    assert str(DeviceEvent(EventType.DEVICE_FATAL, "device", 0)) == "DEVICE_FATAL"
    assert str(DeviceEvent(99, "device", 0)) == "event 99"
    assert not DeviceEvent(EventType.COMM_EST, "qp", 5).is_fatal


def test_an_interpreter_that_ends_with_everything_open_is_quiet() -> None:
    program = """
from aiordma.verbs.backend import open_backend
from aiordma.verbs.cq import CompletionQueue
from aiordma.verbs.device import inspect
from aiordma.verbs.memory.pool import MemoryPool
from aiordma.verbs.qp import QpSize, RcQp
from aiordma.verbs.registrar import DeviceRegistrar
backend = open_backend()
pd = backend.alloc_pd()
queue = CompletionQueue(backend, 64)
qp = RcQp(backend, pd, queue, QpSize())
block = MemoryPool().arena(DeviceRegistrar(backend, pd, remote=True)).allocate(4096)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def in_child(check: Any) -> str:
    """Runs ``check`` in a forked child; its return value, or its error."""
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        try:
            answer = str(check())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        answer = answers.read()
    assert os.waitpid(child, 0)[1] == 0
    return answer


@needs_pyverbs
def test_a_forked_child_may_not_use_the_device_and_does_it_no_harm(
    backend: Backend, queue: CompletionQueue, pd: Any, pair: tuple[RcQp, RcQp]
) -> None:
    connect(*pair)
    for use in (pair[0].to_error, backend.alloc_pd, lambda: CompletionQueue(backend, 4)):
        assert "was opened by process" in in_child(use)

    def forget() -> str:
        nonlocal backend, queue, pd, pair
        for thing in (*pair, queue, backend):
            thing.close()
            # Nothing but the child's protection keeps these alive now.
            thing.__dict__.clear()
        del pair, queue, pd, backend, thing
        gc.collect()
        return "gone"

    assert in_child(forget) == "gone"
    assert state_of(pair[0]) == QpState.RTS
    pool = MemoryPool()
    block = pool.arena(DeviceRegistrar(backend, pd, remote=True)).allocate(4096)
    assert write(backend, pair[0], queue, block, block, 8) == 0
    block.free()
    pool.close()


def test_a_forked_child_opens_its_own(backend: Backend) -> None:
    def use() -> str:
        own = open_backend(DEVICE)
        CompletionQueue(own, 4).close()
        own.close()
        return own.name

    assert in_child(use) == backend.name


def test_the_gid_table_is_read_at_once(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    """Slot by slot costs a call each, and a kernel device has up to 1024 of them, nearly all empty."""
    inquiries: list[int] = []

    class Context:
        def query_gid_table(self, slots: int) -> Any:
            inquiries.append(slots)
            return backend.context.query_gid_table(slots)

        def __getattr__(self, name: str) -> Any:
            assert name in ("query_device", "query_port"), name
            return getattr(backend.context, name)

    found = inspect(backend.name, Context(), backend.binding, backend.soft, backend.is_iwarp)
    assert len(inquiries) == 1
    assert (found.port, found.gid) == (backend.port, backend.gid)
