"""An operator's round: two servers under load, five faults, and each cause from what the tools print.

The words here are those of "Five faults, and what you see" in docs/howto/slow.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from .scene import Scene, scene

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("operator")]


@pytest.fixture
def seen() -> Iterator[Scene]:
    with scene() as found:
        found.until_page(lambda page: page["history"][-1]["on_rdma"] == 6)
        yield found


def rows_of(text: str, program: str) -> str:
    """Those of a table."""
    return "\n".join(row for row in text.splitlines() if row.startswith(program))


def test_a_client_is_killed(seen: Scene) -> None:
    gone, feed = seen.readers[1], seen.feed
    gone.kill()
    # Its page has the number of its last second, and the live page that of its last look.
    seen.until(rf"{gone.named} was killed, or crashed, at [\d:]+: it had [01] connections\.")
    # The stream may end before the link does, which is no loss then.
    seen.until_page(
        lambda page: any(
            each["pid"] == feed.pid and each["kind"] in ("link lost", "link ended") for each in page["events"]
        )
    )
    # Other tests of this user kill processes as well.
    (event,) = [
        each for each in seen.page()["events"] if (each["kind"], each["pid"]) == ("was killed", gone.pid)
    ]
    assert event["text"] == "it had 1 connections"
    shown = rows_of(seen.command("stat"), gone.shown)
    assert re.fullmatch(rf"{gone.named}: KILLED, or crashed, at [\d:]+: it had [01] connections", shown)
    assert re.search(r" link (lost|ended) ", seen.command("stat", "--events", "--pid", str(feed.pid)))


def test_a_client_stops_reading(seen: Scene) -> None:
    """Then neither end reads: the server waits in its send. The one that began it is named."""
    slow, feed = seen.readers[0], seen.feed
    assert slow.say("stop") == "stop"
    also = "and does not read meanwhile, either"
    seen.until(
        rf"{slow.named} does not read: \S+ wait for it; {feed.named} has waited for \S+ for that, {also}"
    )
    assert not any(f"{feed.shown} does not read" in each for each in seen.sentences())
    row = rows_of(seen.command("stat", "-d", "--pid", str(slow.pid)), slow.shown)
    assert re.search(r" [\d.]+K +\d+ +[\d.]+s ", row), row  # waiting, blocked, and for how long
    assert slow.say("go") == "go"
    seen.until_page(lambda page: "does not read" not in str(page["sentences"]))


@pytest.mark.long
def test_a_link_delivers_nothing(seen: Scene) -> None:
    feed, reader = seen.feed, r"reader\.py\[\d+\]"
    rule = "drop op=send,write,keepalive ms=never times=1"
    seen.command("adm", "--pid", str(feed.pid), "faults", "add", rule)
    seen.until(rf"Nothing gets from {feed.named} to {reader}: {reader} has waited for \S+ for it to read")
    silent = "no answer to the keepalive probe within"
    seen.until(rf"{feed.named} lost its link to 127\.0\.0\.1:\d+: {silent}")
    seen.until(rf"1 connections of {feed.named} (left RDMA|are on TCP since they left RDMA): .*{silent}")
    rows = seen.command("stat", "--events", "--pid", str(feed.pid))
    assert re.search(rf"left RDMA +the RDMA link was lost; .* {silent}", rows)


@pytest.mark.long
def test_a_handler_blocks_the_event_loop(seen: Scene) -> None:
    """Nothing is set: the loop's own timer is late. The trace it proposes names the handler."""
    shop = seen.shop
    # Longer than what it waits for a processor in a second, also beside much load: that is taken off.
    assert shop.say("0.8") == "blocks"
    asked = seen.until(
        rf"{shop.named} blocks its event loop: a timer .* late \d+ times in the last minute, "
        r"by \d+ ms at most \(aiordma (adm --pid \d+ trace start) makes its log name what blocks it\)\."
    )
    assert "slow_handler_us: 0 -> 10000" in seen.command(*asked[1].split())
    seen.until(rf"{shop.named} blocks its event loop: \d+ times in the last \d+ s, \d+ ms at most\.")
    seen.until(rf"shop\.report takes \d+ ms or more \(.*\) at the server {shop.named}")
    assert " shop.report " in rows_of(seen.command("stat", "--rpc"), shop.shown)
    log = shop.log()
    assert re.search(r"slow handler: shop\.report for \S+ took \d{3,}\.\d+ ms", log), log
    assert re.search(r"slow poll: what a batch of completions called took \d{3,}\.\d+ ms", log), log


def test_the_memory_of_a_server_is_full(seen: Scene) -> None:
    feed, reader = seen.feed, seen.readers[0]
    assert reader.say("more") == "more"
    out = "out of registered memory"
    seen.until(rf"{feed.named} has no registered memory left: it refused \d+ blocks in the last")
    seen.until(rf"\d+ connections of {feed.named} began on TCP: {out}")
    seen.until(rf"\d+ connections of {reader.named} began on TCP: the peer declined: {out}")
    assert out in seen.command("stat", "--fallbacks", "--pid", str(feed.pid))
    assert " 4.0M " in rows_of(seen.command("stat", "--memory"), feed.shown)
