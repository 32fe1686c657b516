"""Opens the RDMA device: the kernel's or the software device, through pyverbs or aiordma's own binding.

``choice`` decides from sysfs and the configuration, and loads the software device's library (or not); then
``bindings`` finds the binding whose calls reach that device.
"""

from __future__ import annotations

import ctypes
import logging
import os
from typing import TYPE_CHECKING, Any

from ..errors import Code, NegotiationError, VerbsError, remedy
from . import bindings, hardware
from .bindings import device_names
from .choice import choose, name_and_port, names_in
from .device import Backend, DeviceLimits, inspect, translated
from .lifetime import protect

if TYPE_CHECKING:
    from .binding import Binding
    from .cq import CompletionQueue
    from .hardware import HardwareDevice
    from .qp import RcQp
    from .softlib import SoftLibrary

logger = logging.getLogger("aiordma.verbs")

_proved: dict[tuple[str, str], DeviceLimits] = {}


def device_list(device: str | None, soft_devices: int = 1) -> list[str | None]:
    """What :func:`open_backend` is to be called with, for each device that ``Config.device`` means: several
    for a list of names, ``"auto"``, and ``"soft"`` where there is more than one software device.

    Raises NegotiationError when a part of the list is not possible at all.
    """
    kernel = hardware.scan()
    soft = choose(device, kernel)
    if soft is not None:
        soft.show(soft_devices)
    if device is not None and "," in device:
        return [*names_in(device)]
    if device not in ("auto", "soft") or (device == "soft" and soft_devices == 1):
        return [device]
    api = bindings.find(soft)
    names: list[str | None] = []
    found = _candidates(device, api, soft is not None, kernel)
    for name in found if soft is None else found[:soft_devices]:
        ports = hardware.active_ports(name)
        names += [f"{name}:{port}" for port in ports] if len(ports) > 1 else [name]
    return names or [device]


def open_backend(device: str | None = None, kernel: list[HardwareDevice] | None = None) -> Backend:
    """Open the device that is meant: its name, or name and port (``mlx5_0:2``), ``"soft"`` or ``"auto"`` for
    the first one of those, ``"none"``, or None for the first usable one of the kernel's, else the software
    device. The caller closes it.

    :param kernel: the kernel's devices, for a caller that must not wait for the file system.

    Raises NegotiationError with the reason in words when there is none.
    """
    if kernel is None:
        kernel = hardware.scan()
    soft = choose(device, kernel)
    api = bindings.find(soft)
    problems: list[VerbsError | NegotiationError] = []
    device, port = name_and_port(device)
    for name in _candidates(device, api, soft is not None, kernel):
        try:
            backend = _open(name, api, soft, port)
        except (VerbsError, NegotiationError) as error:
            problems.append(_known_problem(name, kernel) or error)
            continue
        logger.debug(
            "device %s: port %d, gid[%d] %s, mtu %d, inline %d",
            name, backend.port, backend.gid.slot, backend.gid.raw.hex(":", 2), backend.mtu.size,
            backend.limits.max_inline_bytes,
        )  # fmt: skip
        return backend
    if not problems:
        raise NegotiationError(Code.NO_DEVICE, _there_are(device, api, kernel))
    if len(problems) == 1 and isinstance(problems[0], NegotiationError):
        raise problems[0]
    codes = {problem.code if isinstance(problem, NegotiationError) else None for problem in problems}
    if len(codes) == 1 and (only := codes.pop()) is not None:
        raise NegotiationError(only, "; ".join(dict.fromkeys(map(str, problems)))) from problems[0]
    used_up = any(isinstance(problem, VerbsError) and remedy(problem.errno or 0) for problem in problems)
    code = Code.DEVICE_FAILURE if used_up else Code.NO_SMCR_DEVICE
    raise NegotiationError(code, "; ".join(map(str, problems))) from problems[0]


