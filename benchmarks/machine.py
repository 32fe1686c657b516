"""The environment of the numbers: machine, versions, revision."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    *("aiordma", "anyio", "uvloop", "trio", "cython", "ucxx-cu12", "libucx-cu12", "grpcio", "grpclib"),
    *("pyzmq", "pynng", "iceoryx2", "eclipse-zenoh", "pyarrow"),
)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def describe() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "virtual": "hypervisor" in Path("/proc/cpuinfo").read_text(encoding="utf-8"),
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in PACKAGES},
        "revision": _git("rev-parse", "--short=12", "HEAD") or None,
        "modified": bool(_git("status", "--porcelain", "--untracked-files=no", "--", "aiordma")),
        "load_before": os.getloadavg()[0],
    }
