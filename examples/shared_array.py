"""A numpy array in one process's memory that several others fill: a picture of the Mandelbrot set, by tiles.

    python examples/shared_array.py owner --listen 127.0.0.1:7013
    python examples/shared_array.py worker 127.0.0.1:7013            # any number of them, at any time

Needs numpy. Workers take tiles by fetch-and-add, compute them, and WRITE each into its rows and columns of
the array, in one call for all rows. The last word counts the tiles that are done; the owner prints the
picture when it has all. Its program has no part in the work.
"""

from __future__ import annotations

import argparse
import sys

import anyio
import numpy as np

from aiordma import memory
from aiordma.memory import Rights

HEIGHT, WIDTH, TILE = 48, 144, 24
ACROSS = WIDTH // TILE
TILES = (HEIGHT // TILE) * ACROSS
PICTURE = HEIGHT * WIDTH * 4  # bytes; two words for counting follow: the next tile, and those that are done
SHADES = " .:-=+*#%@"
ROUNDS = 60
Address = tuple[str, int]


def compute(tile: int) -> np.ndarray:
    """The rounds after which each point of a tile is outside, as a share of all."""
    top, left = TILE * (tile // ACROSS), TILE * (tile % ACROSS)
    y, x = np.mgrid[top : top + TILE, left : left + TILE]
    c = (x / WIDTH * 3.5 - 2.5) + 1j * (y / HEIGHT * 2.4 - 1.2)
    z, rounds = np.zeros_like(c), np.zeros(c.shape, np.float32)
    for _ in range(ROUNDS):
        inside = np.abs(z) <= 2
        z[inside] = z[inside] ** 2 + c[inside]
        rounds += inside
    return rounds / ROUNDS


async def own(listen: Address, workers: int) -> None:
    """Have the array; print it when it is full."""
    full, begin = anyio.Event(), anyio.Event()

    async def tell(peer: memory.Peer) -> None:
        if len(server.peers) >= workers:
            begin.set()
        await begin.wait()
        await peer.notify(region.descriptor(Rights.WRITE | Rights.ATOMIC))
        async for _ in peer.notifications():
            full.set()

    async with await memory.alloc(PICTURE + 16) as region:
        picture = np.asarray(region)[:PICTURE].view(np.float32).reshape(HEIGHT, WIDTH)
        async with memory.serve(*listen, on_peer=tell) as server:
            print(f"listening on {server.address[0]}:{server.port}", flush=True)
            await full.wait()
            while server.peers:  # they look for one more tile
                await next(iter(server.peers)).wait_closed()
        for row in picture[::2]:
            print("".join(SHADES[round(float(value) * (len(SHADES) - 1))] for value in row).rstrip())


async def work(address: Address) -> None:
    """Do tiles until there are none left."""
    done = 0
    async with await memory.connect(*address) as peer:
        remote = await peer.open(await anext(peer.notifications()))
        while (tile := await remote.fetch_and_add(1, PICTURE)) < TILES:
            top, left = TILE * (tile // ACROSS), TILE * (tile % ACROSS)
            place = remote.rows((top * WIDTH + left) * 4, TILE * 4, WIDTH * 4, TILE)
            await place.write(compute(tile))
            done += 1
            if await remote.fetch_and_add(1, PICTURE + 8) == TILES - 1:
                await peer.notify(b"full")
        print(f"{done} tiles over {peer.path}")


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    """Run one role."""
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="shared_array.py"
    )
    roles = top.add_subparsers(dest="role", required=True, metavar="owner | worker")
    owner = roles.add_parser("owner", help="has the array")
    owner.add_argument("--listen", type=_address, required=True, metavar="HOST:PORT")
    owner.add_argument("--workers", type=int, default=1, help="begin with so many [1]")
    worker = roles.add_parser("worker", help="fills it")
    worker.add_argument("owner", type=_address, metavar="HOST:PORT")
    chosen = top.parse_args()
    try:
        if chosen.role == "owner":
            anyio.run(own, chosen.listen, chosen.workers)
        else:
            anyio.run(work, chosen.owner)
    except KeyboardInterrupt:
        pass
    except (OSError, anyio.BrokenResourceError, memory.MemoryAccessError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
