"""Run the peers: fresh processes for each peer and round, pinned to separate CPUs, peers alternating."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import copying, perftest
from .machine import describe
from .peers import Peer

# "setup" comes first: it measures the first connection of a process too.
# "throughput_kept" comes last: it changes the process's allocator.
# "wire" belongs to no peer: wire.py has peers of its own.
WORKLOADS = (
    "setup",
    "roundtrip",
    "load",
    "throughput",
    "connections",
    "throughput_kept",
    "memory",
    "calls",
    "call_streams",
    "orders",
    "calls_beside_bulk",
    "datagrams",
    "wire",
)
# A hanging peer fails alone; the run continues. Beside that, a peer has as many times the time of a number.
PEER_SECONDS = 60.0
PEER_NUMBERS = 30


@dataclass(frozen=True)
class Plan:
    peers: list[Peer]
    rounds: int
    slice_seconds: float
    quick: bool
    workloads: tuple[str, ...] = WORKLOADS
    device: str = ""
    """The device of aiordma's peers; empty: the one that it chooses."""
    hosts: tuple[Sequence[str], Sequence[str]] = ((), ())
    """What the commands of server and client begin with: in a network namespace each."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of both ends, beside the peer's own."""


def run(plan: Plan, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run all rounds of all peers; return JSON-able data."""
    results: dict[str, Any] = {
        "machine": describe(),
        "rounds": plan.rounds,
        "slice_seconds": plan.slice_seconds,
        "quick": plan.quick,
        "device": plan.device,
        "peers": {peer.name: {"title": peer.title, "ours": peer.ours, "rounds": []} for peer in plan.peers},
    }
    copies: dict[str, list[float]] = {"warm": [], "cold": []}
    if {"throughput", "throughput_kept"} & set(plan.workloads):
        results["copies"] = copies
    for number in range(plan.rounds):
        if "copies" in results and not plan.quick and not any(plan.hosts):
            for transport in perftest.TRANSPORTS:
                if (found_rate := perftest.rate(transport)) is not None:
                    results.setdefault("perftest", {}).setdefault(transport, []).append(found_rate)
        if "copies" in results:
            for kind, rates in copies.items():
                rates.append(copying.rate(cold=kind == "cold", seconds=plan.slice_seconds))
        # Rotated, so that no peer always runs after the same one.
        shift = number * len(plan.peers) // plan.rounds
        for peer in plan.peers[shift:] + plan.peers[:shift]:
            tell(f"round {number + 1}/{plan.rounds}  {peer.title}")
            wanted = [name for name in plan.workloads if name in peer.workloads]
            workloads = [name for name in wanted if name != "memory"]
            found = _run_peer(peer, plan, workloads) if workloads else {"results": {}, "errors": {}}
            if "memory" in wanted and number == 0 and "failed" not in found:
                # In fresh processes: pools filled by other workloads would hide what a stream needs.
                memory = _run_peer(peer, plan, ["memory"])
                found["errors"] |= memory.get("errors", {"memory": memory.get("failed")})
                found["results"] |= memory.get("results", {})
            results["peers"][peer.name]["rounds"].append(found)
    return results


def _limit(plan: Plan) -> float:
    """Seconds that a peer may take."""
    return PEER_SECONDS + PEER_NUMBERS * plan.slice_seconds


def _cpus() -> tuple[int | None, int | None]:
    """Return (server's, client's) CPU: two different ones, or no pinning on a machine with one."""
    there = sorted(os.sched_getaffinity(0))
    return (there[0], there[1]) if len(there) > 1 else (None, None)


def _command(role: str, peer: Peer, cpu: int | None, *more: str) -> list[str]:
    pin = [] if cpu is None else ["--cpu", str(cpu)]
    return [sys.executable, "-m", "benchmarks.worker", role, peer.name, *pin, *more]


def _run_peer(peer: Peer, plan: Plan, workloads: list[str]) -> dict[str, Any]:
    server_cpu, client_cpu = _cpus()
    # The user's own settings must not change how a peer runs.
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("AIORDMA_", "SOFTDEV_"))
    }
    environment |= {**plan.environment, **peer.environment}
    if plan.device:
        environment["AIORDMA_DEVICE"] = plan.device
    with subprocess.Popen(
        [*plan.hosts[0], *_command("server", peer, server_cpu)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        watchdog = threading.Timer(_limit(plan), server.kill)
        watchdog.start()
        try:
            hello = _message(server.stdout.readline())
            if "address" not in hello:
                return {"failed": f"server: {hello['failed']}"}
            whose = ["--address", hello["address"], "--server-pid", str(server.pid)]
            return _run_client(peer, plan, client_cpu, whose, environment, workloads)
        finally:
            server.stdin.close()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
            watchdog.cancel()


def _run_client(
    peer: Peer,
    plan: Plan,
    cpu: int | None,
    whose: list[str],
    environment: dict[str, str],
    workloads: list[str],
) -> dict[str, Any]:
    more = [*whose, "--seconds", str(plan.slice_seconds), "--workloads", ",".join(workloads)]
    if plan.quick:
        more.append("--quick")
    try:
        client = subprocess.run(
            [*plan.hosts[1], *_command("client", peer, cpu, *more)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            timeout=_limit(plan),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"client: no result within {_limit(plan):.0f} s"}
    return _message(client.stdout)


def _message(text: str) -> dict[str, Any]:
    try:
        message: dict[str, Any] = json.loads(text)
    except ValueError:
        return {"failed": "the process ended without a result (its last words are above)"}
    return message
