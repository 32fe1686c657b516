"""Draw the dashboard without Grafana: `python examples/grafana/picture.py OUT.svg [SECONDS]`.

A program with streams and calls runs for a minute and has some bad luck: late messages, a switch to TCP and
back, a slow handler, streams that it forgets. Meanwhile its exporter is scraped over HTTP, twice a second.
Then each panel of `aiordma.json` is drawn from its queries (`queries.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import prometheus_client
from prometheus_client.parser import text_string_to_metric_families
from queries import evaluate, panels

import aiordma
from aiordma import rpc
from aiordma.observe import trace
from aiordma.observe.prometheus import Collector
from rocefabric import drawing

if TYPE_CHECKING:
    from queries import Scrape

HOST = "127.0.0.1"
INSTANCE = "a-host:9000"
service = rpc.Service("shop")


@service.method
async def price(item: str, slow: bool = False) -> float:
    if slow:
        time.sleep(0.02)  # noqa: ASYNC251  # what a handler must not do
    return 0.1 * len(item)


async def echo(stream: aiordma.RdmaStream) -> None:
    async with stream:
        async for data in stream:
            await stream.send(data)


async def talk(port: int, number: int) -> None:
    payload = bytes(1 << (8 + number))
    async with await aiordma.connect(HOST, port) as stream:
        while True:
            await stream.send(payload)
            got = 0
            while got < len(payload):
                got += len(await stream.receive())
            await asyncio.sleep(0.002)


async def shop(client: rpc.Client, bad: asyncio.Event) -> None:
    while True:
        await client.call("shop.price", "a thing", bad.is_set())
        await asyncio.sleep(0.005)


async def reconnect(port: int) -> None:
    while True:
        for mode in ("auto", "auto", "auto", "tcp"):
            async with await aiordma.connect(HOST, port, mode=mode) as stream:
                await stream.send(b"x")
                await stream.receive()
            await asyncio.sleep(0.05)


async def bad_luck(port: int, seconds: float, bad: asyncio.Event) -> None:
    """At fractions of the time."""
    await asyncio.sleep(seconds * 0.25)
    late = aiordma.faults.add("delay op=cdc p=0.2 ms=5")
    await asyncio.sleep(seconds * 0.1)
    aiordma.faults.remove(late)
    await asyncio.sleep(seconds * 0.1)
    bad.set()
    await asyncio.sleep(seconds * 0.05)
    bad.clear()
    await asyncio.sleep(seconds * 0.1)
    await aiordma.switch_path(None, "tcp", reason="a drill")
    await asyncio.sleep(seconds * 0.1)
    forgotten = [await aiordma.connect(HOST, port) for _ in range(5)]
    await asyncio.sleep(seconds * 0.2)
    for stream in forgotten:
        await stream.aclose()


async def program(seconds: float) -> None:
    trace.configure(sample=1, slow_request_us=10_000, slow_handler_us=10_000)
    bad = asyncio.Event()
    config = aiordma.Config.from_env(leak_after_ms=2000)
    async with (
        await aiordma.listen(HOST, config=config) as listener,
        rpc.serve(service, HOST, 0) as server,
        rpc.connect(HOST, server.port) as client,
    ):
        jobs = [asyncio.create_task(listener.serve(echo)), asyncio.create_task(shop(client, bad))]
        jobs += [asyncio.create_task(talk(listener.port, number)) for number in range(4)]
        jobs += [asyncio.create_task(reconnect(listener.port))]
        luck = asyncio.create_task(bad_luck(listener.port, seconds, bad))
        await asyncio.sleep(seconds)
        await luck
        for job in jobs:
            job.cancel()
        # Of two ends of a connection, the one that is cancelled last learns of the other's end.
        await asyncio.gather(*jobs, return_exceptions=True)


class Scraper(threading.Thread):
    """Scrapes twice a second, until :meth:`stop`."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._url, self._over = f"http://{HOST}:{port}/metrics", threading.Event()
        self.found: list[tuple[float, Scrape]] = []

    def run(self) -> None:
        while not self._over.wait(0.5):
            with urllib.request.urlopen(self._url, timeout=10) as answer:
                text = answer.read().decode()
            scrape = {}
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    labels = {**sample.labels, "instance": INSTANCE}
                    scrape[sample.name, tuple(sorted(labels.items()))] = sample.value
            self.found.append((time.monotonic(), scrape))

    def stop(self) -> list[tuple[float, Scrape]]:
        self._over.set()
        self.join()
        return self.found


def legend(text: str, labels: tuple[tuple[str, str], ...]) -> str:
    for name, value in labels:
        text = text.replace("{{" + name + "}}", value)
    return text


#: Unit of a panel: what a value is divided by, and how the axis is called.
UNITS = {
    **{"Bps": (1e6, "MB/s"), "bytes": (1e6, "MB"), "s": (1e-3, "ms"), "short": (1, "")},
    **dict.fromkeys(("cps", "mps", "ops"), (1, "a second")),
}


def draw(scrapes: list[tuple[float, Scrape]], path: str) -> None:
    times = [at - scrapes[0][0] for at, _ in scrapes]
    shown = []
    for panel in panels():
        by, unit = UNITS.get(panel.unit, (1, panel.unit))
        curves = {
            legend(text, labels).replace(f" {INSTANCE}", ""): [
                (at, value / by) for at, value in zip(times, values, strict=True) if value == value
            ]
            for query, text in panel.queries
            for labels, values in sorted(evaluate(query, scrapes).items())
        }
        if not any(value for curve in curves.values() for _, value in curve):
            curves = {name: [] for name in curves}
        shown.append(drawing.Panel(panel.title, unit, "s", curves, empty="always 0"))
    drawn = drawing.panels(shown, columns=3, foot="One program of one host, software device.", width=400)
    Path(path).write_text(drawn + "\n", encoding="utf-8")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("out", metavar="OUT.svg")
    options.add_argument("seconds", nargs="?", type=float, default=60.0)
    given = options.parse_args()
    registry = prometheus_client.CollectorRegistry()
    registry.register(Collector())
    server, thread = prometheus_client.start_http_server(0, HOST, registry)
    scraper = Scraper(server.server_port)
    scraper.start()
    try:
        asyncio.run(program(given.seconds))
    finally:
        scrapes = scraper.stop()
        server.shutdown()
        server.server_close()
        thread.join()
    draw(scrapes, given.out)
    print(f"{given.out}: {len(scrapes)} scrapes in {given.seconds:g} s")


if __name__ == "__main__":
    main()
