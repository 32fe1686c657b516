"""One process of a benchmark: `python -m benchmarks.worker server|client PEER ...`, pinned to one CPU.

The runner starts it and reads one line of JSON from its output. A server runs until its standard input is
closed, so none outlives the runner.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import resource
import sys
import traceback
from collections.abc import Coroutine
from typing import Any

from .peers import PEERS, Peer
from .workloads import Bench, WrongPathError


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _run(main: Coroutine[Any, Any, None], loop: str) -> None:
    if loop == "uvloop":
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)
    else:
        with asyncio.Runner() as runner:
            runner.run(main)


def _keep_awake() -> None:
    """Make the running loop poll without sleeping: a callback is always ready."""
    asyncio.get_running_loop().call_soon(_keep_awake)


async def _serve(peer: Peer) -> None:
    if peer.keeps_loop_awake:
        _keep_awake()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    async def wait_for_the_end() -> None:
        await stop.wait()

    def input_ready() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    loop.add_reader(sys.stdin.fileno(), input_ready)
    serving = asyncio.create_task(peer.transport().serve(lambda address: _say({"address": address})))
    ending = asyncio.create_task(wait_for_the_end())
    await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def _measure(peer: Peer, bench: Bench, workloads: list[str]) -> None:
    if peer.keeps_loop_awake:
        _keep_awake()
    found: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name in workloads:
        if name not in peer.workloads:
            continue
        workload = importlib.import_module(f".workloads.{name}", __package__)
        try:
            found[name] = await workload.measure(bench)
        except WrongPathError:
            raise
        except Exception as error:  # one failing workload must not discard the others' results
            errors[name] = _reason(error)
            traceback.print_exc()
    _say({"results": found, "errors": errors})


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.worker")
    parser.add_argument("role", choices=["server", "client"])
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--address", default="")
    parser.add_argument(
        "--server-pid", type=int, default=0, help="the server's process, whose CPU time counts, too"
    )
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--workloads", default="")
    options = parser.parse_args()

    if options.cpu is not None:
        os.sched_setaffinity(0, {options.cpu})
    # A thousand connections and their descriptors; the usual soft limit is 1024.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    peer = PEERS[options.peer]
    try:
        if options.role == "server":
            _run(_serve(peer), peer.loop)
        else:
            bench = Bench(
                peer.transport(),
                options.address,
                options.seconds,
                options.quick,
                peer.path,
                options.server_pid,
            )
            _run(_measure(peer, bench, options.workloads.split(",")), peer.loop)
    except WrongPathError as error:
        _say({"failed": str(error)})
    except Exception as error:
        traceback.print_exc()
        _say({"failed": _reason(error)})
        sys.exit(1)


if __name__ == "__main__":
    main()
