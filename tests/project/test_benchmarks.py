"""The benchmarks run, and their report says what was measured. No number is judged here."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from array import array
from typing import Any

import pytest

from aiordma.measure.samples import percentile
from benchmarks import crowd, hosts, stations, wire
from benchmarks.goals import goals
from benchmarks.offered import offered
from benchmarks.peers import PEERS, Peer
from benchmarks.report import markdown
from benchmarks.runner import Plan, run
from benchmarks.summary import Summary
from benchmarks.targets import verdicts
from benchmarks.waiting import TITLES
from tests import patient
from tests.cable import NoNamespacesError

#: A plan takes none of the tests' environment, so that what users have is measured.
_PATIENT: dict[str, Any] = {"environment": patient.environment()}


def _run(peer: Peer, *workloads: str, seconds: float = 0.01) -> dict[str, object]:
    plan = Plan([peer], rounds=1, slice_seconds=seconds, quick=True, workloads=workloads, **_PATIENT)
    return run(plan, lambda line: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tcp-asyncio", "unix-uvloop", "anyio-asyncio"])
def test_a_peer_is_measured_in_two_processes(name: str) -> None:
    results = _run(PEERS[name], "setup", "roundtrip", "throughput", "memory", "throughput_kept")
    summary = Summary(results)
    assert summary.problems() == {}
    for keys in (
        ("setup", "connect_p50_us"),
        ("roundtrip", "64", "p50_us"),
        ("roundtrip", "65536", "p99_us"),
        ("throughput", "gigabytes_per_second"),
        ("throughput_kept", "server_cpu_ns_per_kib"),
    ):
        value = summary.value(name, *keys)
        assert value is not None, keys
        assert value > 0, keys
    text = markdown(results)
    assert PEERS[name].title in text
    copies = [summary.copies(kind) for kind in ("warm", "cold")]
    assert all(copies)
    assert "One `memcpy` of 1 MiB" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["socket-blocking", "socket-spin", "connection", "unix-spin-uvloop", "stream-events-uvloop"]
)
def test_round_trips_say_what_both_ends_spend(name: str) -> None:
    # Longer than a tick, which is when the kernel counts the time of a process that spins. On a busy machine
    # a process has had no tick of it.
    for seconds in (0.1, 0.5, 2.5):
        summary = Summary(results := _run(PEERS[name], "roundtrip", seconds=seconds))
        assert summary.problems() == {}
        values = {
            (size, key): summary.value(name, "roundtrip", size, key)
            for key in ("p50_us", "client_cpu_us", "server_cpu_us")
            for size in ("64", "4096", "65536")
        }
        if all(values.values()):
            break
    assert all(value is not None and value > 0 for value in values.values()), values
    text = markdown(results)
    assert TITLES[PEERS[name].waits] in text
    assert not [title for title in TITLES.values() if title in text and title != TITLES[PEERS[name].waits]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unix-uvloop", "stream-hybrid-uvloop", "writer-events-uvloop"])
def test_round_trips_are_measured_at_fixed_rates(name: str) -> None:
    summary = Summary(results := _run(PEERS[name], "load"))
    assert summary.problems() == {}
    p50, p999 = (summary.value(name, "load", "1000", key) for key in ("p50_us", "p999_us"))
    assert p50 is not None
    assert p999 is not None
    assert 0 < p50 <= p999
    assert "1,000/s" in markdown(results)


def test_in_an_open_loop_a_pause_makes_all_late_that_were_due() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1e-5  # so that waiting for it ends
        return now

    async def run_it() -> array[float]:
        echoed: asyncio.Queue[bytes] = asyncio.Queue()
        is_first = True

        async def receive(size: int) -> None:
            nonlocal is_first, now
            if is_first:
                is_first, now = False, now + 0.05
            assert len(await echoed.get()) == size

        return await offered(echoed.put, receive, 64, 1000, 0.1, clock)

    seconds = asyncio.run(run_it())
    assert len(seconds) == 100
    # 30 were due in the first 30 ms of the pause.
    assert all(late >= 0.02 for late in seconds[:30])
    assert all(late < 0.02 for late in seconds[60:])


def test_in_an_open_loop_a_pause_of_all_the_time_leaves_one_round_trip() -> None:
    times = itertools.chain((0.0,), itertools.repeat(5.0))

    async def run_it() -> array[float]:
        echoed: asyncio.Queue[bytes] = asyncio.Queue()

        async def receive(size: int) -> None:
            assert len(await echoed.get()) == size

        return await offered(echoed.put, receive, 64, 1000, 0.01, lambda: next(times))

    assert list(asyncio.run(run_it())) == [pytest.approx(4.999)]


def test_a_report_shows_only_what_was_measured() -> None:
    found = {
        "rounds": [{"results": {"roundtrip": {"64": {"p50_us": 5.0}}}}],
        "title": "a peer",
        "ours": False,
    }
    machine: dict[str, object] = dict.fromkeys(("cpu", "cpus", "system", "kernel", "python"), "-")
    machine |= {"packages": {}, "revision": None, "modified": False, "virtual": True, "load_before": 0.0}
    results = {"machine": machine, "rounds": 1, "slice_seconds": 1.0, "peers": {"tcp-uvloop": found}}
    titles = [line for line in markdown(results).splitlines() if line.startswith("## ")]
    assert titles == ["## Targets", "## Round trips", "## Asleep and awake"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["msgpack-asyncio", "msgpack-uvloop", "rpc-bare-asyncio", "rpc-def-uvloop"])
def test_a_way_to_make_calls_is_measured_in_two_processes(name: str) -> None:
    results = _run(PEERS[name], "setup", "calls", "call_streams", "calls_beside_bulk")
    summary = Summary(results)
    assert summary.problems() == {}
    for keys in (
        ("calls", "64", "p50_us"),
        ("calls", "1048576", "per_second"),
        ("call_streams", "65536", "items_per_second"),
        ("calls_beside_bulk", "own", "p99_us"),
    ):
        value = summary.value(name, *keys)
        assert value is not None, keys
        assert value > 0, keys
    assert summary.value(name, "setup", "connect_p50_us") is None
    assert PEERS[name].title in markdown(results)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["datagrams-uvloop", "datagrams-tcp-asyncio", "endpoint-asyncio", "udp-uvloop"]
)
def test_datagrams_are_measured(name: str) -> None:
    results = _run(PEERS[name], "datagrams")
    summary = Summary(results)
    assert summary.problems() == {}
    for key in ("per_second", "arrived", "p50_us"):
        value = summary.value(name, "datagrams", "64", key)
        assert value is not None
        assert value > 0
    if PEERS[name].path in ("rdma", "tcp") and name.startswith("datagrams"):
        assert summary.value(name, "datagrams", "64", "lost_percent") == 0
    assert PEERS[name].title in markdown(results)


def test_a_peer_that_cannot_be_had_is_reported_with_the_reason() -> None:
    peer = Peer("missing", "a missing peer", "no_such_module:transport")
    PEERS[peer.name] = peer
    try:
        results = _run(peer, "roundtrip")
    finally:
        del PEERS[peer.name]
    # The worker process knows only the registered peers, so it refuses the name.
    assert "a missing peer" in markdown(results)
    assert list(Summary(results).problems()) == ["a missing peer"]


def _made_up(**p50: float) -> dict[str, object]:
    return {
        "peers": {
            name.replace("_", "-"): {
                "title": name,
                "rounds": [
                    {"results": {"roundtrip": {"64": {"p50_us": value * factor}}}} for factor in (1, 9, 2)
                ],
            }
            for name, value in p50.items()
        }
    }


def test_a_target_is_judged_by_medians() -> None:
    found = list(verdicts(Summary(_made_up(stream_hybrid_asyncio=2.0, tcp_uvloop=31.0))))
    assert (found[0].reached, found[0].measured) == (True, "15.50x (4 against 62 us)")
    found = list(verdicts(Summary(_made_up(stream_hybrid_asyncio=2.0, tcp_uvloop=29.0))))
    assert found[0].reached is False
    assert {verdict.reached for verdict in found[1:]} == {None}


def test_goals_say_what_bounds_those_that_are_missed() -> None:
    times = {
        "stream_hybrid_uvloop": 2.0,
        "tcp_uvloop": 90.0,
        "stream_events_uvloop": 60.0,
        "unix_uvloop": 66.0,
    }
    found = {goal.work: goal for goal in goals(Summary(_made_up(**times)))}
    # The medians are twice as long.
    awake, tcp = found["64 B round trip"], found["64 B round trip, to uvloop TCP"]
    assert (awake.reached, awake.measured) == (False, "4 us")
    assert (tcp.reached, tcp.measured, tcp.bound) == (True, "45x", "")
    asleep = found["64 B round trip, events only, to uvloop Unix"]
    assert (asleep.reached, asleep.measured) == (False, "1.1x")
    assert awake.bound
    assert asleep.bound
    assert found["1 MiB sends, to one memcpy"].measured == "not measured"
    assert {goal.reached for goal in found.values() if goal.measured == "not measured"} == {None}


def test_the_wire_is_judged_by_medians() -> None:
    found = {"write": [5e9, 1e9, 4e9], "udp": [8e9], "tcp": [4.1e9], "send": [2e-5], "echo": [4e-5]}
    results = _made_up() | {"wire": {"rounds": 3, "found": found, "missing": {"read": "no such program"}}}
    summary = Summary(results)
    judged = [(v.reached, v.measured) for v in verdicts(summary) if "on the wire" in v.work]
    assert judged == [
        (True, "0.50x (4 against 8 GB/s)"),
        (False, "0.98x (4 against 4.1 GB/s)"),
        (True, "2.00x (20 against 40 us)"),
    ]


@pytest.mark.slow
@pytest.mark.xdist_group("namespaces")
def test_the_wire_is_measured() -> None:
    """Over loopback; between network namespaces, or it says why not."""
    # It forks, so it has a process without other threads, as pytest's may have.
    program = "import json; from benchmarks import wire; print(json.dumps(wire.run(1, 0.01, print)))"
    command = [sys.executable, "-W", "error::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["found"].keys() == (wire.RATES | wire.TIMES).keys()
    for name, values in results["found"].items():
        assert values or results["missing"][name]
        # In 10 ms, a stream between two processes on a busy machine may move nothing.
        assert all(value >= 0 if name in {"udp", "tcp"} else value > 0 for value in values)
    for name in ("write", "read", "send"):
        assert results["found"][name], results["missing"]
    whole = _run(PEERS["tcp-asyncio"], "roundtrip") | {"wire": results}
    text = markdown(whole)
    for title, _ in (wire.RATES | wire.TIMES).values():
        assert title in text


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.xdist_group("namespaces")
def test_two_hosts_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where network namespaces can be made."""

    def plan(*arguments: Any, **options: Any) -> Plan:
        options["environment"] |= patient.environment()
        return Plan(*arguments, **options)

    monkeypatch.setattr(hosts, "Plan", plan)
    try:
        results = hosts.measure(4500, 1, 0.01, lambda line: None)
    except NoNamespacesError as error:
        pytest.skip(str(error))
    summary = Summary(results)
    # What aiordma's peers measure by TCP is a failure, so these have gone by the wire.
    assert summary.problems() == {}
    for peer in hosts.STREAMS:
        for _, keys, key, _ in hosts.COLUMNS:
            assert summary.value(peer, *keys, key), (peer, keys)
            # What it says an operation costs has both ends in it.
            assert all(summary.value(peer, *keys, each) for each in hosts.CPU[key]), (peer, keys)
    for peer in hosts.CALLS:
        assert summary.value(peer, "calls", "64", "per_second"), peer
    text = hosts.tables(results)
    assert "not measured" not in text
    assert all(summary.title(peer) in text for peer in (*hosts.STREAMS, *hosts.CALLS))


