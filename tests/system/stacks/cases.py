"""The programs, how they are called, and what must stand in their output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
BUILT = HERE.parents[2] / "build"
PORT, ADDRESS = "{port}", "{address}"


class Pair(NamedTuple):
    """A server and a client."""

    name: str
    server: tuple[str, ...]
    client: tuple[str, ...]
    wanted: str  # a regular expression, in what the client prints
    environ: tuple[tuple[str, str], ...] = ()
    flaw: str = ""
    """Why it may fail without a fault of the device."""
    limit: float = 60
    checked: bool = True
    """False: its exit status means nothing."""
    port: int = 0
    """Where it listens if it cannot be told."""
    preloaded: bool = True
    """False: it brings the device with it in another way."""


class Left(NamedTuple):
    """A program that cannot run here."""

    name: str
    reason: str


RAW = "Ethernet frames without RDMA: the device has no raw packet queue pairs"
LEFT = [
    *(Left(f"raw_ethernet_{what}", RAW) for what in ("bw", "lat", "burst_lat", "fs_rate")),
    Left("ib_write_bw --use-srq", "perftest refuses: shared receive queues are for ib_send_* only"),
    Left("ib_write_bw -c UD", "perftest refuses: datagrams are for ib_send_* only"),
    *(
        Left(name, "rsockets are a part of librdmacm that uses private fields of its ids")
        for name in ("rstream", "riostream")
    ),
    Left("mckey", "no multicast"),
    Left("cmtime", "its server never ends"),
    Left("ibv_xsrq_pingpong, rdma_xclient", "no XRC"),
    Left("qperf ud_bw, ud_lat", "qperf addresses datagrams by LID alone; RoCE needs a GID, on any device"),
]
RDMA_CORE_FLAWS = {
    "test_resize_cq": "it sends as often as its completion queue has entries, which are 64 where it asked "
    "for 7, and its send queue has 10 places",
}
"""Tests that may fail without a fault of the device, and why."""
EVENTS = (
    "perftest takes any event for one of its send queue, and reads an entry that is not there "
    "if the answer comes first"
)
ROW = r"(?m)^ *\d+ +\d+ +[\d.]+"


def perftest(tool: str, *options: str, flaw: str = "", limit: float = 60) -> Pair:
    index = () if "-R" in options else ("-x", "0")
    command = (tool, "-d", "soft0", "-p", PORT, "-F", *index, *options)
    if "-n" not in options:
        command += ("-n", "200")
    return Pair(" ".join((tool, *options)), command, (*command, ADDRESS), ROW, flaw=flaw, limit=limit)


def perftests() -> Iterator[Pair]:
    for what in ("bw", "lat"):
        for verb, kinds in (("send", "RC UC UD"), ("write", "RC UC"), ("read", "RC"), ("atomic", "RC")):
            for kind in kinds.split():
                yield perftest(f"ib_{verb}_{what}", "-c", kind)
            yield perftest(f"ib_{verb}_{what}", "-R")
    for kind in ("RC", "UC", "UD"):
        yield perftest("ib_send_bw", "-c", kind, "--use-srq")
    yield perftest("ib_send_lat", "-e", "-n", "3000")
    yield perftest("ib_send_lat", "-e", "-c", "UD", flaw=EVENTS, limit=15)
    yield perftest("ib_write_bw", "-q", "2000", "-n", "10", "-t", "8", limit=120)


QPERF = (
    *("rc_bw", "rc_bi_bw", "rc_lat", "uc_bw", "uc_lat", "rc_rdma_write_bw", "rc_rdma_write_lat"),
    *("rc_rdma_read_bw", "rc_rdma_read_lat", "rc_compare_swap_mr", "rc_fetch_add_mr"),
    *("ver_rc_compare_swap", "ver_rc_fetch_add"),
)


def rdma_cm() -> Iterator[Pair]:
    """rdma-core's programs of librdmacm, and its pingpongs."""

    def made(tool: str, wanted: str, *options: str, server: str = "", address: str = "-s") -> Pair:
        ends = (server or tool, *options, "-p", PORT), (tool, *options, "-p", PORT, address, ADDRESS)
        return Pair(" ".join((tool, *options)), *ends, wanted)

    rping = ("rping", "-C", "20", "-V", "-v", "-p", PORT, "-a", ADDRESS)
    yield Pair("rping", (*rping, "-s"), (*rping, "-c"), r"rdma-ping-19")
    yield made("ucmatose", r"return status 0", "-c", "4", "-C", "20")
    yield made("ucmatose", r"return status 0", "-c", "4", "-C", "20", "-m")
    udaddy = ("udaddy", "-c", "4", "-C", "20")
    yield Pair("udaddy -c 4 -C 20", udaddy, (*udaddy, "-s", ADDRESS), r"return status 0", port=7174)
    yield made("rdma_client", r"end 0", server="rdma_server")
    for kind in ("rc", "uc", "ud", "srq"):
        tool = f"ibv_{kind}_pingpong"
        mtu = () if kind == "ud" else ("-m", "1024")
        common = (tool, "-d", "soft0", "-g", "0", *mtu, "-n", "500", "-c", "-p", PORT)
        yield Pair(f"{tool} -c", common, (*common, ADDRESS), r"500 iters in")


