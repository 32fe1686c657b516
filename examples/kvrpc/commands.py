"""The commands of kv_rpc.py's client: each is one call or one stream."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable

from aiordma import rpc

from .service import Entry, Pair

Command = Callable[[rpc.Pool, argparse.Namespace], Awaitable[None]]


async def get(client: rpc.Pool, args: argparse.Namespace) -> None:
    entry = await client.call("kv.get", args.key, returns=Entry, timeout=args.timeout)
    show(entry)


async def put(client: rpc.Pool, args: argparse.Namespace) -> None:
    # Keyword arguments are sent by name.
    more = {} if args.if_version is None else {"if_version": args.if_version}
    version = await client.call("kv.put", args.key, args.value.encode(), timeout=args.timeout, **more)
    print(f"version {version}")


async def delete(client: rpc.Pool, args: argparse.Namespace) -> None:
    print("deleted" if await client.call("kv.delete", args.key, timeout=args.timeout) else "was not there")


async def scan(client: rpc.Pool, args: argparse.Namespace) -> None:
    left = args.limit
    async with client.stream("kv.scan", args.prefix, returns=Entry, timeout=args.timeout) as entries:
        async for entry in entries:
            show(entry)
            left -= 1
            if left == 0:
                break  # leaving the block cancels the handler; see the server's log


async def load(client: rpc.Pool, args: argparse.Namespace) -> None:
    async with client.stream("kv.load", timeout=args.timeout) as stream:
        for line in args.file:
            key, equals, value = line.rstrip("\n").partition("=")
            if equals:
                await stream.send(Pair(key, value.encode()))  # waits while the server is behind
        print(f"{await stream.result()} stored")


async def wait(client: rpc.Pool, args: argparse.Namespace) -> None:
    entry = await client.call(
        "kv.wait", args.key, newer_than=args.newer_than, returns=Entry, timeout=args.timeout
    )
    show(entry)


async def methods(client: rpc.Pool, args: argparse.Namespace) -> None:
    for service in await client.call("rpc.reflection.services", returns=list[rpc.ServiceInfo]):
        print(service)


def show(entry: Entry) -> None:
    print(f"{entry.key} = {entry.value.decode(errors='replace')}  (version {entry.version})")
    sys.stdout.flush()
