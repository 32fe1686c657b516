"""`python -m benchmarks.kernels`: the software device beside the kernel's two, rxe and siw, in one guest.

Run it where tests/vm/siw has made siw0 (``make bench-kernels``). Programs in C measure, the same with the
same options for each device, with both ends on this machine: perftest, connected by ``rdma_cm``, where both
ends poll, and `ibv_rc_pingpong` where they sleep. (perftest's own ends that sleep wait for ever on rxe. The
pingpong does not use ``rdma_cm``, and siw knows no other way.) rdma-core's own tests run on each device, too.

The guest's processors are emulated: compare the figures with each other only, and measure on a quiet machine.
CPU is of the whole guest while the work is done, kernel threads and interrupts included, less what a run with
a quarter of the work takes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from aiordma.verbs import softlib
from tests.tools import perftest, run_pair

ROOT = Path(__file__).parents[1]
PORT = "18600"
SMALL, LARGE = 64, 65536
LIMIT, TESTS_LIMIT = 60.0, 1500.0
#: What programs ask ``ibv_devinfo -v`` for.
ATTRIBUTES = (
    "transport", "phys_port_cnt", "max_mr_size", "max_qp", "max_qp_wr", "max_sge", "max_sge_rd", "max_cq",
    "max_cqe", "max_mr", "max_pd", "max_qp_rd_atom", "max_qp_init_rd_atom", "atomic_cap", "max_mw", "max_ah",
    "max_srq", "max_srq_wr", "max_srq_sge", "max_pkeys", "max_mtu", "active_mtu", "link_layer",
    "active_speed", "GID[  0]",
)  # fmt: skip


class Device(NamedTuple):
    name: str
    interface: str
    #: Of the interface.
    address: str
    #: A GID of RoCE v2 for the address, where the device has such.
    gid: str
    #: What a user does before the first program runs there.
    steps: str
    environment: dict[str, str]


class Figures(NamedTuple):
    """Of one device in one round, as TITLES has it. nan: it cannot be measured there."""

    awake_us: float
    write_mb_s: float
    small_us: float = math.nan
    small_cpu_us: float = math.nan
    large_us: float = math.nan
    large_cpu_us: float = math.nan


TITLES = (
    "SEND of 64 B and its answer, both ends polling, us",
    "WRITEs of 64 KiB, MB/s",
    "SEND of 64 B and its answer, both ends asleep, us",
    "CPU of these 64 B, us",
    "SEND of 64 KiB and its answer, both ends asleep, us",
    "CPU of these 64 KiB, us",
)


def devices(library: Path) -> list[Device]:
    # "soft": rdma_cm on the software device, though the kernel has devices.
    soft = {"LD_PRELOAD": str(library), "SOFTDEV_DEVICE": "soft"}
    module = "as root: build a module that Debian leaves out, `insmod`, `rdma link add`"
    return [
        Device("soft0", "dummy0", "10.99.0.1", "0", "`LD_PRELOAD`, by any user", soft),
        Device("rxe0", "dummy1", "10.99.2.1", "1", "as root: `modprobe rdma_rxe`, `rdma link add`", {}),
        Device("siw0", "dummy0", "10.99.0.1", "0", module, {}),
    ]


def add_rxe(device: Device) -> None:
    """On an interface of its own: ``rdma_cm`` finds a device by its address."""
    environment = {**os.environ, "PATH": f"/usr/sbin:/sbin:{os.environ['PATH']}"}
    for line in (
        f"ip link add {device.interface} type dummy",
        f"ip addr add {device.address}/24 dev {device.interface}",
        f"ip link set {device.interface} up",
        f"rdma link add {device.name} type rxe netdev {device.interface}",
    ):
        subprocess.run(line.split(), check=True, env=environment)


def busy() -> float:
    """Seconds that the processors have worked since the start."""
    up, idle = map(float, Path("/proc/uptime").read_text(encoding="ascii").split())
    return up * len(os.sched_getaffinity(0)) - idle


def pair(device: Device, *command: object) -> tuple[str, float]:
    """What the client prints, and the CPU seconds of both ends and of the kernel's work for them."""
    words = [str(word) for word in command]
    # A processor for each end. Programs that poll get what the kernel's work there leaves.
    prefix = [] if "-e" in words else ["chrt", "--idle", "0"]
    there, here = (["taskset", "-c", cpu, *prefix, *words] for cpu in "01")
    used = 0.0

    def run() -> tuple[str, str]:
        nonlocal used
        begun = time.monotonic()
        used = -busy()
        said = run_pair(
            there,
            [*here, device.address],
            ready=lambda _: time.monotonic() - begun > 1,  # no table of the kernel has the listener of soft0
            limit=LIMIT,
            environ={**os.environ, **device.environment},
        )
        used += busy()
        return said

    return perftest(run)[1], used


