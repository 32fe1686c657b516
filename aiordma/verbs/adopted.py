"""Devices that the program has opened itself, with pyverbs: aiordma's objects on them, beside the program's.

What aiordma makes there is made with its own binding, whatever ``AIORDMA_VERBS`` says: objects of that
binding may stand on a pointer, and closing them leaves alone what is the program's. pyverbs' layout is proved
first, as it is for pyverbs' objects of aiordma's own making.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Code, NegotiationError
from . import bindings, own, softlib
from ._window import MemoryWindow
from .abi import Access
from .backend import try_out
from .device import inspect, translated
from .lifetime import protect
from .own import _objects

if TYPE_CHECKING:
    from .device import Backend

_MAPS = Path("/proc/self/maps")
_LIBRARY = re.compile(r"/libibverbs[^/]*\.so[^/]*$")
_GUARD_BYTES = 64


def adopt(context: Any, pd: Any = None, port: int = 0) -> Backend:
    """A backend on the program's pyverbs ``Context``, and on its ``PD`` if one is given.

    :param port: the port to use; 0: the first one that is active.
    :raises TypeError: no objects of pyverbs. :raises ValueError: closed ones, or of two devices.
    :raises NegotiationError: the device, or this pyverbs, cannot be used.
    """
    _check_type("Context", context, "device")
    if pd is not None:
        _check_type("PD", pd, "pd")
    api = bindings.import_pyverbs()
    accessors = api.pointers
    pointer = accessors.context_pointer(context)
    if pd is not None and accessors.pd_context(pd) != pointer:
        raise ValueError("the PD was made on another Context than the one given")
    soft = softlib.loaded()
    if soft is not None and not soft.owns(pointer):
        soft = None
    path = None if soft is None else str(soft.path)
    library = own.library(path)
    if soft is None:
        _refuse_two_libraries()
    held = protect(
        _objects.borrowed_context(library, pointer, functools.partial(accessors.context_pointer, context))
    )
    is_iwarp = accessors.is_iwarp(context)
    try_out(inspect(held.name, context, api, soft, is_iwarp, port))
    backend = inspect(held.name, held, own.bind(path), soft, is_iwarp, port)
    if pd is not None:
        domain, still_open = accessors.pd_pointer(pd), functools.partial(accessors.pd_pointer, pd)
        backend.make_pd = lambda: protect(_objects.borrowed_pd(held, domain, still_open))
    try_out(backend)
    if pd is None:
        backend.after_close = _keep_open(backend, context, api).close
    return backend


def bytes_of_region(region: Any) -> MemoryWindow | None:
    """The memory of a pyverbs ``MR``, as a buffer that keeps the object; None: it is something else.

    :raises ValueError: it is closed, or empty.
    """
    module = sys.modules.get("pyverbs.mr")
    if module is None or not isinstance(region, module.MR):
        return None
    address, length = bindings.import_pyverbs().pointers.mr_span(region)
    if not length:
        raise ValueError("this pyverbs MR has no bytes (an implicit region): only others can be used")
    return MemoryWindow(address, (length,), 1, "B", owner=region)


def _keep_open(backend: Backend, context: Any, api: Any) -> Any:
    """While aiordma uses the device, pyverbs' ``Context.close()`` must fail: it closes the PDs that pyverbs
    knows first, and this one has a region of aiordma on it. Nothing else would stop it, and the process would
    end at the next look at a completion queue.
    """
    with translated(api, "ibv_alloc_pd", f"device {backend.name}"):
        guard = protect(api.PD(context))
    pointer = api.pointers.pd_pointer(guard)
    domain = _objects.borrowed_pd(backend.context, pointer, functools.partial(api.pointers.pd_pointer, guard))
    memory = ctypes.create_string_buffer(_GUARD_BYTES)
    with translated(backend.binding, "ibv_reg_mr", f"{_GUARD_BYTES} bytes on {backend.name}"):
        region = backend.binding.MR(domain, _GUARD_BYTES, int(Access.LOCAL_WRITE), ctypes.addressof(memory))
    backend.kept = (domain, protect(region), memory)
    return guard


def _check_type(kind: str, value: Any, module: str) -> None:
    loaded = sys.modules.get(f"pyverbs.{module}")
    if loaded is None or not isinstance(value, getattr(loaded, kind)):
        raise TypeError(f"{value!r} is no pyverbs.{module}.{kind}: aiordma takes devices that pyverbs opened")


def _refuse_two_libraries() -> None:
    """A device belongs to the libibverbs that opened it: the calls of another one would end the process."""
    try:
        lines = _MAPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    # The providers lie in a folder of nearly the same name.
    paths = {path for line in lines if _LIBRARY.search(path := line.split(maxsplit=5)[-1])}
    if len(paths) > 1:
        raise NegotiationError(
            Code.NO_PYVERBS,
            f"this pyverbs brings a libibverbs of its own ({', '.join(sorted(paths))} are loaded), and "
            "aiordma cannot use devices that it opened; use the distribution's pyverbs (apt-get install "
            "python3-pyverbs)",
        )
