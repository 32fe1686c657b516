"""A parameter server that does nothing: workers read and change the parameters in its memory.

    python examples/parameter_server.py server --listen 127.0.0.1:7012 --steps 4000
    python examples/parameter_server.py worker 127.0.0.1:7012        # any number of them, at any time

The workers fit a line of several dimensions to samples (stochastic gradient descent). Each step takes its
number by a fetch-and-add on a counter, so that no two workers do the same one, READs the parameters, and adds
its change to each of them by fetch-and-add. The parameters are integers (fixed point), since devices add
those: no change of another worker is lost, without a lock, and the server's program has no part in it.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys

import anyio

from aiordma import memory
from aiordma.memory import Rights

TRUTH = [2.0, -3.0, 0.5, 7.0, -1.25, 0.0, 4.0, -8.0]
ONE = 1 << 32  # of fixed point
WORDS = struct.Struct(f"={2 + len(TRUTH)}q")  # the next step, the number of steps, and the parameters
RATE = 0.02
Address = tuple[str, int]


async def serve(listen: Address, steps: int, workers: int) -> None:
    """Have the parameters until all steps are done; then print them."""
    done, begin = anyio.Event(), anyio.Event()

    async def tell(peer: memory.Peer) -> None:
        if len(server.peers) >= workers:
            begin.set()
        await begin.wait()
        await peer.notify(region.descriptor(Rights.READ | Rights.ATOMIC))
        async for _ in peer.notifications():  # it found no step left
            done.set()

    async with await memory.alloc(WORDS.size // 8, "int64") as region:
        words = memoryview(region)
        words[1] = steps
        async with memory.serve(*listen, on_peer=tell) as server:
            print(f"listening on {server.address[0]}:{server.port}", flush=True)
            await done.wait()
            while server.peers:  # others may be in their last step
                await next(iter(server.peers)).wait_closed()
        print("parameters " + " ".join(f"{word / ONE:.2f}" for word in words[2:]))
        print("truth      " + " ".join(f"{word:.2f}" for word in TRUTH))


def gradient(parameters: list[float], step: int) -> list[float]:
    """Of the squared error for one sample, which depends on the step's number."""
    rng = random.Random(step)
    sample = [rng.gauss(0, 1) for _ in TRUTH]
    error = sum((mine - true) * x for mine, true, x in zip(parameters, TRUTH, sample, strict=True))
    return [2 * error * x for x in sample]


async def work(address: Address) -> None:
    """Do steps until there are none left."""
    done = 0
    async with await memory.connect(*address) as peer, await memory.alloc(WORDS.size) as region:
        remote = await peer.open(await anext(peer.notifications()))
        while True:
            step = await remote.fetch_and_add(1)
            await remote.read(region)
            _, steps, *words = WORDS.unpack(region[:].view)
            if step >= steps:
                break
            change = gradient([word / ONE for word in words], step)
            await memory.gather(
                *(
                    remote.start_fetch_and_add(round(-RATE * each * ONE), 16 + 8 * number)
                    for number, each in enumerate(change)
                )
            )
            done += 1
        await peer.notify(b"")
        print(f"{done} steps over {peer.path}, atomic operations by the {remote.atomics}")


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    """Run one role."""
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="parameter_server.py"
    )
    roles = top.add_subparsers(dest="role", required=True, metavar="server | worker")
    server = roles.add_parser("server", help="has the parameters")
    server.add_argument("--listen", type=_address, required=True, metavar="HOST:PORT")
    server.add_argument("--steps", type=int, default=4000, help="of all workers together [4000]")
    server.add_argument("--workers", type=int, default=1, help="begin with so many [1]")
    worker = roles.add_parser("worker", help="does steps")
    worker.add_argument("server", type=_address, metavar="HOST:PORT")
    chosen = top.parse_args()
    try:
        if chosen.role == "server":
            anyio.run(serve, chosen.listen, chosen.steps, chosen.workers)
        else:
            anyio.run(work, chosen.server)
    except KeyboardInterrupt:
        pass
    except (OSError, anyio.BrokenResourceError, memory.MemoryAccessError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
