"""What the software device exports, against what programs import.

A function that takes a verbs object and is not interposed would run libibverbs' code on the device's structs.
"""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from tests.world import pyverbs_is_here

# Functions of libibverbs that are never handed an object of a device.
WITHOUT_OBJECTS = {
    "ibv_copy_ah_attr_from_kern",
    "ibv_copy_path_rec_from_kern",
    "ibv_copy_path_rec_to_kern",
    "ibv_copy_qp_attr_from_kern",
    "ibv_dofork_range",
    "ibv_dontfork_range",
    "ibv_event_type_str",
    "ibv_fork_init",
    "ibv_get_sysfs_path",
    "ibv_is_fork_initialized",
    "ibv_node_type_str",
    "ibv_port_state_str",
    "ibv_rate_to_mbps",
    "ibv_rate_to_mult",
    "ibv_register_driver",
    "ibv_wc_status_str",
}
# Functions that take an object of a kind the device refuses to make (device memory, DMA handles, completion
# counters).
WITH_OBJECTS_WE_NEVER_MAKE = {
    *("ibv_dealloc_dmah", "ibv_dm_export_dmabuf_fd"),
    *("ibv_destroy_comp_cntr", "ibv_inc_comp_cntr", "ibv_inc_err_comp_cntr", "ibv_read_comp_cntr"),
    *("ibv_read_err_comp_cntr", "ibv_set_comp_cntr", "ibv_set_err_comp_cntr"),
}
# What libibverbs and librdmacm of the newest rdma-core that was looked at export, each name with its version.
# A machine may have newer ones than the headers that the device is built with: their code would run on our
# objects.
NEWEST = Path(__file__).parents[2] / "softdev/dropin/rdma-core-65.txt"
PREFIXES = ("ibv_", "_ibv_", "rdma_")
# UCX asks it whether a device has a character device in /dev/infiniband; see preload/ucx.c.
UCX = {"uct_ib_device_is_accessible"}
PRIVATE = {"ibv_query_gid_type"}  # imported by pyverbs and ibv_devinfo all the same

# librdmacm's other functions, sockets on top of RDMA, get an error where they would need an id of ours.
CM_TOOLS = ["rping", "ucmatose", "udaddy", "cmtime", "mckey", "rdma_client", "rdma_server", "ib_send_lat"]
TOOLS = [
    *("ibv_devices", "ibv_devinfo", "ibv_asyncwatch"),
    *("ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong", "ibv_xsrq_pingpong"),
    *("ib_send_lat", "ib_send_bw", "ib_write_lat", "ib_write_bw", "ib_read_lat", "ib_read_bw"),
    *("ib_atomic_lat", "ib_atomic_bw"),
]


def readelf(*arguments: str | Path) -> str:
    return subprocess.run(
        ["readelf", "-W", *map(str, arguments)], check=True, capture_output=True, text=True
    ).stdout


def symbols(path: Path, *, defined: bool) -> set[str]:
    """Names (without version) of the verbs functions that the file defines or imports."""
    found = set()
    for line in readelf("--dyn-syms", path).splitlines():
        fields = line.split()
        if len(fields) < 8 or fields[4] not in ("GLOBAL", "WEAK") or (fields[6] != "UND") != defined:
            continue
        name, _, version = fields[7].partition("@")
        if "PRIVATE" in version and name not in PRIVATE:
            continue
        if name.startswith(PREFIXES):
            found.add(name)
    return found


def versions(path: Path) -> set[tuple[str, ...]]:
    """Names and versions of the public verbs functions that the library defines."""
    found: set[tuple[str, ...]] = set()
    for line in readelf("--dyn-syms", path).splitlines():
        fields = line.split()
        if len(fields) < 8 or fields[6] == "UND" or "@@" not in fields[7] or "PRIVATE" in fields[7]:
            continue
        name, version = fields[7].split("@@")
        if name.startswith(PREFIXES):
            found.add((name, version))
    return found


@pytest.fixture(scope="module")
def exports(library: Path) -> set[str]:
    return symbols(library, defined=True)


def shared_library(name: str) -> Path:
    listing = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        if line.split()[:1] == [name]:
            return Path(line.split("=>")[1].strip())
    pytest.fail(f"{name} is not installed: run 'make install'")


def pyverbs_modules() -> list[Path]:
    spec = importlib.util.find_spec("pyverbs")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return sorted(Path(spec.submodule_search_locations[0]).glob("*.so"))


def missing(imports: set[str], exports: set[str]) -> set[str]:
    return imports - exports - WITHOUT_OBJECTS - WITH_OBJECTS_WE_NEVER_MAKE


@pyverbs_is_here
def test_pyverbs(exports: set[str]) -> None:
    modules = pyverbs_modules()
    imports = set().union(*(symbols(module, defined=False) for module in modules))
    assert "ibv_open_device" in imports  # the parsing works
    assert missing(imports, exports) == set()


@pytest.mark.parametrize("tool", TOOLS)
def test_tools(tool: str, exports: set[str]) -> None:
    imports = symbols(Path("/usr/bin") / tool, defined=False)
    assert "ibv_open_device" in imports or tool == "ibv_devices"
    assert missing(imports, exports) == set()


def test_librdmacm(exports: set[str]) -> None:
    imports = symbols(shared_library("librdmacm.so.1"), defined=False)
    assert imports
    assert missing(imports, exports) == set()


@pytest.mark.parametrize("tool", CM_TOOLS)
def test_rdma_cm_tools(tool: str, exports: set[str]) -> None:
    imports = symbols(Path("/usr/bin") / tool, defined=False)
    assert any(name.startswith("rdma_") for name in imports)
    assert missing(imports, exports) == set()


def test_every_function_of_rdma_cm(exports: set[str]) -> None:
    public = {
        name for name in symbols(shared_library("librdmacm.so.1"), defined=True) if name.startswith("rdma_")
    }
    assert len(public) > 35
    assert missing(public, exports) == set()


def test_every_public_function_that_takes_an_object(exports: set[str]) -> None:
    public = symbols(shared_library("libibverbs.so.1"), defined=True)
    assert len(public) > 50
    assert missing(public, exports) == set()


def test_every_function_of_the_newest_rdma_core(exports: set[str]) -> None:
    public = {line.split()[0] for line in NEWEST.read_text().splitlines()}
    assert len(public) > 130
    assert missing(public, exports) == set()


def test_no_newer_library_is_here() -> None:
    """Otherwise the list is to be made anew, of that one."""
    known = {tuple(line.split()) for line in NEWEST.read_text().splitlines()}
    for name in ("libibverbs.so.1", "librdmacm.so.1"):
        new = versions(shared_library(name)) - known
        assert not new, f"{name} is newer than {NEWEST.name}: add {sorted(new)}"


def test_nothing_else_is_exported(library: Path) -> None:
    """The library lies in front of everything in the process: a stray global name could capture a call."""
    for line in readelf("--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[4] == "GLOBAL" and fields[6] not in ("UND", "Ndx"):
            assert fields[7].startswith((*PREFIXES, "softdev_")) or fields[7] in UCX, fields[7]


def test_shape(library: Path) -> None:
    """No SONAME, no symbol versions of its own, not linked with libibverbs: see the interposition notes."""
    dynamic = readelf("-d", library)
    assert "SONAME" not in dynamic
    assert "libibverbs" not in dynamic
    assert "VERDEF" not in dynamic
