"""Opens the RDMA device; the one place that imports pyverbs.

The order matters and cannot be repaired later: the software device works only if its library is in the
process's global symbol scope before pyverbs is imported. So ``choice`` decides from sysfs and the
configuration and loads the library (or not); then pyverbs is imported; then a check proves that its calls
reach the library that was chosen.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import logging
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Code, NegotiationError, VerbsError
from . import hardware, import_order
from .choice import choose, name_and_port, names_in
from .device import Backend, DeviceLimits, Pyverbs, inspect, translated
from .lifetime import protect

if TYPE_CHECKING:
    from .softlib import SoftLibrary

logger = logging.getLogger("aiordma.verbs")

_MODULES = ("device", "pd", "cq", "qp", "mr", "srq", "addr")
_DISTRIBUTION_PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")
_INSTALL = (
    "install the distribution's package (apt-get install python3-pyverbs) and run aiordma in a venv of the "
    "distribution's Python: /usr/bin/python3 -m venv --system-site-packages"
)

_pyverbs: Pyverbs | None = None
_proved: dict[str, DeviceLimits] = {}


def device_list(device: str | None, soft_devices: int = 1) -> list[str | None]:
    """What :func:`open_backend` is to be called with, for each device that ``Config.device`` means: several
    for a list of names, ``"auto"``, and ``"soft"`` where there is more than one software device.

    Raises NegotiationError when a part of the list is not possible at all.
    """
    soft = choose(device)
    if soft is not None:
        soft.show(soft_devices)
    if device is not None and "," in device:
        return [*names_in(device)]
    if device not in ("auto", "soft") or (device == "soft" and soft_devices == 1):
        return [device]
    api = _import_pyverbs()
    if soft is not None:
        _prove_interposed(api, soft)
    names: list[str | None] = []
    found = _candidates(device, api, soft is not None)
    for name in found if soft is None else found[:soft_devices]:
        ports = hardware.active_ports(name)
        names += [f"{name}:{port}" for port in ports] if len(ports) > 1 else [name]
    return names or [device]


def open_backend(device: str | None = None) -> Backend:
    """Open the device that is meant: its name, or name and port (``mlx5_0:2``), ``"soft"`` or ``"auto"`` for
    the first one of those, ``"none"``, or None for the first usable one of the kernel's, else the software
    device. The caller closes it.

    Raises NegotiationError with the reason in words when there is none.
    """
    soft = choose(device)
    api = _import_pyverbs()
    if soft is not None:
        _prove_interposed(api, soft)
    problems: list[VerbsError | NegotiationError] = []
    device, port = name_and_port(device)
    for name in _candidates(device, api, soft is not None):
        try:
            backend = _open(name, api, soft, port)
        except (VerbsError, NegotiationError) as error:
            problems.append(error)
            continue
        logger.debug(
            "device %s: port %d, gid[%d] %s, mtu %d, inline %d",
            name, backend.port, backend.gid.slot, backend.gid.raw.hex(":", 2), backend.mtu.size,
            backend.limits.max_inline_bytes,
        )  # fmt: skip
        return backend
    if not problems:
        raise NegotiationError(Code.NO_DEVICE, _there_are(device, api))
    if len(problems) == 1 and isinstance(problems[0], NegotiationError):
        raise problems[0]
    raise NegotiationError(Code.NO_SMCR_DEVICE, "; ".join(map(str, problems))) from problems[0]


def _open(name: str, api: Pyverbs, soft: SoftLibrary | None, port: int) -> Backend:
    from . import _accessors

    with translated(api, "ibv_open_device", name):
        context = protect(api.Context(name=name))
    try:
        is_soft = soft is not None and soft.owns(_accessors.context_pointer(context))
        backend = inspect(name, context, api, soft if is_soft else None, _accessors.is_iwarp(context), port)
        if backend.by_cm:
            backend.rdma_cm()
        _prove_layout(backend)
    except BaseException:
        context.close()
        raise
    return backend


def _candidates(device: str | None, api: Pyverbs, soft: bool) -> list[str]:
    names = _device_names(api)
    if device not in (None, "soft", "auto"):
        return [name for name in names if name == device]
    kernel = {found.name: found.problem for found in hardware.scan()}
    if soft:
        return [name for name in names if name not in kernel]
    return [name for name in names if not kernel.get(name)]


def _device_names(api: Pyverbs) -> list[str]:
    try:
        return [entry.name.decode() for entry in api.get_device_list()]
    except api.PyverbsError:
        # Without any RDMA in the kernel libibverbs has no list, not an empty one.
        return []


def _there_are(device: str | None, api: Pyverbs) -> str:
    problems = {found.name: found.problem for found in hardware.scan()}
    names = sorted({*problems, *_device_names(api)})
    listed = ", ".join(f"{name} ({problems[name]})" if problems.get(name) else name for name in names)
    wanted = "" if device in (None, "soft", "auto") else f"none is called {device!r}; "
    return f"{wanted}there are: {listed or 'none'}"


def _import_pyverbs() -> Pyverbs:
    global _pyverbs
    if _pyverbs is not None:
        return _pyverbs
    import_order.stop()
    root = logging.getLogger()
    # Importing pyverbs calls logging.basicConfig(), which leaves a root logger alone that has a handler.
    guard = logging.NullHandler()
    root.addHandler(guard)
    try:
        modules: dict[str, Any] = {name: importlib.import_module(f"pyverbs.{name}") for name in _MODULES}
        error_module = importlib.import_module("pyverbs.pyverbs_error")
    except ImportError as error:
        raise _explain_missing_pyverbs(error) from error
    finally:
        root.removeHandler(guard)
    try:
        importlib.import_module("aiordma.verbs._accessors")
    except (ImportError, ValueError) as error:
        raise _explain_missing_accessors(error) from error
    _pyverbs = Pyverbs(
        Context=modules["device"].Context,
        PD=modules["pd"].PD,
        CompChannel=modules["cq"].CompChannel,
        CQ=modules["cq"].CQ,
        QP=modules["qp"].QP,
        QPAttr=modules["qp"].QPAttr,
        QPCap=modules["qp"].QPCap,
        QPInitAttr=modules["qp"].QPInitAttr,
        MR=modules["mr"].MR,
        AH=modules["addr"].AH,
        AHAttr=modules["addr"].AHAttr,
        GID=modules["addr"].GID,
        GlobalRoute=modules["addr"].GlobalRoute,
        get_device_list=modules["device"].get_device_list,
        PyverbsError=error_module.PyverbsError,
    )
    return _pyverbs


def _explain_missing_pyverbs(error: ImportError) -> NegotiationError:
    this = f"Python {sys.version_info.major}.{sys.version_info.minor} ({sys.executable})"
    spec = importlib.util.find_spec("pyverbs")
    locations = list(spec.submodule_search_locations or []) if spec else []
    if locations:
        built_for = _built_for(Path(locations[0]), "device")
        if built_for and sysconfig.get_config_var("SOABI") not in built_for:
            return NegotiationError(
                Code.OTHER_PYTHON, f"pyverbs is built for {', '.join(built_for)}, this is {this}; {_INSTALL}"
            )
        return NegotiationError(Code.NO_PYVERBS, f"pyverbs does not import: {error}; {_INSTALL}")
    built_for = _built_for(_DISTRIBUTION_PYVERBS, "device")
    if built_for and sysconfig.get_config_var("SOABI") in built_for:
        return NegotiationError(
            Code.NO_PYVERBS,
            f"it is installed in {_DISTRIBUTION_PYVERBS.parent}, which this environment does not see; "
            "make the venv with --system-site-packages",
        )
    if built_for:
        return NegotiationError(
            Code.OTHER_PYTHON,
            f"the distribution's pyverbs is built for {', '.join(built_for)}, this is {this}; {_INSTALL}",
        )
    return NegotiationError(Code.NO_PYVERBS, f"no module pyverbs for {this}; {_INSTALL}")


def _explain_missing_accessors(error: Exception) -> NegotiationError:
    directories = [Path(__file__).parent, *map(Path, sys.modules["aiordma.verbs"].__path__)]
    built_for = sorted({tag for directory in directories for tag in _built_for(directory, "_accessors")})
    if not built_for:
        return NegotiationError(
            Code.CONFIGURATION,
            "aiordma was built without <infiniband/verbs.h>; install libibverbs-dev and build aiordma again",
        )
    if sysconfig.get_config_var("SOABI") not in built_for:
        return NegotiationError(
            Code.OTHER_PYTHON,
            f"aiordma is built for {', '.join(built_for)}; install it again with {sys.executable}",
        )
    return NegotiationError(Code.NO_PYVERBS, f"aiordma's compiled modules do not fit this pyverbs: {error}")


def _built_for(directory: Path, stem: str) -> list[str]:
    """SOABI tags (``cpython-311-x86_64-linux-gnu``) of the extension modules called ``stem``."""
    try:
        return sorted(path.name[len(stem) + 1 : -3] for path in directory.glob(f"{stem}.cpython-*.so"))
    except OSError:
        return []


def _prove_interposed(api: Pyverbs, soft: SoftLibrary) -> None:
    before = soft.calls()
    _device_names(api)
    if soft.calls() == before:
        raise NegotiationError(
            Code.NO_SOFT_DEVICE,
            "pyverbs was imported before it and is bound to the real libibverbs; import aiordma before "
            "pyverbs (where the kernel has RDMA devices of its own, set AIORDMA_DEVICE=soft too), or start "
            f"the program with LD_PRELOAD={soft.path}",
        )


def _prove_layout(backend: Backend) -> None:
    """Once per process and device: check the C layout on live objects, and find out how much goes inline."""
    known = _proved.get(backend.name)
    if known is not None:
        backend.limits.max_inline_bytes = known.max_inline_bytes
        return
    from . import _accessors
    from .cq import CompletionQueue
    from .qp import QpSize, RcQp

    api = backend.pyverbs
    pd = backend.alloc_pd()
    queue = CompletionQueue(backend, 16)
    memory = ctypes.create_string_buffer(64)
    address = ctypes.addressof(memory)
    try:
        qp = RcQp(backend, pd, queue, QpSize())
        try:
            with translated(api, "ibv_reg_mr", "64 bytes, to check pyverbs"):
                region = api.MR(pd, 64, 1, address)
            try:
                _accessors.check(
                    backend.context, pd, queue.channel, queue.cq, qp.qp, region,
                    qp_num=qp.qp.qp_num, lkey=region.lkey, address=address,
                )  # fmt: skip
            except RuntimeError as error:
                raise NegotiationError(Code.NO_PYVERBS, str(error)) from error
            finally:
                region.close()
        finally:
            qp.close()
    finally:
        queue.close()
        pd.close()
    _proved[backend.name] = backend.limits
