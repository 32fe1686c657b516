"""The kernel's program for SMC's TCP option, as far as that shows outside of a kernel (make test-smc)."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct

import pytest

from aiordma.negotiation import sockops
from aiordma.proto.syn_option import SynOption
from tests.health import descriptors

MAP = 77
_JUMPS = {0x05, 0x15, 0x55, 0xC5}
_CALL, _EXIT, _LOAD_MAP = 0x85, 0x95, 0x18


def instructions() -> list[tuple[int, int, int, int, int]]:
    code = sockops.assemble(MAP)
    assert len(code) % 8 == 0
    found = []
    for at in range(0, len(code), 8):
        op, registers, off, value = struct.unpack_from("<BBhi", code, at)
        found.append((op, registers & 15, registers >> 4, off, value))
    return found


def test_every_jump_goes_forward_to_an_instruction() -> None:
    """The kernel's verifier refuses anything else."""
    code = instructions()
    second_halves = {at + 1 for at, (op, *_) in enumerate(code) if op == _LOAD_MAP}
    for at, (op, _, _, off, _) in enumerate(code):
        if op in _JUMPS:
            assert off >= 0
            assert at + 1 + off < len(code)
            assert at + 1 + off not in second_halves
    assert code[-1][0] == _EXIT
    assert code[-2] == (0xB7, 0, 0, 0, 1)  # the result
    assert [op for op, *_ in code].count(_EXIT) == 1


def test_it_uses_the_map_and_nothing_but_what_it_needs() -> None:
    code = instructions()
    assert [value for op, _, _, _, value in code if op == _LOAD_MAP] == [MAP, MAP, MAP]
    helpers = {value for op, _, _, _, value in code if op == _CALL}
    assert helpers == {1, 2, 46, 59, 142, 143, 144}


def test_both_options_are_in_it() -> None:
    """What it stores on the stack: Linux' option to look for, and aiordma's two to send."""
    stores = [value.to_bytes(4, "little", signed=True) for op, _, _, _, value in instructions() if op == 0x62]
    text = b"".join(stores)
    for option in SynOption(), SynOption(1), SynOption(1, in_answer=True):
        assert option.encode() in text


def test_without_privilege_it_is_an_error_and_nothing_stays() -> None:
    before = descriptors()
    with pytest.raises(OSError, match=r"bpf\(|system call"):
        sockops.SynProgram("/")  # no cgroup, whoever asks
    with socket.socket() as sock, pytest.raises(OSError, match=r"bpf\(|system call"):
        sockops.SynOptions(0).want(sock)  # no map
    assert descriptors() == before


@pytest.mark.parametrize(("refusals", "loaded"), [(4, True), (5, False)])
def test_a_verifier_that_is_interrupted_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, refusals: int, loaded: bool
) -> None:
    """A signal that is pending makes it give up, which says nothing of the program."""
    asked: list[int] = []

    def bpf(command: int, _: bytes) -> int:
        asked.append(command)
        if command == sockops._PROG_LOAD and asked.count(command) <= refusals:
            raise OSError(errno.EAGAIN, "bpf(5): a test")
        if command == sockops._LINK_CREATE:
            raise OSError(errno.EBADF, "no cgroup")
        return os.open("/dev/null", os.O_RDONLY)

    monkeypatch.setattr(sockops, "_bpf", bpf)
    before = descriptors()
    with pytest.raises(OSError, match="no cgroup" if loaded else "a test"):
        sockops.SynProgram("/")
    assert asked.count(sockops._PROG_LOAD) == 5
    assert descriptors() == before


def test_a_program_that_is_refused_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def bpf(command: int, _: bytes) -> int:
        asked.append(command)
        if command == sockops._PROG_LOAD:
            raise OSError(errno.EPERM, "a test")
        return os.open("/dev/null", os.O_RDONLY)

    monkeypatch.setattr(sockops, "_bpf", bpf)
    with pytest.raises(PermissionError):
        sockops.SynProgram("/")
    assert asked.count(sockops._PROG_LOAD) == 1


def test_a_processor_without_a_known_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    sockops._system_call.cache_clear()
    with pytest.raises(OSError, match="s390x"):
        sockops.SynProgram("/")


def test_an_older_kernel_that_cannot_take_an_entry_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux before 5.14: it is looked up, and deleted."""
    asked: list[int] = []
    refusals = [errno.EINVAL, 524, errno.ENOENT]

    def call(command: int, attributes: ctypes.Array[ctypes.c_char], size: int) -> int:
        asked.append(command)
        if command == sockops._MAP_DELETE:
            # The kernel refuses a deletion with anything behind the key.
            head = ctypes.string_at(attributes, sockops._KEY_AT)
            assert not any(head[sockops._VALUE_PLACE_AT :])
        if command != sockops._MAP_LOOKUP_AND_DELETE:
            return 0
        ctypes.set_errno(refusals.pop(0))
        return -1

    monkeypatch.setattr(sockops, "_system_call", lambda: call)
    options = sockops.SynOptions(MAP)
    one = [sockops._MAP_UPDATE, sockops._MAP_LOOKUP_AND_DELETE, sockops._MAP_LOOKUP, sockops._MAP_DELETE]
    for _ in range(2):
        with socket.socket() as sock:
            assert not options.answer(options.want(sock)).was_sent
    assert asked == one * 2
    with socket.socket() as sock, pytest.raises(FileNotFoundError):
        options.answer(options.want(sock))
