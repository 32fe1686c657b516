"""The device that a test's programs run on, and the faults that it injects."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

import pytest

LIBRARY = "libsoftdev.so"


class Device(NamedTuple):
    """What a program is told of its device."""

    #: As ``ibv_devices`` lists it.
    name: str
    #: Of the device, for programs that connect by address.
    address: str
    #: Of its GID table.
    gid_index: int
    #: The software device's, which programs preload; None: a device of the machine.
    library: Path | None

    def environment(self) -> dict[str, str]:
        """The variables that have a program see this device, and those of this process."""
        variables = dict(os.environ)
        if self.library is None:
            return {**variables, "SOFTDEV_DEVICE": "none"}
        others = [path for path in variables.get("LD_PRELOAD", "").split(":") if path]
        if str(self.library) not in others:
            others.insert(0, str(self.library))
        return {**variables, "LD_PRELOAD": ":".join(others), "SOFTDEV_DEVICE": "soft"}


def software_device() -> Device:
    """The one that aiordma's wheel brings. Fails the test, with what to do, where it is not there."""
    spec = importlib.util.find_spec("aiordma")
    places = spec.submodule_search_locations if spec is not None else None
    for place in places or ():
        library = Path(place) / LIBRARY
        if library.is_file():
            return Device("soft0", "127.0.0.1", 0, library)
    pytest.fail(
        f"{LIBRARY} is not installed: 'pip install aiordma[pytest]' brings it in a wheel. A build from "
        "source needs libibverbs-dev and librdmacm-dev; or name a device of this machine by --rdma-device.",
        pytrace=False,
    )
