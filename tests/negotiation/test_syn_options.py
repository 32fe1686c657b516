"""The program for SMC's TCP option in this kernel, where the tests may load it: as root, with BPF."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.cli.smcr.setup import find_cgroup
from aiordma.config import Config
from aiordma.errors import Code
from aiordma.negotiation import first_bytes, smc_option
from aiordma.negotiation.sockops import SynAnswer, SynOptions, SynProgram
from aiordma.proto.syn_option import SynOption
from tests.processes import PATIENCE
from tests.world import DEVICE

from . import late_answers
from .serving import LOCAL, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aiordma.streams.stream import RdmaStream

pytestmark = pytest.mark.anyio


@contextlib.contextmanager
def cgroup_root(mount_at: Path) -> Iterator[str]:
    try:
        yield str(find_cgroup())
    except LookupError:
        if subprocess.run(["mount", "-t", "cgroup2", "none", mount_at], check=False).returncode:
            pytest.skip("cgroup version 2 cannot be mounted here")
        try:
            yield str(mount_at)
        finally:
            subprocess.run(["umount", mount_at], check=True)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[SynProgram]:
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(cgroup_root(tmp_path))
        try:
            made = SynProgram(root)
        except OSError as error:
            pytest.skip(f"no program can be loaded here: {error}")
        stack.callback(made.close)
        yield made


def asked(options: SynOptions, address: tuple[str, int]) -> SynAnswer:
    with socket.socket() as client:
        entry = options.want(client)
        client.connect(address)
        return options.answer(entry)


def listening(options: SynOptions | None) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.IPPROTO_TCP, smc_option.TCP_SAVE_SYN, 1)
    made.bind((LOCAL, 0))
    if options is not None:
        options.want(made)
    made.listen()
    return made


def test_what_a_client_and_a_listener_learn(program: SynProgram) -> None:
    options = program.options
    with listening(options) as ours, listening(None) as plain:
        assert asked(options, ours.getsockname()) == (True, SynOption(1, in_answer=True))
        with ours.accept()[0] as accepted:
            assert smc_option.in_syn_of(accepted) == SynOption(1)
        assert asked(options, plain.getsockname()) == (True, None)
        with socket.create_connection(ours.getsockname()), ours.accept()[0] as accepted:
            assert smc_option.in_syn_of(accepted) is None


def test_beside_the_program_nothing_was_sent(program: SynProgram) -> None:
    """As for a process outside of its cgroup, or when the set-up is taken back while programs run: that no
    option comes back says nothing then."""
    options = program.options
    with listening(None) as plain:
        kept = os.dup(options.map_fd)
        program.close()
        try:
            assert asked(SynOptions(kept), plain.getsockname()) == (False, None)
        finally:
            os.close(kept)


@pytest.mark.usefixtures("program")
def test_a_connection_has_read_its_syn_ack(tmp_path: Path) -> None:
    """A socket is writable before another processor has looked what its SYN-ACK says."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one processor only")
    if subprocess.run(["unshare", "-n", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespace can be made here")
    with cgroup_root(tmp_path) as root:
        command = ["unshare", "-n", "-m", sys.executable, "-m", late_answers.__name__, root]
        learnt = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=PATIENCE).stdout
    assert json.loads(learnt) == [{"option": late_answers.CONNECTIONS}] * 2


@pytest.mark.parametrize("which", [0, 1])
def test_two_programs_see_the_same_socket(program: SynProgram, tmp_path: Path, which: int) -> None:
    """One of the host and one of a container, or of two tests: each knows the sockets of its own map,
    whichever runs first and takes the socket's flag for callbacks away."""
    with cgroup_root(tmp_path) as root:
        other = SynProgram(root)
        try:
            options = (program, other)[which].options
            with listening(options) as ours, listening(None) as plain:
                assert asked(options, ours.getsockname()) == (True, SynOption(1, in_answer=True))
                with ours.accept()[0] as accepted:
                    assert smc_option.in_syn_of(accepted) == SynOption(1)
                assert asked(options, plain.getsockname()) == (True, None)
        finally:
            other.close()


def strict(program: SynProgram) -> Config:
    # What it would wait for otherwise is longer than the test.
    return Config(
        device=DEVICE,
        smcr=f"fd:{program.options.map_fd}",
        smcr_strict=1,
        server_first_wait_ms=600_000,
        head_start_ms=600_000,
    )


async def greet(stream: RdmaStream) -> None:
    async with stream:
        await stream.send(b"220 ready\r\n")
        await stream.receive()


async def test_strict_ends_need_no_byte_to_tell_who_negotiates(
    program: SynProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = strict(program)
    monkeypatch.setattr(first_bytes, "_is_near", lambda _: False)
    # Else the listener's name on this host would say that it negotiates.
    monkeypatch.setattr("aiordma.negotiation.connect.announces_itself", lambda _: False)
    with anyio.fail_after(PATIENCE):
        async with serving(greet, config=config) as listener:
            async with aiordma.connect(LOCAL, listener.port, config=config) as stream:
                assert (stream.path, stream.fallback_reason) == ("rdma", None)
                assert await stream.receive_exactly(11) == b"220 ready\r\n"
            async with await anyio.connect_tcp(LOCAL, listener.port) as client:
                assert await client.receive() == b"220 ready\r\n"
        with socket.create_server((LOCAL, 0)) as plain:
            async with aiordma.connect(*plain.getsockname(), config=config) as stream:
                assert stream.path == "tcp"
                assert stream.fallback_reason is not None
                assert stream.fallback_reason.code == Code.PLAIN_TCP_PEER
                connection, _ = plain.accept()
                with connection:
                    connection.sendall(b"220 ready\r\n")
                    assert await stream.receive_exactly(11) == b"220 ready\r\n"
                    await stream.send(b"hello")
                    connection.settimeout(PATIENCE)
                    assert connection.recv(100) == b"hello"
