"""What is shipped: the wheel has what a user runs and nothing else; the sdist has what a builder needs."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from .tree import ROOT

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("packaging"), pytest.mark.slow]

#: Of the wheel.
PACKAGES = ("aiordma", "rocefabric", "pytest_softdev")

_BUILD = """
import os, sys
from scikit_build_core import build
os.chdir(sys.argv[1])
getattr(build, f"build_{sys.argv[2]}")(sys.argv[3])
"""


def _build(kind: str, folder: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(ROOT), kind, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_the_wheel_has_modules_and_no_sources_of_compiled_ones(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == set(PACKAGES)
    assert {Path(name).suffix for name in names} <= {".py", ".pyi", ".so", ".typed"}
    assert {"aiordma/py.typed", "aiordma/libsoftdev.so", "aiordma/streams/stream.py"} <= names
    assert {"rocefabric/py.typed", "rocefabric/simulate.py"} <= names
    sources = {str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources


def test_every_compiled_module_is_there_with_its_types(unpacked: Path) -> None:
    for source in (ROOT / "aiordma").glob("*.pyx"):
        assert list(unpacked.glob(f"aiordma/{source.stem}.*.so")), source
        assert (unpacked / "aiordma" / f"{source.stem}.pyi").is_file(), source
    for source in (ROOT / "rocefabric").glob("*.pyx"):
        assert list(unpacked.glob(f"rocefabric/{source.stem}.*.so")), source
    for types in (ROOT / "rocefabric").glob("*.pyi"):
        assert (unpacked / "rocefabric" / types.name).is_file(), types


def test_nothing_is_linked_with_rdma_libraries(unpacked: Path) -> None:
    """They come with pyverbs; linked, they would be loaded before the software device, or fail to load."""
    libraries = list(unpacked.rglob("*.so"))
    assert libraries
    for library in libraries:
        dynamic = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True)
        needed = [line for line in dynamic.stdout.splitlines() if "(NEEDED)" in line]
        assert not [line for line in needed if "ibverbs" in line or "rdmacm" in line], library


def test_the_software_device_can_be_interposed(unpacked: Path) -> None:
    """No SONAME and no symbol versions: so a versioned reference to libibverbs binds to it."""
    library = unpacked / "aiordma" / "libsoftdev.so"
    dynamic = subprocess.run(["readelf", "-dV", str(library)], capture_output=True, text=True, check=True)
    assert "(SONAME)" not in dynamic.stdout
    assert "version definition" not in dynamic.stdout.lower()


def test_the_sdist_has_what_a_build_needs(tmp_path: Path) -> None:
    with tarfile.open(_build("sdist", tmp_path)) as archive:
        names = {"/".join(name.split("/")[1:]) for name in archive.getnames()}
    wanted = {str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("*.p[yx]*")}
    wanted = {name for name in wanted if "__pycache__" not in name}
    wanted |= {
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "aiordma/CMakeLists.txt",
        "rocefabric/CMakeLists.txt",
        "softdev/CMakeLists.txt",
        "softdev/include/softdev.h",
        "Makefile",
        "tests/conftest.py",
    }
    assert wanted - names == set()
    assert not [name for name in names if name.startswith(("build/", ".venv/")) or name.endswith(".so")]


def test_a_build_names_everything_that_is_missing_at_once(tmp_path: Path) -> None:
    """Not what its tools print of the first thing: pip shows the end of that only."""
    absent = [f"-D{name}={name}-NOTFOUND" for name in ("VERBS_INCLUDE", "RDMACM_INCLUDE")]
    done = subprocess.run(
        ["cmake", "-S", ROOT / "aiordma", "-B", tmp_path, "-G", "Ninja", *absent],
        env=os.environ | {"CC": "/nonexistent/cc"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode
    for what in (
        "a C compiler",
        "infiniband/verbs.h",
        "rdma/rdma_cma.h",
        "apt-get install gcc libc6-dev libibverbs-dev librdmacm-dev",
    ):
        assert what in done.stderr, done.stderr
