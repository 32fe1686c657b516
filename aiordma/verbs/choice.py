"""The choice between the kernel's RDMA devices and the software device, made without pyverbs.

It is made first, because the software device works only if its library is in the global symbol scope of the
process before pyverbs is imported. ``import_order`` makes it early, ``backend`` acts on it.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from ..errors import Code, NegotiationError
from . import hardware, softlib

if TYPE_CHECKING:
    from .hardware import HardwareDevice
    from .softlib import SoftLibrary

logger = logging.getLogger("aiordma.verbs")


def choose(device: str | None, kernel: list[HardwareDevice] | None = None) -> SoftLibrary | None:
    """Decide, and load the software device's library if it will be used. Imports nothing of pyverbs.

    :param kernel: the kernel's devices, if they are known (:func:`.hardware.scan`).
    :raises NegotiationError: RDMA is switched off, or the library cannot be loaded.
    """
    if device == "none":
        raise NegotiationError(Code.DISABLED, "AIORDMA_DEVICE=none or Config(device='none')")
    if kernel is None:
        kernel = hardware.scan()
    if device in (None, "auto"):
        for found in kernel:
            if found.problem:
                logger.debug("RDMA device %s is not used: %s", found.name, found.problem)
        use_kernel = any(not found.problem for found in kernel)
    else:
        names = {found.name for found in kernel}
        use_kernel = {name_and_port(name)[0] for name in names_in(device or "")} <= names
    if use_kernel:
        return None
    try:
        return softlib.load()
    except OSError as error:
        text = error.strerror or str(error)
        if device not in (None, "soft", "auto"):
            listed = ", ".join(found.name for found in kernel) or "none"
            text = f"the kernel has no device {device!r} (it has: {listed}), and {text}"
        raise NegotiationError(Code.NO_SOFT_DEVICE, text) from error


def preload(device: str | None) -> None:
    """Load the software device's library now if it will be used; pyverbs may be imported afterwards.

    Never raises: opening a device reports the reason.
    """
    if "pyverbs.device" not in sys.modules:
        try:
            choose(device)
        except NegotiationError as error:
            logger.debug("no software device yet: %s", error)


def name_and_port(device: str | None) -> tuple[str | None, int]:
    """The name and the port of ``name:port``; port 0: any."""
    name, _, port = (device or "").partition(":")
    return (name, int(port)) if port.isdecimal() else (device, 0)


def names_in(device: str) -> list[str]:
    """The names of a list with commas, each once."""
    return list(dict.fromkeys(name.strip() for name in device.split(",") if name.strip()))
