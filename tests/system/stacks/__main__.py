"""Runs every program at every place, and prints a table. Exit status 1: one failed that should not.

Usage: python -m tests.system.stacks [WORD ...]   (only the programs with one of the words in their name)
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from aiordma.verbs import softlib
from tests import cable
from tests.tools import listening, run_pair

from . import cases

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PYTHON = "/usr/bin/python3"  # the system's: mpi4py and pyverbs are packages of the system
MPI_LIMIT, RDMA_CORE_LIMIT = 120, 400  # seconds


class Place(NamedTuple):
    name: str
    hosts: tuple[cable.Host, cable.Host] | None = None

    @property
    def address(self) -> str:
        return self.hosts[0].address if self.hosts else "127.0.0.1"

    def command(self, end: int, library: Path | None, *arguments: str) -> list[str]:
        """:param library: what to preload, if anything."""
        preloaded = ["env", f"LD_PRELOAD={library or ''}", *arguments]
        return self.hosts[end].command(*preloaded) if self.hosts else preloaded


class Row(NamedTuple):
    name: str
    place: str
    result: str  # ok, FAILED, skipped, flawed
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.result:8} {self.place:10} {self.name:44} {self.reason}".rstrip()


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "LD_PRELOAD": "", "SOFTDEV_DEVICE": "soft", "SOFTDEV_WIRE": "auto", **more}


def last_lines(text: str) -> str:
    return " | ".join(line.strip() for line in text.splitlines() if line.strip(" -"))[-300:]


def run(library: Path, place: Place, pair: cases.Pair, port: int) -> Row:
    if not shutil.which(pair.server[0]):
        return Row(pair.name, place.name, "skipped", f"{pair.server[0]} is not installed")

    def filled(end: int, command: tuple[str, ...]) -> list[str]:
        words = (word.format(port=port, address=place.address) for word in command)
        return place.command(end, library if pair.preloaded else None, *words)

    try:
        _, out = run_pair(
            filled(0, pair.server),
            filled(1, pair.client),
            ready=lambda pid: listening(pid, port) or rdma_listening(pid, pair.port or port),
            limit=pair.limit,
            environ=environment(**dict(pair.environ)),
            checked=pair.checked,
        )
        if re.search(pair.wanted, out):
            return Row(pair.name, place.name, "ok")
        reason = last_lines(out)
    except AssertionError as error:
        reason = last_lines(str(error))
    except subprocess.TimeoutExpired as error:
        reason = f"did not end within {error.timeout:.0f} s"
    return Row(pair.name, place.name, "flawed" if pair.flaw else "FAILED", pair.flaw or reason)


def rdma_listening(pid: int, port: int) -> bool:
    """The server waits on a port of rdma_cm, of connections or of datagrams."""
    with contextlib.suppress(OSError):
        wanted = re.compile(rf"@aiordma-cm\.{os.getuid()}\.(106|111)\.{port}\..*\.listen$", re.MULTILINE)
        return bool(wanted.search(Path(f"/proc/{pid}/net/unix").read_text(encoding="ascii")))
    return False


# ---- programs that are no pairs ---------------------------------------------------------------------------


def lone(
    name: str, place: Place, command: list[str], limit: float, cwd: Path = ROOT
) -> tuple[int, str] | Row:
    """Exit status and output; a row if the program did not end."""
    try:
        done = subprocess.run(
            command,
            env=environment(),
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Row(name, place.name, "FAILED", f"did not end within {limit:.0f} s")
    return done.returncode, done.stdout


def mpi(library: Path, place: Place) -> Row:
    name = "mpirun -np 4, mpi4py over UCX's rc_verbs"
    if not shutil.which("mpirun.openmpi"):
        return Row(name, place.name, "skipped", "openmpi-bin is not installed")
    common = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "4", "--mca", "pml", "ucx"]
    for setting in (
        f"LD_PRELOAD={library}",
        "UCX_TLS=rc_v,self",  # as in cases.py
        "UCX_NET_DEVICES=soft0:1",
        "SOFTDEV_WIRE",
        "SOFTDEV_DEVICE",
    ):
        common += ["-x", setting]
    with tempfile.TemporaryDirectory() as folder:
        if place.hosts:
            near, far = place.hosts
            agent = Path(folder) / "agent"
            inside = 'hostname far; shift; exec sh -c "$*"'
            agent.write_text(
                f"#!/bin/sh\nexec ip netns exec {far.namespace} unshare -u sh -c '{inside}' sh \"$@\"\n"
            )
            agent.chmod(0o755)
            common = [*near.command(*common), "--mca", "plm_rsh_agent", str(agent)]
            common += ["--host", f"{near.address}:2,{far.address}:2"]
            for what in ("btl_tcp_if_include", "oob_tcp_if_include"):
                common += ["--mca", what, "cable"]
        done = lone(name, place, [*common, PYTHON, str(HERE / "allreduce.py")], MPI_LIMIT)
    if isinstance(done, Row):
        return done
    status, out = done
    right = out.count("sums are right")
    if status == 0 and right == 4:
        return Row(name, place.name, "ok")
    return Row(name, place.name, "FAILED", last_lines(out))


def rdma_core(library: Path, place: Place) -> Row:
    name = "rdma-core's Python tests"
    source = Path(os.environ.get("RDMA_CORE") or ROOT / "build/stacks/rdma-core").absolute()
    if not (source / "tests/run_tests.py").exists():
        return Row(name, place.name, "skipped", f"its source is not in {source} (RDMA_CORE=DIRECTORY)")
    # Of this network namespace; /sys may be another's.
    interface = next(iter(sorted({name for _, name in socket.if_nameindex()} - {"lo"})), "lo")
    command = place.command(0, library, PYTHON, str(HERE / "rdma_core.py"), interface)
    done = lone(name, place, command, RDMA_CORE_LIMIT, source)
    if isinstance(done, Row):
        return done
    _, out = done
    failed = set(re.findall(r"(?m)^(?:FAIL|ERROR): (\S+)", out))
    counts = re.search(r"Ran (\d+) tests", out)
    if not counts:
        return Row(name, place.name, "FAILED", last_lines(out))
    skipped = re.search(r"skipped=(\d+)", out)
    ran = f"{counts[1]} tests, {skipped[1] if skipped else 0} skipped"
    if unknown := failed - set(cases.RDMA_CORE_FLAWS):
        return Row(name, place.name, "FAILED", f"{ran}: {' '.join(sorted(unknown))}")
    reasons = "; ".join(f"not {test}: {cases.RDMA_CORE_FLAWS[test]}" for test in sorted(failed))
    return Row(name, place.name, "flawed" if failed else "ok", f"{ran}; {reasons}" if failed else ran)


def ibverbs(place: Place) -> Row:
    """Those in the source of PyPI's package. It loads libibverbs by name: the device stands in for that."""
    name = "ibverbs' own tests (PyPI)"
    python, softdev = (
        cases.BUILT / "blocks" / path for path in ("ibverbs/bin/python", "softdev/bin/softdev")
    )
    found = sorted(cases.BUILT.glob("stacks/ibverbs/*/tests"))
    if not (python.exists() and softdev.exists() and found):
        return Row(name, place.name, "skipped", "it could not be installed (pip's reason is above)")
    with tempfile.TemporaryDirectory() as folder:
        standing = subprocess.check_output([str(softdev), "dir", f"{folder}/dir"], text=True).strip()
        command = [
            "env",
            f"LD_LIBRARY_PATH={standing}",
            str(python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
        ]
        done = lone(
            name, place, [*place.command(0, None, *command), str(found[-1])], MPI_LIMIT, found[-1].parent
        )
    if isinstance(done, Row):
        return done
    status, out = done
    passed = re.search(r"(\d+) passed", out)
    counts = last_lines(out)[-60:]
    return Row(name, place.name, "ok" if status == 0 and passed else "FAILED", counts)


# ---- all --------------------------------------------------------------------------------------------------


def main(words: list[str]) -> int:
    library = softlib.locate()
    assert library is not None, "the software device is not installed: run 'make install'"
    rows: list[Row] = []

    def wanted(name: str) -> bool:
        return not words or any(word in name for word in words)

    def add(row: Row) -> None:
        rows.append(row)
        print(row, flush=True)

    with contextlib.ExitStack() as stack:
        places = [Place("one host")]
        try:
            places.append(Place("two hosts", stack.enter_context(cable.cabled_hosts())))
        except (cable.NoNamespacesError, RuntimeError) as error:
            add(Row("everything", "two hosts", "skipped", str(error)))
        port = 20000 + os.getpid() % 20000
        if wanted("rdma-core"):
            add(rdma_core(library, places[0]))
        if wanted("ibverbs"):
            add(ibverbs(places[0]))
        for place in places:
            for pair in cases.pairs():
                port += 1
                if wanted(pair.name):
                    add(run(library, place, pair, port))
            if wanted("mpirun"):
                add(mpi(library, place))
    for left in cases.LEFT:
        if wanted(left.name):
            add(Row(left.name, "-", "skipped", left.reason))
    failed = [row for row in rows if row.result == "FAILED"]
    print(f"\n{len(rows)} rows, {sum(row.result == 'ok' for row in rows)} ok, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
