"""What `make bench-apps` reads from processes, and how it shows it."""

from __future__ import annotations

import os
import subprocess
import threading
import time

import pytest

from benchmarks.apps.__main__ import page
from benchmarks.apps.counting import EngineCounts, parse_count, read_engines
from benchmarks.apps.counts import Cell, row, size
from benchmarks.apps.proxy import ROLES, Load, Run
from benchmarks.apps.suite import Rounds
from benchmarks.apps.turns import Outcome, Sample, by_turns, table_row
from benchmarks.processes import Reading, read_process


def test_a_process_is_read_with_all_its_threads() -> None:
    before = read_process(os.getpid())
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    sum(range(200_000))
    deadline = time.monotonic() + 20
    while not (used := read_process(os.getpid()) - before).waits and time.monotonic() < deadline:
        time.sleep(0.001)  # the second thread is about to wait
    done.set()
    thread.join()
    assert used.cpu_us > 0
    assert used.waits >= 1, "a thread that waits is a switch"


def test_a_process_that_has_ended_cannot_be_read() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(FileNotFoundError):
        read_process(child.pid)


def test_a_process_without_an_engine_has_no_counts() -> None:
    assert read_engines(os.getppid()) == EngineCounts()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1234,,raw_syscalls:sys_enter,990231,100.00,,\n", 1234),
        ("<not counted>,,raw_syscalls:sys_enter,0,100.00,,\n", 0),
        ("", 0),
    ],
)
def test_the_count_of_perf(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(("count", "text"), [(3, "3 B"), (65_536, "64 KiB"), (1 << 20, "1 MiB")])
def test_sizes_read_as_people_write_them(count: int, text: str) -> None:
    assert size(count) == text


def test_a_row_divides_by_the_requests_of_the_load() -> None:
    run = Run(
        10_000.0,
        {"front": Reading(4000.0, 1000.0, 200), "back": Reading(2000.0, 0.0, 50)},
        dict.fromkeys(ROLES, EngineCounts(completions=300, polls=150, empty_polls=50, events=100, arms=100)),
        {"front": 700, "back": 600},
    )
    cells = row(Load(4, 65_536, 50), "rdma", Cell([run], 100))
    assert cells == [
        "4, 64 KiB", "RDMA", "10,000", "40 / 20", "2 / 0.5", "7 / 6", "1 / 1", "3 / 3", "10 / 0",
    ]  # fmt: skip
    assert row(Load(4, 3, 50), "tcp", Cell([run], 100))[6:8] == ["", ""], "TCP has no engine"


def test_paths_take_turns_and_ratios_are_of_one_round() -> None:
    order: list[str] = []
    rates = iter([200.0, 100.0, 50.0, 300.0, 90.0, 30.0])

    def run(path: str) -> Sample:
        order.append(path)
        return Sample(next(rates), 10.0 if path == "rdma" else 20.0)

    outcome = by_turns("work", 2.0, 3, run, cpu_goal=True)
    assert order == ["rdma", "tcp", "tcp", "rdma", "rdma", "tcp"]
    assert outcome.rate_ratio == 3.0, "the median of 2, 6 and 3"
    assert outcome.cpu_ratio == 0.5
    assert outcome.reached
    assert table_row(outcome) == ("| work | 2x | 3.00x | 0.50x | 200/s, 10 us | 50/s, 20 us | yes |\n")


def test_a_goal_for_the_cpu_time_must_be_reached_too() -> None:
    same = [Sample(100.0, 10.0)]
    dearer = [Sample(110.0, 11.0)]
    assert Outcome("work", 1.0, dearer, same).reached
    assert not Outcome("work", 1.0, dearer, same, cpu_goal=True).reached


def test_the_page_says_on_what_it_was_measured() -> None:
    machine = {name: name for name in ("cpu", "cpus", "system", "kernel", "python", "revision")}
    outcome = Outcome("work", 1.0, [Sample(1.0, 1.0)], [Sample(2.0, 1.0)])
    text = page([outcome], Rounds(5, 1.0), {**machine, "load_before": 0.25}, 2.0)
    assert "load before: 0.2, after: 2.0" in text
    assert "| work | 1x | 0.50x | 1.00x | 1/s, 1 us | 2/s, 1 us | **no** |" in text
