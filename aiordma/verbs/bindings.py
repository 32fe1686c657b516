"""Which verbs binding makes the objects: pyverbs where it can be used, else aiordma's own.

The one place that imports pyverbs. The order matters there and cannot be repaired later: pyverbs sees the
software device only if its library is in the process's global symbol scope before pyverbs is imported. A
check proves that its calls reach the library that was chosen. aiordma's own binding looks its functions up,
and needs no order.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any

from ..errors import Code, NegotiationError
from . import import_order, own
from .binding import Binding
from .installation import explain_missing_libibverbs, explain_missing_modules, explain_missing_pyverbs

if TYPE_CHECKING:
    from .softlib import SoftLibrary

logger = logging.getLogger("aiordma.verbs")

#: Chooses for the whole process: ``auto``, ``pyverbs`` or ``own``.
VARIABLE = "AIORDMA_VERBS"

_MODULES = ("device", "pd", "cq", "qp", "mr", "addr")
_pyverbs: Binding | None = None
#: Is pyverbs not used? Its errors are not kept: their tracebacks would keep the loop alive that met them.
_refused = False


def find(soft: SoftLibrary | None) -> Binding:
    """The binding for the software device, or (None) for the kernel's devices.

    :raises NegotiationError: there is none; the text says what to do.
    """
    global _refused
    wanted = _wanted()
    if wanted != "own" and (not _refused or wanted == "pyverbs"):
        try:
            return _checked_pyverbs(soft)
        except NegotiationError as error:
            if wanted == "pyverbs":
                raise
            _refused = True
            logger.debug("aiordma's own verbs binding is used: %s", error.text)
    return _own(soft)


def refuse_pyverbs(binding: Binding, why: str) -> bool:
    """pyverbs' objects are not what aiordma expects. True: :func:`find` now gives another binding."""
    global _refused
    if binding.name != "pyverbs" or _wanted() != "auto":
        return False
    _refused = True
    logger.warning("aiordma's own verbs binding is used: %s", why)
    return True


def _wanted() -> str:
    wanted = os.environ.get(VARIABLE) or "auto"
    if wanted not in ("auto", "pyverbs", "own"):
        text = f"{VARIABLE}={wanted!r} is not valid: it must be auto, pyverbs or own"
        raise NegotiationError(Code.CONFIGURATION, text)
    return wanted


def _own(soft: SoftLibrary | None) -> Binding:
    try:
        return own.bind(None if soft is None else str(soft.path))
    except ImportError as error:
        raise explain_missing_modules(error) from error
    except OSError as error:
        raise explain_missing_libibverbs(error) from error


def _checked_pyverbs(soft: SoftLibrary | None) -> Binding:
    binding = import_pyverbs()
    if soft is not None:
        _prove_interposed(binding, soft)
    return binding


def import_pyverbs() -> Binding:
    """pyverbs' binding, whichever library its calls reach.

    :raises NegotiationError: it cannot be imported; the text says what to do.
    """
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
        raise explain_missing_pyverbs(error) from error
    finally:
        root.removeHandler(guard)
    try:
        pointers = importlib.import_module("aiordma.verbs._accessors")
    except (ImportError, ValueError) as error:
        raise explain_missing_modules(error) from error
    _pyverbs = Binding(
        name="pyverbs",
        Context=modules["device"].Context,
        PD=modules["pd"].PD,
        CompChannel=modules["cq"].CompChannel,
        CQ=modules["cq"].CQ,
        QP=modules["qp"].QP,
        QPAttr=modules["qp"].QPAttr,
        QPCap=modules["qp"].QPCap,
        QPInitAttr=modules["qp"].QPInitAttr,
        MR=modules["mr"].MR,
        DmaBufMR=getattr(modules["mr"], "DmaBufMR", None),  # since rdma-core 34
        AH=modules["addr"].AH,
        AHAttr=modules["addr"].AHAttr,
        GID=modules["addr"].GID,
        GlobalRoute=modules["addr"].GlobalRoute,
        get_device_list=modules["device"].get_device_list,
        error=error_module.PyverbsError,
        pointers=pointers,
    )
    return _pyverbs


def _prove_interposed(binding: Binding, soft: SoftLibrary) -> None:
    before = soft.calls()
    device_names(binding)
    if soft.calls() == before:
        raise NegotiationError(
            Code.NO_SOFT_DEVICE,
            "pyverbs was imported before it and is bound to the real libibverbs; import aiordma before "
            "pyverbs (where the kernel has RDMA devices of its own, set AIORDMA_DEVICE=soft too), or start "
            f"the program with LD_PRELOAD={soft.path}",
        )


def device_names(binding: Binding) -> list[str]:
    """The devices that the binding shows."""
    try:
        return [entry.name.decode() for entry in binding.get_device_list()]
    except binding.error:
        # Without any RDMA in the kernel libibverbs has no list, not an empty one.
        return []
