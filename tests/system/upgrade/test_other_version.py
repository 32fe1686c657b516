"""An older aiordma at the other end, in both roles, on every surface: by RDMA, or by TCP with a reason.

`make test-upgrade` builds one and names its folder in ``AIORDMA_TEST_OLDER``. Otherwise both ends are of this
version, on one event loop, which keeps these programs right.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trustme

from aiordma.errors import Code
from aiordma.verbs import softlib
from tests.processes import Process, process
from tests.system.upgrade.surfaces import SURFACES, WITH_TLS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HERE = "tests.system.upgrade.roles"
ROOT = Path(__file__).parents[3]
OLDER = os.environ.get("AIORDMA_TEST_OLDER", "")
#: Ends of another version: none, if there is only this one.
ROLES = ("server", "client") if OLDER else ("neither",)
LOOPS = ("asyncio", "asyncio+uvloop", "trio") if OLDER else ("asyncio",)
CASES = [(name, loop) for name, surface in SURFACES.items() for loop in LOOPS if loop in surface.loops]


class Other(Process):
    """A role in a program that is told, before aiordma is imported, which one to take."""

    program: ClassVar[tuple[str, str]]

    def start(
        self, arguments: list[str], environment: dict[str, str], descriptors: list[int]
    ) -> subprocess.Popen[bytes]:
        stdin, stdout, stderr = descriptors
        command = [sys.executable, "-m", *self.program, *arguments]
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=stdin, stdout=stdout, stderr=stderr
        )  # fmt: skip


class Older(Other):
    program = ("tests.system.upgrade.older", OLDER)


#: Of both: the older device has settings of another name.
ONLY_PACKETS = {"SOFTDEV_WIRE": "only", "AIORDMA_SOFT_WIRE": "only"}


def _meet(
    surface: str,
    loop: str,
    older: str,
    *,
    other: type[Other] = Older,
    env: dict[str, str] | None = None,
    to_server: Any = (),
    to_client: Any = (),
) -> list[Any]:
    """What the client has seen of the path, after everything was right at both ends."""
    kinds = {role: other if role == older else Process for role in ("server", "client")}
    given: dict[str, Any] = {"loop": loop, "env": env, "surface": surface}
    with process(f"{HERE}:server", of=kinds["server"], **given, **dict(to_server)) as server:
        where, port = server.hear()
        assert where.startswith(OLDER if older == "server" and other is Older else str(ROOT / "aiordma"))
        with process(f"{HERE}:client", of=kinds["client"], port=port, **given, **dict(to_client)) as client:
            where = client.hear()
            assert where.startswith(OLDER if older == "client" and other is Older else str(ROOT / "aiordma"))
            found: list[Any] = client.hear()
            return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A server's chain with its key, and the authority that signed it."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    chain = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    chain.write_to_path(str(folder / "chain.pem"))
    return str(folder / "chain.pem"), str(folder / "authority.pem")


@pytest.fixture(scope="module")
def shares_memory() -> bool:
    """Whether the software devices of both versions do: their builds' numbers say so."""
    if not OLDER:
        return True
    asked = "import ctypes, sys; print(*(ctypes.CDLL(it).softdev_layout() for it in sys.argv[1:]))"
    libraries = [softlib.locate(), *Path(OLDER).rglob(softlib.LIBRARY)]
    command = [sys.executable, "-c", asked, *map(str, libraries)]
    own, its = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return own == its


def _without_memory(surface: str) -> tuple[str, Code]:
    return "udp" if surface == "endpoint" else "tcp", Code.VERSION_MISMATCH


@pytest.mark.parametrize("older", ROLES)
@pytest.mark.parametrize(("surface", "loop"), CASES)
def test_by_shared_memory(surface: str, loop: str, older: str, shares_memory: bool) -> None:
    path, code, text = _meet(surface, loop, older)
    assert (path, code) == (("rdma", None) if shares_memory else _without_memory(surface)), text


@pytest.mark.parametrize("older", ROLES)
@pytest.mark.parametrize("surface", ["streams", "switched", "datagrams", "calls", "memory"])
def test_by_packets(surface: str, older: str) -> None:
    """What the device sends to other hosts, though both are on this one."""
    path, code, text = _meet(surface, "asyncio", older, env=ONLY_PACKETS)
    assert (path, code) == ("rdma", None), text


@pytest.mark.parametrize("older", ROLES)
@pytest.mark.parametrize("surface", ["streams", "writers", "datagrams", "calls", "memory"])
def test_without_rdma_at_one_end(surface: str, older: str) -> None:
    """On TCP with the reason: one end has no device."""
    path, code, text = _meet(surface, "asyncio", older, env={"AIORDMA_DEVICE": "none"})
    assert path == "tcp"
    assert code
    assert text


@pytest.mark.parametrize("outside", [True, False], ids=["payload outside TLS", "payload in TLS"])
@pytest.mark.parametrize("older", ROLES)
@pytest.mark.parametrize("surface", WITH_TLS)
def test_with_tls(
    surface: str, older: str, outside: bool, files: tuple[str, str], shares_memory: bool
) -> None:
    chain, authority = files
    path, code, text = _meet(
        surface,
        "asyncio",
        older,
        to_server={"chain": chain, "rdma_outside_tls": outside},
        to_client={"authority": authority, "rdma_outside_tls": outside},
    )
    assert path == ("rdma" if outside and shares_memory else "tcp"), text
    assert (code is None) == (path == "rdma")


@pytest.fixture(scope="module")
def other_device(tmp_path_factory: pytest.TempPathFactory) -> type[Other]:
    """A software device of a build whose shared memory is another one's: it greets with another number."""
    found = softlib.locate()
    assert found is not None
    text, places = re.subn(rb"[0-8]LRS", b"9LRS", found.read_bytes())  # SOFT_LINK_MAGIC
    assert places
    library = tmp_path_factory.mktemp("device") / found.name
    library.write_bytes(text)
    return type("OtherDevice", (Other,), {"program": ("tests.system.upgrade.other_device", str(library))})


@pytest.mark.parametrize(
    ("surface", "older"),
    [*((name, "server") for name in SURFACES), ("streams", "client"), ("endpoint", "client")],
)
def test_software_devices_that_share_no_memory(surface: str, older: str, other_device: type[Other]) -> None:
    """They refuse each other, and everything goes on by TCP, with the reason."""
    path, code, text = _meet(surface, "asyncio", older, other=other_device)
    assert (path, code) == _without_memory(surface)
    assert text
