"""Runs rdma-core's own tests, in the source tree that is the working directory: INTERFACE [DEVICE [GID]].

They look in /sys for the network interface of a device, where the software device has nothing: it is
named here.
"""

from __future__ import annotations

import importlib
import os
import sys
import unittest
from typing import Any


def main(interface: str, device: str = "soft0", gid: str = "0") -> None:
    exists = os.path.exists

    def patched(path: Any) -> bool:
        of_ours = str(path).startswith("/sys/class/infiniband/soft") and str(path).endswith("/device/net/")
        return of_ours or exists(path)

    os.path.exists = patched
    importlib.import_module("pyverbs")  # the system's: in the source it is not compiled
    sys.path[:0] = ["tests", "."]
    sys.argv[1:] = ["--dev", device, "--gid", gid, "-v"]
    importlib.import_module("tests.base").RDMATestCase.get_net_name = staticmethod(lambda _: interface)
    importlib.import_module("args_parser").parser.parse_args()
    unittest.main(module="tests")


if __name__ == "__main__":
    main(*sys.argv[1:])
