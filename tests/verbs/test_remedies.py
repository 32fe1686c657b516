"""No silent TCP: what the installation lacks is a warning with the remedy, once per process."""

from __future__ import annotations

import errno
import logging
import resource
import subprocess
import sys

import pytest

from aiordma.errors import Code, NegotiationError, VerbsError
from aiordma.verbs import backend, hardware, remedies
from aiordma.verbs.remedies import warn_once, with_remedy
from tests.world import needs_pyverbs

PROGRAM = """
import asyncio, sys
{before}
import aiordma
async def main():
    for _ in range(2):
        async with aiordma.listen("127.0.0.1", mode={mode!r}) as listener:
            async with aiordma.connect("127.0.0.1", listener.port, mode={mode!r}) as client:
                print(client.path, client.fallback_reason.code.name, flush=True)
try:
    asyncio.run(main())
except aiordma.NegotiationError as error:
    print(error)
"""
NO_PYVERBS = 'sys.path = [folder for folder in sys.path if not folder.endswith("dist-packages")]'


def run(mode: str, before: str = NO_PYVERBS, device: str = "soft", verbs: str = "pyverbs") -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(mode=mode, before=before)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"AIORDMA_DEVICE": device, "AIORDMA_VERBS": verbs},
    )
    return done.stdout, done.stderr


@pytest.fixture(autouse=True)
def not_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies._Once, "warned", False)


@needs_pyverbs
def test_a_program_without_the_pyverbs_that_it_wants_is_told_once_and_with_the_remedy() -> None:
    out, err = run("auto")
    assert out == "tcp NO_PYVERBS\n" * 2
    assert err.count("RDMA cannot be used, so connections run on TCP: ") == 1
    assert "pyverbs is not installed" in err
    assert "--system-site-packages" in err
    assert "python -m aiordma doctor" in err


def test_mode_rdma_fails_with_the_same_words() -> None:
    _, err = run("auto")
    out, nothing = run("rdma")
    words = err.partition("on TCP: ")[2].partition(". (AIORDMA_MODE=tcp")[0]
    assert words in out
    assert nothing == ""


@pytest.mark.parametrize(("mode", "device"), [("tcp", "soft"), ("auto", "none")])
def test_who_switched_rdma_off_is_not_warned(mode: str, device: str) -> None:
    assert run(mode, device=device) == ("tcp DISABLED\n" * 2, "")


def test_a_device_that_is_not_there() -> None:
    out, err = run("auto", before="", device="nodev0", verbs="auto")
    assert out == "tcp NO_DEVICE\n" * 2
    assert "none is called 'nodev0'; there are: " in err
    assert "AIORDMA_DEVICE=soft uses the software device" in err


@pytest.mark.parametrize("code", [Code.PLAIN_TCP_PEER, Code.DISABLED, Code.DEVICE_FAILURE])
def test_peers_and_settings_are_no_reason_to_warn(code: Code, caplog: pytest.LogCaptureFixture) -> None:
    warn_once(NegotiationError(code))
    assert not caplog.records
    assert with_remedy(NegotiationError(code, "why")).detail == "why"


def test_a_device_without_permission_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its errno would not: libibverbs says ENOENT."""
    problem = "no permission for /dev/infiniband/uverbs0"
    monkeypatch.setattr(hardware, "scan", lambda: [hardware.HardwareDevice("rxe7", problem)])
    monkeypatch.setattr(backend, "device_names", lambda _: ["rxe7"])

    def fails(*_: object) -> None:
        raise VerbsError(errno.ENOENT, "ibv_open_device", "rxe7")

    monkeypatch.setattr(backend, "_open", fails)
    with pytest.raises(NegotiationError, match=problem) as caught:
        backend.open_backend("rxe7")
    assert caught.value.code == Code.NO_SMCR_DEVICE
    assert "give this user access to /dev/infiniband" in with_remedy(caught.value).text


def test_too_little_locked_memory_for_rings_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The code is that of the memory limit; the errno behind it tells the two apart."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65536, 65536))
    monkeypatch.setattr(hardware, "scan", lambda: [hardware.HardwareDevice("mlx5_0", "")])
    own_limit = NegotiationError(Code.OUT_OF_MEMORY, "a ring of 64 KiB: connections have 1 of 1 already")
    own_limit.__cause__ = MemoryError()
    warn_once(own_limit)
    assert not caplog.records
    error = NegotiationError(Code.OUT_OF_MEMORY, "cannot register memory")
    error.__cause__ = MemoryError()
    error.__cause__.__cause__ = VerbsError(errno.ENOMEM, "ibv_reg_mr", "524288 bytes on mlx5_0")
    warn_once(error)
    assert "may lock 65536 bytes of memory" in caplog.text


@pytest.mark.parametrize(
    ("number", "limit", "remedy"),
    [
        (errno.ENOMEM, 65536, "may lock 65536 bytes of memory"),
        (errno.ENOMEM, resource.RLIM_INFINITY, "free memory, or lower AIORDMA_MEMORY_LIMIT_BYTES"),
        (errno.EACCES, resource.RLIM_INFINITY, "access to /dev/infiniband"),
        (errno.EMFILE, resource.RLIM_INFINITY, "raise it with ulimit -n"),
    ],
)
def test_errors_of_the_device_say_what_to_do(
    number: int, limit: int, remedy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(hardware, "scan", lambda: [hardware.HardwareDevice("mlx5_0", "")])
    error = NegotiationError(Code.DEVICE_FAILURE, "ibv_reg_mr: failed")
    error.__cause__ = VerbsError(number, "ibv_reg_mr", "4194304 bytes on mlx5_0")
    warn_once(error)
    warn_once(error)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("aiordma.clc", logging.WARNING)
    assert "ibv_reg_mr: failed" in record.message
    assert remedy in record.message
    explained = with_remedy(error)
    assert with_remedy(explained).text == explained.text
