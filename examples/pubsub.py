"""Publish and subscribe with datagrams over RDMA, or TCP without it: one broker, any number of clients.

    python examples/pubsub.py broker --listen 127.0.0.1:7003
    python examples/pubsub.py subscribe 127.0.0.1:7003 'weather/*' news
    python examples/pubsub.py publish 127.0.0.1:7003 weather/berlin sunny
    sensor | python examples/pubsub.py publish 127.0.0.1:7003 sensors/1        (each line is a message)

A message is one datagram: it arrives whole and in order, or not at all. Messages that a subscriber has not
read yet wait in a ring in its own memory. When that ring is full, the broker drops the message for this
subscriber and reports the number lost. With --wait it makes publishers wait instead. Other subscribers are
not affected by drops. How it works: pubsublib/__init__.py.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING, Literal

import anyio
from pubsublib import wire
from pubsublib.broker import Broker

import aiordma

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Mode = Literal["auto", "rdma", "tcp"]
Address = tuple[str, int]


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="pubsub.py"
    )
    roles = top.add_subparsers(dest="role", required=True, metavar="broker | subscribe | publish")
    broker = roles.add_parser(
        "broker", help="passes messages on", description="Passes messages on from publishers to subscribers."
    )
    broker.add_argument("--listen", type=_address, required=True, metavar="HOST:PORT")
    broker.add_argument(
        "--wait",
        action="store_true",
        help="make publishers wait for slow subscribers (default: drop and report the loss)",
    )
    subscribe = roles.add_parser(
        "subscribe", help="prints messages", description="Prints the messages of topics, one a line."
    )
    subscribe.add_argument("broker", type=_address, metavar="HOST:PORT")
    subscribe.add_argument(
        "topics", nargs="+", metavar="TOPIC", help="a topic; a final * matches all topics with this prefix"
    )
    subscribe.add_argument("--count", type=int, metavar="N", help="end after N messages")
    publish = roles.add_parser(
        "publish",
        help="sends messages",
        description="Sends messages to a topic, by default the lines of standard input.",
    )
    publish.add_argument("broker", type=_address, metavar="HOST:PORT")
    publish.add_argument("topic", metavar="TOPIC")
    publish.add_argument("messages", nargs="*", metavar="MESSAGE")
    for role in (broker, subscribe, publish):
        role.add_argument(
            "--mode", choices=("auto", "rdma", "tcp"), default="auto", help="default: RDMA if possible"
        )
    return top


def _address(value: str) -> Address:
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{value!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def run_broker(listen: Address, wait: bool, mode: Mode) -> None:
    """Run the broker until cancelled."""
    broker = Broker(wait=wait)
    async with aiordma.listen_datagram(*listen, mode=mode) as listener:
        print(f"listening on {listen[0]}:{listener.port}", flush=True)
        await listener.serve(broker.serve)


async def subscribe(broker: Address, topics: list[str], count: int | None, mode: Mode) -> None:
    """Print messages until the broker ends or ``count`` messages have arrived."""
    async with aiordma.connect_datagram(*broker, mode=mode) as connection:
        await connection.send_many([wire.subscribe(topic) for topic in topics])
        waiting, got = len(topics), 0
        async for data in connection:
            if data[:1] == wire.MESSAGE:
                message = wire.read_message(data)
                print(f"{message.topic}: {message.payload.decode(errors='replace')}", flush=True)
                got += 1
                if got == count:
                    return
            elif data[:1] == wire.LOST:
                print(f"({wire.read_lost(data)} messages lost: too slow)", file=sys.stderr, flush=True)
            elif data[:1] == wire.SUBSCRIBE:
                waiting -= 1
                if not waiting:
                    print(f"subscribed by {connection.path}", file=sys.stderr, flush=True)


async def publish(broker: Address, topic: str, messages: list[str], mode: Mode) -> None:
    """Send ``messages`` or the lines of standard input; return when the broker has taken all of them."""
    async with aiordma.connect_datagram(*broker, mode=mode) as connection:
        if messages:
            await connection.send_many([wire.publish(topic, message.encode()) for message in messages])
        else:
            async for line in _input_lines():
                await connection.send(wire.publish(topic, line))
        await connection.send_eof()
        async for _ in connection:
            pass


async def _input_lines() -> AsyncIterator[bytes]:
    async for line in anyio.wrap_file(sys.stdin.buffer):
        yield line.rstrip(b"\r\n")


def main() -> int:
    args = parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if args.role != "broker":
        logging.getLogger().setLevel(logging.WARNING)
    try:
        if args.role == "broker":
            anyio.run(run_broker, args.listen, args.wait, args.mode)
        elif args.role == "subscribe":
            anyio.run(subscribe, args.broker, args.topics, args.count, args.mode)
        else:
            anyio.run(publish, args.broker, args.topic, args.messages, args.mode)
    except KeyboardInterrupt:
        return 130
    except wire.WireError as error:
        return _fail(str(error))
    except anyio.BrokenResourceError as error:
        return _fail(f"the connection to the broker was lost: {error.__cause__ or error}")
    except OSError as error:
        return _fail(str(error))
    return 0


def _fail(reason: str) -> int:
    print(f"pubsub.py: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
