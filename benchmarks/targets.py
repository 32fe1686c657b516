"""aiordma's performance targets: ratios within one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .peers import PEERS
from .summary import Summary

P50_64 = ("roundtrip", "64", "p50_us")
RATE = ("throughput", "gigabytes_per_second")


@dataclass(frozen=True)
class Verdict:
    work: str
    against: str
    demanded: str
    measured: str
    reached: bool | None
    """None: one of the two was not measured."""


def _times(
    work: str, ours: float | None, against: str, theirs: float | None, unit: str, least: float, better: str
) -> Verdict:
    """Return how many times better `ours` is; `better` is "less" (a time) or "more" (a rate)."""
    demanded = f"{least:g}x"
    if ours is None or theirs is None:
        return Verdict(work, against, demanded, "not measured", None)
    ratio = theirs / ours if better == "less" else ours / theirs
    measured = f"{ratio:.2f}x ({ours:.4g} against {theirs:.4g} {unit})"
    return Verdict(work, against, demanded, measured, ratio >= least)


def _latency(get: Callable[..., float | None], ours: str, theirs: str) -> tuple[float | None, float | None]:
    return get(ours, *P50_64), get(theirs, *P50_64)


def verdicts(summary: Summary) -> Iterator[Verdict]:
    get = summary.value

    def against(work: str, ours: str, theirs: str, least: float) -> Verdict:
        mine, other = _latency(get, ours, theirs)
        return _times(work, mine, summary.title(theirs), other, "us", least, "less")

    yield against("64 B round trip, streams", "stream-hybrid-asyncio", "tcp-uvloop", 15)
    yield against("64 B round trip, StreamWriter", "writer-hybrid-asyncio", "tcp-uvloop", 6)
    # On uvloop, as the other side, and on asyncio, whose own part of a turn is larger.
    for loop in ("uvloop", "asyncio"):
        for surface, name in (("stream", "streams"), ("writer", "StreamWriter")):
            work = f"64 B round trip, {name} on {loop}, events only"
            yield against(work, f"{surface}-events-{loop}", "unix-uvloop", 1.1)

    for workload, suffix in (("throughput", ""), ("throughput_kept", " (memory kept)")):
        rate = (workload, "gigabytes_per_second")

        def faster(
            surface: str,
            work: str,
            other: str,
            rates: list[float | None],
            least: float,
            rate: tuple[str, str] = rate,
        ) -> Verdict:
            best = max((value for value in rates if value is not None), default=None)
            return _times(work, get(f"{surface}-hybrid-asyncio", *rate), other, best, "GB/s", least, "more")

        tcp, tcp_title = [get("tcp-uvloop", *rate)], summary.title("tcp-uvloop")
        unix = [get("unix-asyncio", *rate), get("unix-uvloop", *rate)]
        yield faster("stream", f"1 MiB sends, streams{suffix}", tcp_title, tcp, 8)
        yield faster("writer", f"1 MiB sends, StreamWriter{suffix}", tcp_title, tcp, 4)
        yield faster("stream", f"1 MiB sends, streams{suffix}", "best Unix streams", unix, 3)
    yield from _fallback(summary)
    yield _times(
        "new stream to a known peer",
        get("stream-hybrid-asyncio", "setup", "connect_p50_us"),
        summary.title("tcp-asyncio"),
        get("tcp-asyncio", "setup", "connect_p50_us"),
        "us",
        0.5,
        "less",
    )
    yield from _memory(summary)
    yield from _calls(summary)
    yield from _datagrams(summary)
    yield from _wire(summary)


def _fallback(summary: Summary) -> Iterator[Verdict]:
    """Within 5 %, both in time and in rate."""
    least = 0.95
    for surface, name in (("stream", "streams"), ("writer", "StreamWriter")):
        for loop in ("asyncio", "uvloop"):
            ours, theirs = f"{surface}-tcp-{loop}", f"tcp-{loop}"
            mine, other = _latency(summary.value, ours, theirs)
            title = summary.title(theirs)
            yield _times(f"TCP fallback, {name}, 64 B", mine, title, other, "us", least, "less")
            mine, other = summary.value(ours, *RATE), summary.value(theirs, *RATE)
            yield _times(f"TCP fallback, {name}, 1 MiB", mine, title, other, "GB/s", least, "more")


def _memory(summary: Summary) -> Iterator[Verdict]:
    for side in ("client", "server"):
        found = summary.value("stream-hybrid-asyncio", "memory", f"{side}_anonymous_bytes")
        work = f"idle stream, memory beyond its rings ({side})"
        if found is None:
            yield Verdict(work, "", "8 KiB", "not measured", None)
        else:
            yield Verdict(work, "", "8 KiB", f"{found / 1024:.1f} KiB", found <= 8192)


def _calls(summary: Summary) -> Iterator[Verdict]:
    """Targets for calls: the best loop of each side counts; tracing is compared on one loop."""

    def best(peers: str, size: str, key: str) -> float | None:
        names = [name for name in (f"{peers}-asyncio", f"{peers}-uvloop", peers) if name in PEERS]
        known = [v for name in names if (v := summary.value(name, "calls", size, key)) is not None]
        if not known:
            return None
        return min(known) if key == "p50_us" else max(known)

    def verdict(work: str, ours: str, theirs: str, size: str, key: str, least: float) -> Verdict:
        unit, better = ("us", "less") if key == "p50_us" else ("/s", "more")
        title = {"grpc": "grpc.aio", "msgpack": "msgpack over streams"}.get(theirs, "not traced")
        mine, other = best(ours, size, key), best(theirs, size, key)
        return _times(work, mine, title, other, unit, least, better)

    in_flight = "64 B calls, 64 in flight"
    yield verdict("64 B call, async handler", "rpc-bare", "grpc", "64", "p50_us", 15)
    yield verdict(f"{in_flight}, async handler", "rpc-bare", "grpc", "64", "per_second", 8)
    yield verdict(f"{in_flight}, async handler", "rpc-bare", "msgpack", "64", "per_second", 2)
    yield verdict(f"{in_flight}, def handler", "rpc-def", "grpc", "64", "per_second", 15)
    yield verdict("1 MiB echo, bytes", "rpc-bare", "grpc", "1048576", "p50_us", 8)
    yield verdict("1 MiB echo, views", "rpc-view", "grpc", "1048576", "p50_us", 8)
    for traced, what, least in (("rpc-traced-uvloop", "one in 16", 0.95), ("rpc-each-uvloop", "each", 0.9)):
        yield verdict(f"64 B call, {what} traced", traced, "rpc-bare-uvloop", "64", "p50_us", least)
        yield verdict(f"{in_flight}, {what} traced", traced, "rpc-bare-uvloop", "64", "per_second", least)


def _datagrams(summary: Summary) -> Iterator[Verdict]:
    """Targets for datagrams: the rate of arrivals, and no loss; the best loop of ours counts."""
    work = "64 B datagrams, connected"
    loops = ("asyncio", "uvloop")
    theirs, title = summary.value("udp-uvloop", "datagrams", "64", "per_second"), summary.title("udp-uvloop")
    rates = [summary.value(f"datagrams-{loop}", "datagrams", "64", "per_second") for loop in loops]
    best = max((rate for rate in rates if rate is not None), default=None)
    yield _times(work, best, title, theirs, "/s", 6, "more")
    lost = [summary.value(f"datagrams-{loop}", "datagrams", "64", "lost_percent") for loop in loops]
    known = [value for value in lost if value is not None]
    if known:
        yield Verdict(f"{work}, lost", "", "none", f"{max(known):g} %", max(known) == 0)
    else:
        yield Verdict(f"{work}, lost", "", "none", "not measured", None)


def _wire(summary: Summary) -> Iterator[Verdict]:
    work, get = "WRITE of 64 KiB on the wire, loopback", summary.wire

    def rate(name: str) -> float | None:
        value = get(name)
        return None if value is None else value / 1e9

    def time(name: str) -> float | None:
        value = get(name)
        return None if value is None else value * 1e6

    yield _times(work, rate("write"), "UDP stream with GSO", rate("udp"), "GB/s", 0.4, "more")
    yield _times(work, rate("write"), "asyncio TCP stream", rate("tcp"), "GB/s", 1, "more")
    work = "64 B SEND there and back on the wire, polling"
    yield _times(work, time("send"), "uvloop UDP echo", time("echo"), "us", 2, "less")
