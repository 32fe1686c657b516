"""What is installed for RDMA on this Python, and what to do when something of it is missing."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

from ..errors import Code, NegotiationError
from . import own

DISTRIBUTION_PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")
_INSTALL = (
    "unset AIORDMA_VERBS, and aiordma's own binding serves, which needs no pyverbs; or install the "
    "distribution's package (apt-get install python3-pyverbs) and run aiordma in a venv of the "
    "distribution's Python (/usr/bin/python3 -m venv --system-site-packages); for Python 3.10 to 3.12 a "
    "built package exists, too (pip install pyverbs==56.0rc1)"
)


def locate_pyverbs() -> Path | None:
    """The folder of the pyverbs that this Python imports; None: it sees none."""
    spec = importlib.util.find_spec("pyverbs")
    locations = list(spec.submodule_search_locations or []) if spec else []
    return Path(locations[0]) if locations else None


def explain_missing_pyverbs(error: ImportError) -> NegotiationError:
    """Why pyverbs cannot be imported, and what to do."""
    this = f"Python {sys.version_info.major}.{sys.version_info.minor} ({sys.executable})"
    folder = locate_pyverbs()
    if folder is not None:
        tags = built_for(folder, "device")
        if tags and sysconfig.get_config_var("SOABI") not in tags:
            return NegotiationError(
                Code.OTHER_PYTHON, f"pyverbs is built for {', '.join(tags)}, this is {this}; {_INSTALL}"
            )
        return NegotiationError(Code.NO_PYVERBS, f"pyverbs does not import: {error}; {_INSTALL}")
    tags = built_for(DISTRIBUTION_PYVERBS, "device")
    if tags and sysconfig.get_config_var("SOABI") in tags:
        return NegotiationError(
            Code.NO_PYVERBS,
            f"it is installed in {DISTRIBUTION_PYVERBS.parent}, which this environment does not see; "
            "unset AIORDMA_VERBS, make the venv with --system-site-packages, or link that folder into this "
            f"venv: ln -s {DISTRIBUTION_PYVERBS} {sysconfig.get_path('platlib')}/",
        )
    if tags:
        return NegotiationError(
            Code.OTHER_PYTHON,
            f"the distribution's pyverbs is built for {', '.join(tags)}, this is {this}; {_INSTALL}",
        )
    return NegotiationError(Code.NO_PYVERBS, f"no module pyverbs for {this}; {_INSTALL}")


def explain_missing_modules(error: Exception) -> NegotiationError:
    """Why aiordma's own modules cannot be imported, and what to do."""
    directories = [Path(__file__).parent / "own", *map(Path, own.__path__)]
    tags = sorted({tag for directory in directories for tag in built_for(directory, "_objects")})
    if not tags:
        return NegotiationError(
            Code.CONFIGURATION,
            "aiordma was built without the RDMA headers; install libibverbs-dev and librdmacm-dev, and build "
            "aiordma again",
        )
    if sysconfig.get_config_var("SOABI") not in tags:
        return NegotiationError(
            Code.OTHER_PYTHON,
            f"aiordma is built for {', '.join(tags)}; install it again with {sys.executable}",
        )
    return NegotiationError(Code.NO_PYVERBS, f"aiordma's compiled modules do not import: {error}")


def explain_missing_libibverbs(error: OSError) -> NegotiationError:
    """Why the devices of the kernel cannot be reached, and what to do."""
    return NegotiationError(
        Code.NO_SMCR_DEVICE, f"{error}; install rdma-core's libraries (apt-get install ibverbs-providers)"
    )


def built_for(directory: Path, stem: str) -> list[str]:
    """SOABI tags (``cpython-311-x86_64-linux-gnu``) of the extension modules called ``stem``."""
    try:
        return sorted(path.name[len(stem) + 1 : -3] for path in directory.glob(f"{stem}.cpython-*.so"))
    except OSError:
        return []
