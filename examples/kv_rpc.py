"""A key-value store as an RPC service over RDMA, or TCP without it: methods, streams, deadlines.

Start a server and leave it running:

    python examples/kv_rpc.py server --listen 127.0.0.1:7005

Then call it. Each command is one call or one stream:

    python examples/kv_rpc.py client 127.0.0.1:7005 put apple red
    python examples/kv_rpc.py client 127.0.0.1:7005 put apple green --if-version 1
    python examples/kv_rpc.py client 127.0.0.1:7005 get apple
    python examples/kv_rpc.py client 127.0.0.1:7005 get ""                 # a bad argument: see the error
    seq 1000 | sed 's/.*/key&=value &/' |
    python examples/kv_rpc.py client 127.0.0.1:7005 load -                 # streams to the server
    python examples/kv_rpc.py client 127.0.0.1:7005 scan key9              # streams from the server
    python examples/kv_rpc.py client 127.0.0.1:7005 scan key --limit 3     # ... and stops it: see its log
    python examples/kv_rpc.py client 127.0.0.1:7005 --timeout 1 wait pear  # a deadline
    python examples/kv_rpc.py client 127.0.0.1:7005 methods                # what the server serves

With several servers (HOST:PORT,HOST:PORT) the client uses the first that works. The service is an ordinary
class: kvrpc/service.py. The client's calls are in kvrpc/commands.py.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from typing import Literal

import anyio
from kvrpc import commands
from kvrpc.service import Store

from aiordma import rpc

Mode = Literal["auto", "rdma", "tcp"]


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="kv_rpc.py"
    )
    roles = top.add_subparsers(dest="role", required=True, metavar="server | client")
    server = roles.add_parser("server", help="keeps keys and values", description="Keeps keys and values.")
    server.add_argument("--listen", type=_address, default=("127.0.0.1", 7005), metavar="HOST:PORT")
    client = roles.add_parser("client", help="calls a server", description="Makes one call.")
    client.add_argument("servers", type=_addresses, metavar="HOST:PORT[,HOST:PORT ...]")
    client.add_argument("--timeout", type=float, metavar="SECONDS", help="deadline of the call")
    for role in (server, client):
        role.add_argument(
            "--mode", choices=("auto", "rdma", "tcp"), default="auto", help="default: RDMA if possible"
        )
    _add_commands(client.add_subparsers(dest="command", required=True, metavar="COMMAND"))
    return top


def _add_commands(add: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    key = argparse.ArgumentParser(add_help=False)
    key.add_argument("key", metavar="KEY")
    get = add.add_parser("get", parents=[key], help="print what is stored under a key")
    get.set_defaults(run=commands.get)
    put = add.add_parser("put", parents=[key], help="store a value")
    put.add_argument("value", metavar="VALUE")
    put.add_argument("--if-version", type=int, metavar="N", help="only if the key has this version (0: new)")
    put.set_defaults(run=commands.put)
    delete = add.add_parser("delete", parents=[key], help="forget a key")
    delete.set_defaults(run=commands.delete)
    scan = add.add_parser("scan", help="print all keys that begin with a prefix")
    scan.add_argument("prefix", nargs="?", default="", metavar="PREFIX")
    scan.add_argument("--limit", type=int, default=0, metavar="N", help="stop after N")
    scan.set_defaults(run=commands.scan)
    load = add.add_parser("load", help="store the KEY=VALUE lines of a file")
    load.add_argument("file", type=argparse.FileType(), metavar="FILE", help="- is the standard input")
    load.set_defaults(run=commands.load)
    wait = add.add_parser("wait", parents=[key], help="wait until a key has a new version, and print it")
    wait.add_argument("--newer-than", type=int, default=0, metavar="N")
    wait.set_defaults(run=commands.wait)
    add.add_parser("methods", help="print what the server serves").set_defaults(run=commands.methods)


def _address(value: str) -> tuple[str, int]:
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{value!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _addresses(value: str) -> list[tuple[str, int]]:
    return [_address(part) for part in value.split(",")]


async def serve(listen: tuple[str, int], mode: Mode) -> None:
    """Serve until SIGTERM or SIGINT, then let running calls finish."""
    store = rpc.Service("kv", Store())
    health = rpc.Health(["kv"])
    services = [store, health.service, rpc.Reflection(store, health.service).service]
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        # On leaving the block the server accepts no more calls; running ones have two seconds.
        async with rpc.serve(services, *listen, mode=mode, drain_timeout=2.0) as server:
            print(f"listening on {listen[0]}:{server.port}", flush=True)
            await anext(signals)
            health.drain()


async def call(args: argparse.Namespace) -> None:
    async with rpc.connect_pool(args.servers, mode=args.mode) as client:
        await args.run(client, args)


def main() -> int:
    args = parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("aiordma").setLevel(logging.WARNING)
    try:
        if args.role == "server":
            anyio.run(serve, args.listen, args.mode)
        else:
            anyio.run(call, args)
    except rpc.RpcError as error:
        print(f"kv_rpc.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