def others() -> Iterator[Pair]:
    for test in QPERF:
        common = ("qperf", "-lp", PORT)
        client = (*common, "-cm", "1", "-t", "1", ADDRESS, test, "quit")
        yield Pair(f"qperf {test}", common, client, r"=\s+[\d.]+")
    # UCX's name for rc_verbs, with ud_verbs for nothing but making the connections. By the name of rc_verbs
    # alone it refuses to make any ("no auxiliary transport", ucp/wireup/select.c), on every device.
    for tls in ("rc_v", "ud_verbs"):
        for test in ("tag_lat", "tag_bw"):
            common = ("ucx_perftest", "-p", PORT)
            environ = (("UCX_TLS", tls), ("UCX_NET_DEVICES", "soft0:1"))
            measuring = (*common, ADDRESS, "-t", test, "-n", "1000")
            yield Pair(f"ucx_perftest {test} over {tls}", common, measuring, r"(?m)^Final: +1000 ", environ)
    # Its exit status with -c is a remainder of the check, also over its tcp provider.
    fabric = ("fi_pingpong", "-p", "verbs;ofi_rxm", "-e", "rdm", "-I", "20", "-c")
    server, pinging = (*fabric, "-B", PORT), (*fabric, "-P", PORT, ADDRESS)
    yield Pair("fi_pingpong verbs;ofi_rxm", server, pinging, r"(?m)^1m +20 +=20 ", checked=False)


EARLY = (
    "fio connects without retries for a receiver that is not ready (rnr_retry_count 0), and gives its "
    "server half a second to post its receives; after the error it waits for ever"
)


def fio() -> Iterator[Pair]:
    """fio's engine rdma: the client writes, has the server fetch, or sends, to a receive for each message."""
    for verb, receives, flaw, limit in (
        ("write", 16, "", 60),
        ("read", 16, "", 60),
        ("send", 256, EARLY, 15),
    ):
        # With threads, what does not end is ended whole.
        common = ("fio", "--ioengine=rdma", "--thread", "--port={port}", "--bs=64k", "--size=16m")
        server = (*common, f"--iodepth={receives}", "--name=server", "--rw=read")
        client = (
            *common,
            "--iodepth=16",
            "--name=client",
            "--rw=write",
            "--hostname={address}",
            f"--verb={verb}",
        )
        written = r"(?m)err= 0.*\n(.*\n)* *WRITE: .*io=16\.0MiB"
        yield Pair(f"fio --ioengine=rdma --verb={verb}", server, client, written, flaw=flaw, limit=limit)


RIGHT = r"blocks each way are right"


def wheels() -> Iterator[Pair]:
    """Packages of PyPI, each in an environment of its own (make test-stacks makes them)."""

    def ends(engine: str, *python: str) -> tuple[tuple[str, ...], ...]:
        program = (*python, str(HERE / "transfer.py"), engine)
        return tuple((*program, role, PORT, ADDRESS) for role in ("own", "use"))

    # Without TCP: its UCX makes its connections by the device, too.
    environ = (("UCX_TLS", "rc_v,self"), ("UCX_NET_DEVICES", "soft0:1"))
    nixl = ends("nixl", str(BUILT / "blocks/nixl/bin/python"))
    yield Pair("nixl, UCX over rc_v", nixl[0], nixl[1], RIGHT, environ)
    # It looks for its device in /sys and /dev, which the installed software device shows it.
    python = BUILT / "blocks/mooncake/bin/python"
    mooncake = ends("mooncake", str(BUILT / "blocks/softdev/bin/softdev"), "present", str(python))
    if python.exists():
        yield Pair("mooncake-transfer-engine, rdma", mooncake[0], mooncake[1], RIGHT, preloaded=False)


def pairs() -> Iterator[Pair]:
    for programs in (perftests, rdma_cm, others, fio, wheels):
        yield from programs()