def test_hosts_are_judged_by_their_goals() -> None:
    """By the better of the streams as they are by default; events only does not count."""

    def peer(name: str, micro: float, rate: float) -> dict[str, object]:
        work = {"roundtrip": {"64": {"p50_us": micro}, "65536": {"p50_us": micro}}}
        found = {**work, "throughput": {"gigabytes_per_second": rate}}
        return {"title": name, "ours": True, "rounds": [{"results": found, "errors": {}}]}

    times = (
        ("tcp-uvloop", 60.0, 1.0),
        ("writer-hybrid-uvloop", 70.0, 1.2),
        ("stream-hybrid-uvloop", 40.0, 1.6),
    )
    peers = {name: peer(name, *rest) for name, *rest in (*times, ("writer-events-uvloop", 10.0, 9.0))}
    text = hosts.tables({"mtu": 1500, "peers": peers})
    assert "| 64 B there and back, us | 2x | 1.50x (40 against 60) | **no** |" in text
    assert "| 64 KiB there and back, us | 1x | 1.50x (40 against 60) | yes |" in text
    assert "| 1 MiB sends, MB/s | 1.5x | 1.60x (1,600 against 1,000) | yes |" in text
    del peers["tcp-uvloop"]["rounds"][:]  # type: ignore[attr-defined]
    assert "| 1 MiB sends, MB/s | 1.5x | not measured | - |" in hosts.tables({"mtu": 1500, "peers": peers})


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_crowd_of_peers_is_measured(capfd: pytest.CaptureFixture[str]) -> None:
    crowd.measure(4, 2)
    said = capfd.readouterr().out
    for part in ("one peer: 64 B", "4 peers: connected in", "a peer costs", "among them: ", "the storm: "):
        assert part in said


def test_percentile_is_the_nearest_rank() -> None:
    assert percentile([1.0], 0.99) == 1.0
    assert percentile([float(n) for n in range(100)], 0.5) == 50.0
    assert percentile([float(n) for n in range(100)], 0.99) == 99.0


def test_the_stations_of_a_byte_can_be_measured() -> None:
    """The page that shows them names the command; it must work."""
    found = asyncio.run(stations.measure(64, 40))
    assert any(name.startswith("8 ") for name in found)
    assert any(name.startswith("6 ") for name in found)
    assert len(asyncio.run(stations.wake_up(3))) == 2
