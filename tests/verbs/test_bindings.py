"""Both verbs bindings keep one contract: the same tests on pyverbs and aiordma's own. And which is used."""

from __future__ import annotations

import ctypes
import errno
import re
import select
from typing import TYPE_CHECKING, Any

import pytest

from aiordma.errors import Code, NegotiationError, VerbsError
from aiordma.verbs import bindings, own
from aiordma.verbs.abi import EventType, QpState
from aiordma.verbs.backend import open_backend
from aiordma.verbs.cq import CompletionQueue
from aiordma.verbs.device import translated
from aiordma.verbs.events import AsyncEvents
from aiordma.verbs.own import _memory
from aiordma.verbs.qp import QpSize, RcQp
from aiordma.verbs.registrar import DeviceRegistrar
from aiordma.verbs.ud import AddressHandle, UdQp
from tests.health import descriptors
from tests.world import DEVICE as TEST_DEVICE
from tests.world import PYVERBS, needs_pyverbs

from .conftest import DEVICE, state_of
from .test_backend import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aiordma.verbs.binding import Binding
    from aiordma.verbs.device import Backend

BINDINGS = (pytest.param("pyverbs", marks=needs_pyverbs), "own")
#: Of ``enum ibv_access_flags``: a device that does not know it may ignore it.
RELAXED_ORDERING = 1 << 20
only_soft = pytest.mark.skipif(TEST_DEVICE != "soft", reason="only the software device does it on request")
HIDDEN = """
import sys
sys.path[:] = [entry for entry in sys.path if "dist-packages" not in entry]
"""


def opened_with(binding: str, monkeypatch: pytest.MonkeyPatch, device: str | None = DEVICE) -> Backend:
    monkeypatch.setenv(bindings.VARIABLE, binding)
    return open_backend(device)