def polling(device: Device, program: str, *options: object) -> list[float]:
    """perftest's line of numbers."""
    text, _ = pair(device, program, "-R", "-d", device.name, "-p", PORT, "-F", *options)
    assert re.search(rf"Device\s*: {device.name}\s", text), text
    lines = re.findall(r"(?m)^ *\d+ +\d+ +[\d.\s]+$", text)
    assert lines, text
    return [float(word) for word in lines[-1].split()]


def asleep(device: Device, size: int, times: int) -> tuple[float, float]:
    """Microseconds of a round trip, and of its CPU."""
    command = [
        "ibv_rc_pingpong",
        "-d",
        device.name,
        "-g",
        device.gid,
        "-p",
        PORT,
        "-e",
        "-m",
        1024,
        "-s",
        size,
    ]
    text, most = pair(device, *command, "-n", times)
    _, least = pair(device, *command, "-n", times // 4)
    found = re.search(r"([\d.]+) usec/iter", text)
    assert found, text
    return float(found[1]), (most - least) / (times - times // 4) * 1e6


def measure(device: Device, times: int) -> Figures:
    trip = 2 * polling(device, "ib_send_lat", "-s", SMALL, "-n", times)[4]  # perftest prints half of it
    rate = polling(device, "ib_write_bw", "-s", LARGE, "-n", times // 4)[3] * (1 << 20) / 1e6
    if device.name.startswith("siw"):
        return Figures(trip, rate)
    return Figures(trip, rate, *asleep(device, SMALL, times), *asleep(device, LARGE, times))


def conformance(device: Device) -> str:
    """rdma-core's own tests on the device."""
    script = ROOT / "tests/system/stacks/rdma_core.py"
    done = subprocess.run(
        [sys.executable, str(script), device.interface, device.name, device.gid],
        cwd=ROOT / "build/stacks/rdma-core",
        env={**os.environ, **device.environment},
        capture_output=True,
        text=True,
        timeout=TESTS_LIMIT,
        check=False,
    )
    said = done.stdout + done.stderr
    ran, skipped = re.search(r"Ran (\d+) tests", said), re.search(r"skipped=(\d+)", said)
    assert ran, said
    failed = sorted(set(re.findall(r"(?m)^(?:FAIL|ERROR): (\S+)", said)))
    left_out = int(skipped[1]) if skipped else 0
    print(f"{device.name} failed: {' '.join(failed)}", file=sys.stderr)
    return f"{int(ran[1]) - left_out - len(failed)} passed, {len(failed)} failed, {left_out} left out"


def attributes(device: Device, **settings: str) -> dict[str, str]:
    environment = {**os.environ, **device.environment, **settings}
    command = ["ibv_devinfo", "-v", "-d", device.name]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    pairs = (line.strip().partition(":") for line in said.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip() in ATTRIBUTES}


def table(columns: list[str], rows: dict[str, list[str]]) -> None:
    print(f"| | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}")
    for title, cells in rows.items():
        print(f"| {title} | {' | '.join(cells)} |")
    print(flush=True)


def _shown(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def main() -> None:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--rounds", type=int, default=3, help="0: nothing is timed [3]")
    parser.add_argument("--times", type=int, default=4000, help="round trips of one run [4000]")
    parser.add_argument("--no-tests", action="store_true", help="without rdma-core's own tests")
    options = parser.parse_args()
    library = softlib.locate()
    assert library is not None, "the software device is not installed: run 'make install'"
    present = devices(library)
    names = [device.name for device in present]
    add_rxe(present[1])

    said = [*map(attributes, present), attributes(present[0], SOFTDEV_PERSONALITY="mlx5")]
    table([*names, "soft0 as mlx5"], {name: [one.get(name, "") for one in said] for name in ATTRIBUTES})
    rounds: list[list[Figures]] = [[] for _ in present]
    for turn in range(options.rounds):
        for number in (0, 1, 2)[turn % 3 :] + (0, 1, 2)[: turn % 3]:
            rounds[number].append(measure(present[number], options.times))
            print(names[number], json.dumps(rounds[number][-1]), file=sys.stderr, flush=True)
    rows = {"set-up": [device.steps for device in present]}
    for place, title in enumerate(TITLES if options.rounds else ()):
        rows[title] = [_shown(median(one[place] for one in of)) for of in rounds]
    if not options.no_tests:
        rows["rdma-core's own tests"] = [conformance(device) for device in present]
    table(names, rows)


if __name__ == "__main__":
    main()