def _open(name: str, api: Binding, soft: SoftLibrary | None, port: int) -> Backend:
    with translated(api, "ibv_open_device", name):
        context = protect(api.Context(name=name))
    pointers = api.pointers
    try:
        is_soft = soft is not None and soft.owns(pointers.context_pointer(context))
        backend = inspect(name, context, api, soft if is_soft else None, pointers.is_iwarp(context), port)
        if backend.by_cm:
            backend.rdma_cm()
        try_out(backend)
    except _OtherLayout as error:
        context.close()
        if bindings.refuse_pyverbs(api, error.detail):
            return _open(name, bindings.find(soft), soft, port)
        raise
    except BaseException:
        context.close()
        raise
    return backend


def _candidates(device: str | None, api: Binding, soft: bool, kernel: list[HardwareDevice]) -> list[str]:
    names = device_names(api)
    if device not in (None, "soft", "auto"):
        return [name for name in names if name == device]
    problems = {found.name: found.problem for found in kernel}
    if soft:
        return [name for name in names if name not in problems]
    return [name for name in names if not problems.get(name)]


def _known_problem(name: str, kernel: list[HardwareDevice]) -> NegotiationError | None:
    """What sysfs and the device files say of a kernel's device that does not open: more than its errno."""
    for found in kernel:
        if found.name == name and found.problem:
            access = "give this user access to /dev/infiniband (containers: --device /dev/infiniband)"
            hint = f"; {access}" if "permission" in found.problem else ""
            return NegotiationError(Code.NO_SMCR_DEVICE, f"{name}: {found.problem}{hint}")
    return None


def _there_are(device: str | None, api: Binding, kernel: list[HardwareDevice]) -> str:
    problems = {found.name: found.problem for found in kernel}
    names = sorted({*problems, *device_names(api)})
    listed = ", ".join(f"{name} ({problems[name]})" if problems.get(name) else name for name in names)
    wanted = "" if device in (None, "soft", "auto") else f"none is called {device!r}; "
    return f"{wanted}there are: {listed or 'none'}"


class _OtherLayout(NegotiationError):
    """This pyverbs is not what aiordma was written for."""


def try_out(backend: Backend) -> None:
    """Once per process, device and binding: find out how much goes inline, and check pyverbs' C layout.

    :raises NegotiationError: it is another layout. :raises VerbsError: no queue pair can be made.
    """
    known = _proved.get((backend.name, backend.binding.name))
    if known is not None:
        backend.limits.max_inline_bytes = known.max_inline_bytes
        return
    # The software device is like a card that may have no such queue pairs, if it is told to be.
    is_itself = backend.soft is not None and os.environ.get("SOFTDEV_PERSONALITY", "soft") in ("", "soft")
    if is_itself and backend.binding.name == "own":
        return  # nothing to check, and its first queue pair shows the rest; this would take 0.4 ms
    from .cq import CompletionQueue
    from .qp import QpSize, RcQp

    pd = backend.alloc_pd()
    queue = CompletionQueue(backend, 16)
    try:
        qp = RcQp(backend, pd, queue, QpSize())
        try:
            if backend.binding.name == "pyverbs":
                _prove_layout(backend, pd, queue, qp)
        finally:
            qp.close()
    finally:
        queue.close()
        pd.close()
    _proved[backend.name, backend.binding.name] = backend.limits


def _prove_layout(backend: Backend, pd: Any, queue: CompletionQueue, qp: RcQp) -> None:
    api = backend.binding
    memory = ctypes.create_string_buffer(64)
    address = ctypes.addressof(memory)
    with translated(api, "ibv_reg_mr", "64 bytes, to check pyverbs"):
        region = api.MR(pd, 64, 1, address)
    try:
        api.pointers.check(
            backend.context, pd, queue.channel, queue.cq, qp.qp, region,
            qp_num=qp.qp.qp_num, lkey=region.lkey, address=address,
        )  # fmt: skip
    except RuntimeError as error:
        raise _OtherLayout(Code.NO_PYVERBS, str(error)) from error
    finally:
        region.close()