@pytest.fixture(params=BINDINGS)
def bound(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    backend = opened_with(request.param, monkeypatch)
    assert backend.binding.name == request.param
    yield backend
    backend.close()


def is_siw(backend: Backend) -> bool:
    """The kernel's iWARP: no address handles, and its GIDs are no addresses."""
    return backend.is_iwarp and not backend.is_soft


def skip_on_siw(backend: Backend, why: str) -> None:
    if is_siw(backend):
        pytest.skip(f"iWARP: {why}")


def skip_by_cm(backend: Backend) -> None:
    if backend.by_cm:
        pytest.skip("iWARP: rdma_cm alone connects queue pairs")


def skip_without_datagrams(backend: Backend) -> None:
    if backend.is_iwarp:
        pytest.skip("iWARP: there are no datagrams")


def raw(backend: Backend) -> dict[str, Any]:
    """One object of each class, made straight with the binding."""
    api = backend.binding
    pd = api.PD(backend.context)
    channel = api.CompChannel(backend.context)
    cq = api.CQ(backend.context, 16, None, channel, 0)
    init = api.QPInitAttr(qp_type=2, scq=cq, rcq=cq, cap=api.QPCap(4, 4, 1, 1, 0), sq_sig_all=0)
    memory = ctypes.create_string_buffer(4096)
    route = api.GlobalRoute(
        dgid=api.GID(backend.gid.raw.hex(":", 2)), sgid_index=backend.gid.slot, hop_limit=1
    )
    objects = {
        "pd": pd,
        "channel": channel,
        "cq": cq,
        "qp": api.QP(pd, init),
        "mr": api.MR(pd, 4096, 1, ctypes.addressof(memory)),
        "memory": memory,
    }
    if not is_siw(backend):
        objects["ah"] = api.AH(pd, attr=api.AHAttr(is_global=1, port_num=backend.port, gr=route))
    return objects


def registered(backend: Backend, pd: Any, address: int, length: int) -> Any:
    with translated(backend.binding, "ibv_reg_mr", f"{length} bytes"):
        return backend.binding.MR(pd, length, 1, address)


def available() -> list[str]:
    return ["pyverbs", "own"] if PYVERBS else ["own"]


def forget() -> None:
    for function in (own.bind, own.library):
        function.cache_clear()


def number(error: Any) -> int:
    return abs(int(error.error_code))


def is_open(api: Binding, objects: dict[str, Any], name: str) -> bool:
    arguments = (objects["ah"], objects["pd"]) if name == "ah" else (objects[name],)
    function = getattr(api.pointers, {"channel": "comp_channel"}.get(name, name) + "_pointer")
    try:
        return bool(function(*arguments))
    except ValueError as error:
        if "is closed" not in str(error):
            raise
        return False


@needs_pyverbs
def test_both_see_the_same_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for name in ("pyverbs", "own"):
        backend = opened_with(name, monkeypatch)
        if backend.is_soft:  # what goes inline is found by the first queue pair
            pd, queue = backend.alloc_pd(), CompletionQueue(backend, 16)
            RcQp(backend, pd, queue, QpSize()).close()
            queue.close()
            pd.close()
        seen.append((
            backend.name, backend.is_soft, backend.is_iwarp, backend.port, backend.gid, backend.lid,
            backend.mtu, backend.limits, backend.context.num_comp_vectors,
            bindings.device_names(backend.binding),
        ))  # fmt: skip
        backend.check_port()
        backend.close()
    assert seen[0] == seen[1]


def test_a_queue_pair_goes_through_its_states(bound: Backend) -> None:
    skip_by_cm(bound)
    pd = bound.alloc_pd()
    queue = CompletionQueue(bound, 64)
    left, right = (RcQp(bound, pd, queue, QpSize(send_wr=16)) for _ in range(2))
    assert left.number != right.number
    assert left.size.send_wr >= 16
    with pytest.raises(VerbsError, match="RESET to RTS") as caught:
        left.to_rts(right.address)
    assert (caught.value.errno, caught.value.operation) == (errno.EINVAL, "ibv_modify_qp")
    for qp, peer in ((left, right), (right, left)):
        qp.to_init()
        qp.to_rtr(peer.address)
        qp.to_rts(peer.address)
        assert state_of(qp) == QpState.RTS
        assert qp.max_reads > 0
    left.to_error()
    left.to_reset()
    assert state_of(left) == QpState.RESET
    for each in (left, right, queue):
        each.close()
    pd.close()


def test_a_datagram_queue_pair_and_an_address_handle(bound: Backend) -> None:
    skip_without_datagrams(bound)
    pd = bound.alloc_pd()
    queue = CompletionQueue(bound, 64)
    qp = UdQp(bound, pd, queue, QpSize(), 0x1234)
    qp.start()
    handle = AddressHandle(bound, pd, bound.gid.raw)
    assert handle.pointer
    handle.close()
    handle.close()
    for each in (qp, queue):
        each.close()
    pd.close()


def test_regions_are_made_once_and_refused_where_there_is_nothing(bound: Backend) -> None:
    pd = bound.alloc_pd()
    registrar = DeviceRegistrar(bound, pd, remote=True)
    region = registrar.register(1 << 16)
    assert region.lkey
    registrar.release(region)
    with pytest.raises(bound.binding.error) as caught:
        bound.binding.MR(pd, 1 << 62, 1, 4096)
    assert number(caught.value) in (errno.EINVAL, errno.ENOMEM, errno.EFAULT)
    pd.close()


def test_failures_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same calls fail with the same VerbsError, whatever made the objects."""
    texts = []
    for name in available():
        backend = opened_with(name, monkeypatch)
        pd = backend.alloc_pd()
        queue = CompletionQueue(backend, 16)
        qp = RcQp(backend, pd, queue, QpSize())
        found = []
        for fails in (
            lambda: qp.to_rts(qp.address),  # noqa: B023 - called before the next turn
            lambda: registered(backend, pd, 4096, 1 << 62),  # noqa: B023
        ):
            with pytest.raises(VerbsError) as caught:
                fails()
            error = caught.value
            found.append((error.errno, error.operation, str(error).replace(f"QP {qp.number}", "QP N")))
        texts.append(found)
        qp.close()
        queue.close()
        pd.close()
        backend.close()
    assert all(each == texts[0] for each in texts)
    assert "ibv_modify_qp: Invalid argument (QP N RESET to RTS)" in texts[0][0][2]
    assert re.search("ibv_reg_mr: (Bad address|Invalid argument|Cannot allocate memory)", texts[0][1][2])


@pytest.mark.parametrize(
    ("closed", "gone"),
    [
        ("pd", {"pd", "qp", "mr", "ah"}),
        ("cq", {"cq", "qp"}),
        ("channel", {"channel", "cq", "qp"}),
        ("context", {"pd", "channel", "cq", "qp", "mr", "ah"}),
    ],
)
def test_closing_an_object_closes_what_was_made_on_it(bound: Backend, closed: str, gone: set[str]) -> None:
    objects = raw(bound)
    names, gone = objects.keys() - {"memory"}, gone & objects.keys()
    assert {name for name in names if is_open(bound.binding, objects, name)} == names
    (bound.context if closed == "context" else objects[closed]).close()
    assert {name for name in names if not is_open(bound.binding, objects, name)} == gone
    (bound.context if closed == "context" else objects[closed]).close()  # again: nothing happens


@only_soft
def test_events_before_one_that_cannot_be_kept(bound: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were acknowledged, and went with it."""
    assert bound.soft is not None
    events = AsyncEvents(bound)
    true, seen = events._source, list[object]()

    def source(event: Any) -> tuple[str, int]:
        seen.append(event)
        if len(seen) == 3:
            raise MemoryError
        found: tuple[str, int] = true(event)
        return found

    monkeypatch.setattr(events, "_source", source)
    for up in (False, True, False, True):
        bound.soft.port(bound.name, up=up)
    poll = select.poll()
    poll.register(events.fd, select.POLLIN)
    found: list[int] = []
    while len(seen) < 3:
        assert poll.poll(10_000), "no event"
        found += [event.type for event in events.read()]
    assert found == [EventType.PORT_ERR, EventType.PORT_ACTIVE]
    assert isinstance(events.failure, MemoryError)
    while len(found) < 3:
        assert poll.poll(10_000), "no event"
        found += [event.type for event in events.read()]
    assert found[2] == EventType.PORT_ACTIVE
    assert events.failure is None


@only_soft
def test_asynchronous_events(bound: Backend) -> None:
    assert bound.soft is not None
    events = AsyncEvents(bound)
    assert events.read() == []
    bound.soft.port(bound.name, up=False)
    bound.soft.port(bound.name, up=True)
    poll = select.poll()
    poll.register(events.fd, select.POLLIN)
    found: list[tuple[int, str, int]] = []
    while len(found) < 2:
        assert poll.poll(10_000), "no event"
        found += events.read()
    assert [tuple(each) for each in found] == [
        (EventType.PORT_ERR, "port", bound.port),
        (EventType.PORT_ACTIVE, "port", bound.port),
    ]


def test_a_device_that_is_not_there(bound: Backend) -> None:
    with pytest.raises(bound.binding.error, match="nosuchdevice0"):
        bound.binding.Context(name="nosuchdevice0")


# ---- aiordma's own


def test_gids_are_found_without_the_call_for_all(ours: Backend) -> None:
    """As before rdma-core 32, whose libibverbs gives them one by one."""
    skip_on_siw(ours, "GIDs are no addresses")
    slots = ours.context.query_port(ours.port).gid_tbl_len * ours.context.query_device().phys_port_cnt
    by_table = ours.context.query_gid_table(slots)
    assert by_table
    assert ours.context.query_gids_one_by_one(slots) == by_table
    assert ours.context.query_gids_one_by_one(1) == by_table[:1]


def test_a_region_at_an_address_of_choice(ours: Backend) -> None:
    """The three calls of registration; a fourth is refused where the device has none."""
    api, pd = ours.binding, ours.alloc_pd()
    memory = ctypes.create_string_buffer(8192)
    address = (ctypes.addressof(memory) + 4095) & ~4095
    regions = [
        api.MR(pd, 4096, 1, address),
        api.MR(pd, 4096, 1, address, iova=1 << 20),
        api.MR(pd, 4096, 1 | RELAXED_ORDERING, address),
        api.MR(pd, 4096, 1 | RELAXED_ORDERING, address, iova=1 << 20),
    ]
    assert len({region.lkey for region in regions}) == 4
    with pytest.raises(api.error, match="ibv_reg_dmabuf_mr") as caught:
        _memory.DmaBufMR(pd, 4096, 1, -1)
    assert number(caught.value) in (errno.EOPNOTSUPP, errno.EACCES, errno.EBADF, errno.EINVAL, errno.ENODEV)
    pd.close()
    with pytest.raises(ValueError, match="is closed"):
        _ = regions[1].lkey


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    backend = opened_with("own", monkeypatch)
    yield backend
    backend.close()


def test_what_nobody_closed_is_destroyed_with_its_objects(ours: Backend) -> None:
    """In a cycle, too, which is taken apart in any order: pyverbs' objects end the process then."""

    raw(ours).clear()
    before = len(descriptors())
    for _ in range(3):
        objects = raw(ours)
        objects["itself"] = objects  # only the garbage collector ends it
        del objects
    assert len(descriptors()) == before
    # Nothing is left on it that would keep the device from being closed.
    ours.close()


def test_nothing_is_made_on_closed_objects(ours: Backend) -> None:
    api, objects = ours.binding, raw(ours)
    attr, init = (
        api.QPAttr(),
        api.QPInitAttr(qp_type=2, scq=objects["cq"], rcq=objects["cq"], cap=api.QPCap(1, 1, 1, 1, 0)),
    )
    ours.context.close()
    uses: dict[str, Callable[[], Any]] = {
        "PD": lambda: api.MR(objects["pd"], 1, 1, 4096),
        "Context": lambda: api.PD(ours.context),
        "CompChannel": lambda: api.pointers.comp_channel_fd(objects["channel"]),
        "MR": lambda: objects["mr"].rkey,
        "QP": lambda: objects["qp"].modify(attr, 1),
    }
    for name, use in uses.items():
        with pytest.raises(ValueError, match=f"^this {name} is closed"):
            use()
    with pytest.raises(ValueError, match="is closed"):
        api.QP(objects["pd"], init)


def test_an_object_that_cannot_be_destroyed_stays_open(ours: Backend) -> None:
    """Here a PD with a region that was not registered through the binding."""
    library = ctypes.CDLL(str(ours.soft.path)) if ours.soft is not None else ctypes.CDLL("libibverbs.so.1")
    library.ibv_reg_mr.restype = ctypes.c_void_p
    pd, memory = ours.alloc_pd(), ctypes.create_string_buffer(64)
    pointer = ctypes.c_void_p(ours.binding.pointers.pd_pointer(pd))
    region = ctypes.c_void_p(library.ibv_reg_mr(pointer, memory, ctypes.c_size_t(64), 1))
    with pytest.raises(ours.binding.error, match="ibv_dealloc_pd") as caught:
        pd.close()
    assert number(caught.value) == errno.EBUSY
    assert library.ibv_dereg_mr(region) == 0
    with pd:
        assert ours.binding.pointers.pd_pointer(pd) == pointer.value
    pd.close()


def test_numbers_that_do_not_fit_are_refused(ours: Backend) -> None:
    with pytest.raises(OverflowError):
        ours.binding.QPAttr().timeout = 256
    with pytest.raises(ValueError, match="is no GID"):
        ours.binding.GID("0000:0001")


def test_a_library_without_the_functions_is_named() -> None:
    with pytest.raises(
        OSError, match=r"libc\.so\.6 has no function ibv_get_device_list \(IBVERBS_1\.1\): rdma-core 28"
    ):
        own._library.Library("libc.so.6", versioned=True)
    with pytest.raises(OSError, match="nolibrary"):
        own.bind("/nolibrary.so")


def test_libibverbs_serves_the_devices_of_the_kernel() -> None:
    """All its functions are there, in the versions that are wanted."""
    binding = own.bind(None)
    assert isinstance(bindings.device_names(binding), list)


def test_a_kernel_device_without_libibverbs_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bindings.VARIABLE, "own")
    monkeypatch.setattr(own, "LIBIBVERBS", "libnothing.so.1")
    forget()
    with pytest.raises(
        NegotiationError, match=r"libnothing\.so\.1.*apt-get install ibverbs-providers"
    ) as caught:
        bindings.find(None)
    forget()
    assert caught.value.code == Code.NO_SMCR_DEVICE


