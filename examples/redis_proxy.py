"""Redis over RDMA for clients and servers without RDMA support.

    redis client --TCP--> FRONT ==RDMA streams==> BACK --TCP--> redis-server

Run the back beside redis-server and the front beside the clients:

    python examples/redis_proxy.py back  --listen 0.0.0.0:7001 --redis 127.0.0.1:6379
    python examples/redis_proxy.py front --listen 127.0.0.1:7000 --to server:7001
    redis-cli -p 7000 ping

The front sends the commands of many clients over a few streams, in batches, and sorts the replies. A client
whose commands leave state on the connection (MULTI, WATCH, SELECT, AUTH, SUBSCRIBE, BLPOP ...) gets a
stream of its own. Without RDMA the streams are TCP; the log names the path and the reason. Ctrl-C (or
SIGTERM) lets running commands finish; SIGUSR1 logs statistics. How it works: proxy/__init__.py.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import signal
import sys

from proxy import scan
from proxy.back import Back
from proxy.front import Front
from proxy.net import Address

logger = logging.getLogger("redis_proxy")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="redis_proxy.py"
    )
    roles = top.add_subparsers(dest="role", required=True, metavar="front | back")
    front = roles.add_parser(
        "front", help="takes Redis clients", description="Takes Redis clients (RESP2, RESP3)."
    )
    front.add_argument(
        "--listen", type=Address.parse, required=True, metavar="HOST:PORT", help="for Redis clients"
    )
    front.add_argument(
        "--to", type=Address.parse, required=True, metavar="HOST:PORT", help="where the back listens"
    )
    front.add_argument(
        "--streams", type=_positive, default=2, metavar="N", help="shared streams (default: 2)"
    )
    front.add_argument(
        "--client-buffer-mib",
        type=_positive,
        default=64,
        metavar="MIB",
        help="unread replies of one client on a shared stream, beyond which it is cut off (default: 64)",
    )
    front.add_argument(
        "--patience",
        type=_patience,
        default=5.0,
        metavar="S",
        help="seconds for a stream to the back to open (default: 5)",
    )
    back = roles.add_parser("back", help="runs beside redis-server", description="Runs beside redis-server.")
    back.add_argument("--listen", type=Address.parse, required=True, metavar="HOST:PORT", help="for fronts")
    back.add_argument(
        "--redis", type=Address.parse, required=True, metavar="HOST:PORT", help="the redis-server"
    )
    for role in (front, back):
        role.add_argument(
            "--mode",
            choices=("auto", "rdma", "tcp"),
            default="auto",
            help="transport between front and back: RDMA if possible (auto, the default), RDMA only, TCP",
        )
        role.add_argument(
            "--grace", type=float, default=5.0, metavar="S", help="seconds to end in (default: 5)"
        )
        role.add_argument("--verbose", action="store_true", help="log details")
    return top


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop factory if uvloop is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _patience(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 (the default is 5)")
    return value


async def run(args: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM. Raises OSError if it cannot listen on the address."""
    service: Front | Back
    if args.role == "front":
        buffer_bytes = args.client_buffer_mib * 1024 * 1024
        service = Front(
            args.listen,
            args.to,
            mode=args.mode,
            streams=args.streams,
            client_buffer_bytes=buffer_bytes,
            patience_s=args.patience,
        )
    else:
        service = Back(args.listen, args.redis, mode=args.mode)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: logger.info("%s", service.report()))
    await service.start()
    print(f"listening on {service.listen}", flush=True)  # on stdout, for the parent process
    await stop.wait()
    await service.stop(args.grace)


def main() -> int:
    args = parser().parse_args()
    logging.basicConfig(
        level=logging.DEBUG if args.verbose else logging.INFO, format="%(asctime)s %(name)s: %(message)s"
    )
    if not scan.__file__.endswith(".so") and args.role == "front":
        logger.info("the RESP scanner is not compiled (slower): cythonize -i %s", scan.__file__)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(run(args))
    except OSError as exc:
        print(f"redis_proxy.py: cannot listen on {args.listen}: {exc.strerror or exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
