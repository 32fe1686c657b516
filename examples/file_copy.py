"""Copy files over RDMA, or TCP without it, and resume interrupted transfers.

    python examples/file_copy.py receive --listen 0.0.0.0:7002 --into DIRECTORY
    python examples/file_copy.py send HOST:7002 FILE ...

Stop either side at any time (Ctrl-C, a crash, a lost connection) and run the sender again: the receiver
checks what has arrived block by block, and only the rest is sent. A file gets its name only after its
SHA-256 matches. How it works: filecopy/__init__.py.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Literal

import anyio
from anyio.abc import SocketAttribute
from filecopy.receiver import receive_files
from filecopy.sender import send_file
from filecopy.wire import Channel, PeerError
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

import aiordma

Mode = Literal["auto", "rdma", "tcp"]


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="file_copy.py"
    )
    roles = top.add_subparsers(dest="role", required=True, metavar="receive | send")
    receive = roles.add_parser("receive", help="receives files", description="Receives files from senders.")
    receive.add_argument("--listen", type=_address, required=True, metavar="HOST:PORT")
    receive.add_argument(
        "--into", type=Path, required=True, metavar="DIRECTORY", help="where files are stored"
    )
    send = roles.add_parser("send", help="sends files", description="Sends files to a receiver.")
    send.add_argument("to", type=_address, metavar="HOST:PORT")
    send.add_argument("files", type=Path, nargs="+", metavar="FILE")
    for role in (receive, send):
        role.add_argument(
            "--mode", choices=("auto", "rdma", "tcp"), default="auto", help="default: RDMA if possible"
        )
    return top


def _address(value: str) -> tuple[str, int]:
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{value!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def receive(listen: tuple[str, int], into: Path, mode: Mode) -> None:
    """Until cancelled."""

    async def handle(stream: aiordma.RdmaStream) -> None:
        async with stream:
            peer = stream.extra(SocketAttribute.remote_address)
            logging.getLogger("file_copy").info("%s: connected by %s", peer, stream.path)
            await receive_files(stream, str(into), peer)

    async with aiordma.listen(*listen, mode=mode) as listener:
        print(f"listening on {listen[0]}:{listener.extra(SocketAttribute.local_port)}", flush=True)
        await listener.serve(handle)


async def send(to: tuple[str, int], files: list[Path], mode: Mode) -> None:
    """Raises what `send_file` raises."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    async with aiordma.connect(*to, mode=mode) as stream:
        channel = Channel(stream)
        with Progress(*columns) as bars:
            for path in files:
                bar = bars.add_task(f"{path.name} by {stream.path}", total=None)

                def progress(done: int, total: int, bar: TaskID = bar) -> None:
                    bars.update(bar, completed=done, total=total)

                sent = await send_file(channel, path, progress)
                resumed = f", resumed at byte {sent.start}" if sent.start else ""
                bars.console.print(
                    f"{path.name}: {sent.size} bytes{resumed}, SHA-256 {sent.sha256}", soft_wrap=True
                )


def main() -> int:
    args = parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        if args.role == "receive":
            if not args.into.is_dir():
                return _fail(f"{args.into} is no directory")
            anyio.run(receive, args.listen, args.into, args.mode)
            return 0
        names = [path.name for path in args.files]
        if twice := {name for name in names if names.count(name) > 1}:
            return _fail(f"the receiver cannot hold two files of the same name: {', '.join(sorted(twice))}")
        anyio.run(send, args.to, args.files, args.mode)
    except KeyboardInterrupt:
        if args.role == "send":
            print("interrupted; run it again to go on from here", file=sys.stderr)
        return 130
    except PeerError as exc:
        return _fail(str(exc))
    except (anyio.BrokenResourceError, anyio.IncompleteRead) as exc:
        return _fail(
            f"the connection was lost ({str(exc) or 'the receiver is gone'}); run it again to go on from here"
        )
    except OSError as exc:
        return _fail(str(exc))
    return 0


def _fail(reason: str) -> int:
    print(f"file_copy.py: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