# ---- which one is used


def test_without_pyverbs_the_own_one_serves() -> None:
    before = f"{HIDDEN}\nimport sys; sys.modules['pyverbs'] = None"
    assert reason(before).startswith("opened soft0")


@needs_pyverbs
def test_a_pyverbs_that_cannot_be_used_is_left_alone(tmp_path: Path) -> None:
    package = tmp_path / "pyverbs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "device.cpython-399-x86_64-linux-gnu.so").touch()
    assert reason(PYTHONPATH=str(tmp_path)).startswith("opened soft0")
    assert reason("import pyverbs.device").startswith("opened soft0")


@needs_pyverbs
def test_a_pyverbs_of_another_layout_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from aiordma.verbs import backend as module

    def check(*_: Any, **__: Any) -> None:
        raise RuntimeError("another layout")

    first = opened_with("pyverbs", monkeypatch)
    monkeypatch.setattr(first.binding.pointers, "check", check)
    monkeypatch.setattr(bindings, "_refused", False)
    first.close()
    monkeypatch.setattr(module, "_proved", {})
    with pytest.raises(NegotiationError, match="another layout") as caught:
        opened_with("pyverbs", monkeypatch)
    assert caught.value.code == Code.NO_PYVERBS
    backend = opened_with("auto", monkeypatch)
    assert backend.binding.name == "own"
    backend.close()
    assert [record.levelname for record in caplog.records if "another layout" in record.message] == [
        "WARNING"
    ]


def test_a_choice_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        NegotiationError, match="AIORDMA_VERBS='mine' is not valid: it must be auto"
    ) as caught:
        opened_with("mine", monkeypatch)
    assert caught.value.code == Code.CONFIGURATION
