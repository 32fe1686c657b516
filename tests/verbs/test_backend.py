"""Which device is chosen, and the reasons given when there is none.

What depends on the order of imports runs in processes of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from aiordma.errors import Code, NegotiationError
from aiordma.verbs import backend, choice, hardware, softlib
from aiordma.verbs.abi import GidType
from aiordma.verbs.device import Gid, best_gid, format_gid
from tests.world import needs_pyverbs

REASON = """
from aiordma.errors import NegotiationError
from aiordma.verbs.backend import open_backend
try:
    opened = open_backend({device!r})
except NegotiationError as error:
    print(error.code, error)
else:
    print("opened", opened.name, opened.is_soft)
    opened.close()
"""


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def reason(before: str = "", device: str | None = "soft", **environment: str) -> str:
    return run(textwrap.dedent(before) + REASON.format(device=device), **environment)


def test_none_switches_rdma_off() -> None:
    with pytest.raises(NegotiationError, match="AIORDMA_DEVICE=none") as caught:
        backend.open_backend("none")
    assert caught.value.code == Code.DISABLED


@pytest.mark.parametrize(
    ("kernel", "device", "uses_soft"),
    [
        ([], None, True),
        ([], "soft", True),
        ([], "mlx5_0", True),
        ([("mlx5_0", "")], None, False),
        ([("mlx5_0", "")], "mlx5_0", False),
        ([("mlx5_0", "")], "soft", True),
        ([("mlx5_0", "")], "mlx5_1", True),
        ([("mlx5_0", "no active port")], None, True),
        ([("mlx5_0", "no active port")], "mlx5_0", False),
        ([("mlx5_0", "no active port"), ("rxe0", "")], None, False),
    ],
)
def test_the_software_device_is_loaded_only_when_it_will_be_used(
    monkeypatch: pytest.MonkeyPatch, kernel: list[tuple[str, str]], device: str | None, uses_soft: bool
) -> None:
    loads = []
    monkeypatch.setattr(hardware, "scan", lambda: [hardware.HardwareDevice(*entry) for entry in kernel])
    monkeypatch.setattr(softlib, "load", lambda: loads.append(1))
    choice.choose(device)
    assert bool(loads) == uses_soft


def test_a_library_that_is_missing_or_broken_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(softlib, "_loaded", None)
    monkeypatch.setattr(softlib, "locate", lambda: None)
    with pytest.raises(NegotiationError, match="libibverbs-dev") as caught:
        choice.choose("soft")
    assert caught.value.code == Code.NO_SOFT_DEVICE
    broken = tmp_path / softlib.LIBRARY
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(softlib, "locate", lambda: broken)
    with pytest.raises(NegotiationError, match=str(broken)) as caught:
        choice.choose("soft")
    assert caught.value.code == Code.NO_SOFT_DEVICE
    # Early loading keeps quiet: who never uses RDMA has no interest in the reason.
    choice.preload("soft")


@needs_pyverbs
def test_pyverbs_imported_before_the_software_device_is_noticed() -> None:
    output = reason("import pyverbs.device\n", AIORDMA_VERBS="pyverbs")
    assert output.startswith(str(int(Code.NO_SOFT_DEVICE)))
    assert "pyverbs was imported before it" in output
    assert "LD_PRELOAD=" in output


@needs_pyverbs
def test_after_import_of_aiordma_others_may_import_pyverbs() -> None:
    assert reason("import aiordma, pyverbs.device\n", AIORDMA_DEVICE="soft").startswith("opened")


@needs_pyverbs
@pytest.mark.parametrize("environment", [{"AIORDMA_DEVICE": "none"}, {"AIORDMA_MODE": "tcp"}])
def test_nothing_is_loaded_for_others_when_rdma_is_off(environment: dict[str, str]) -> None:
    program = """
        import aiordma, pyverbs.device
        from aiordma.verbs import softlib
        print(softlib.loaded())
    """
    assert run(program, **environment).strip() == "None"


@needs_pyverbs
def test_after_preload_others_may_import_pyverbs() -> None:
    before = """
        from aiordma.verbs.choice import preload
        preload("soft")
        import pyverbs.device
    """
    assert reason(before).startswith("opened")


def test_a_name_nobody_has_lists_the_devices_there_are() -> None:
    output = reason(device="nosuchdevice0")
    assert output.startswith(str(int(Code.NO_DEVICE)))
    assert "none is called 'nosuchdevice0'; there are: " in output


def test_pyverbs_of_another_python(tmp_path: Path) -> None:
    package = tmp_path / "pyverbs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "device.cpython-399-x86_64-linux-gnu.so").touch()
    output = reason(PYTHONPATH=str(tmp_path), AIORDMA_VERBS="pyverbs")
    assert output.startswith(str(int(Code.OTHER_PYTHON)))
    assert "built for cpython-399-x86_64-linux-gnu" in output


@needs_pyverbs
def test_pyverbs_that_is_not_visible() -> None:
    before = """
        import sys
        sys.path[:] = [entry for entry in sys.path if "dist-packages" not in entry]
    """
    output = reason(before, AIORDMA_VERBS="pyverbs")
    assert output.startswith(str(int(Code.NO_PYVERBS)))
    assert "--system-site-packages" in output


def test_importing_pyverbs_leaves_logging_alone() -> None:
    program = """
        import logging
        root = logging.getLogger()
        root.setLevel(logging.ERROR)
        from aiordma.verbs.backend import open_backend
        open_backend("soft").close()
        print(root.handlers, root.level == logging.ERROR)
    """
    assert run(program).strip() == "[] True"


def gid(slot: int, text: str, kind: GidType = GidType.ROCE_V2) -> Gid:
    return Gid(slot, bytes.fromhex(text.replace(":", "")), kind)


def test_the_gid_that_reaches_furthest_is_used() -> None:
    link_local = gid(0, "fe80:0000:0000:0000:0202:c9ff:fe00:0001")
    old = gid(1, "0000:0000:0000:0000:0000:ffff:0a00:0001", GidType.ROCE_V1)
    loopback = gid(2, "0000:0000:0000:0000:0000:ffff:7f00:0001")
    ipv6 = gid(3, "2001:0db8:0000:0000:0000:0000:0000:0001")
    ipv4 = gid(4, "0000:0000:0000:0000:0000:ffff:0a00:0001")
    order = [ipv4, ipv6, link_local, loopback, old]
    for first in range(len(order)):
        assert best_gid(order[first:][::-1]) == order[first]
    assert best_gid([]) is None


def test_gids_are_written_as_pyverbs_reads_them() -> None:
    assert format_gid(bytes(range(16))) == "0001:0203:0405:0607:0809:0a0b:0c0d:0e0f"
    with pytest.raises(ValueError, match="16 bytes, not 4"):
        format_gid(bytes(4))


OLDER = """
unsigned long softdev_calls(void) { return 1; }
unsigned softdev_layout(void) { return 1; }
int softdev_by_cm(void) { return 0; }
"""


def test_an_older_library(tmp_path: Path) -> None:
    """It lacks functions of this package: which one, and what to do, is what an open says."""
    header = Path(__file__).parents[2] / "softdev/include/softdev.h"
    names = set(re.findall(r"\b(softdev_\w+)\(", header.read_text()))
    source, library = tmp_path / "older.c", tmp_path / softlib.LIBRARY
    there = names - {"softdev_expect", *re.findall(r"softdev_\w+", OLDER)}
    source.write_text(OLDER + "".join(f"void {name}(void) {{}}\n" for name in sorted(there)))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    output = run(
        "import pathlib\nfrom aiordma.verbs import softlib\n"
        f"softlib.locate = lambda: pathlib.Path({str(library)!r})\n" + REASON.format(device="soft")
    )
    assert output.startswith(str(int(Code.NO_SOFT_DEVICE)))
    assert f"{library} has no softdev_expect(): it is older than this aiordma" in output
    assert "install aiordma again" in output
