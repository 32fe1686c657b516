"""A store of pages in one process's memory, which others read and fill without its program.

    python examples/block_store.py owner --listen 127.0.0.1:7011 --blocks 1024
    python examples/block_store.py put 127.0.0.1:7011 weights model.bin
    python examples/block_store.py get 127.0.0.1:7011 weights > copy.bin
    python examples/block_store.py get 127.0.0.1:7011 prefix question > both.bin
    python examples/block_store.py drop 127.0.0.1:7011 weights
    python examples/block_store.py list 127.0.0.1:7011

As the KV caches of servers for language models, the store is blocks of one size (pages), and a value is a
list of block numbers, in any order. The owner's program only keeps the lists: a writer asks it for free
blocks, WRITEs all of them in one call, and gives the value its name with the notification that follows the
data. A reader asks for the lists of several values and READs all their blocks in one call.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import anyio

from aiordma import memory

BLOCK = 65_536
Address = tuple[str, int]


class Owner:
    """Has the memory, the free blocks and the table of names."""

    def __init__(self, region: memory.Region, blocks: int) -> None:
        self.region, self.blocks = region, blocks
        self.free = list(range(blocks))
        self.table: dict[str, dict[str, Any]] = {}

    async def serve(self, peer: memory.Peer) -> None:
        """Tell one client where the memory is, then answer its questions. What it took and gave no name is
        free again at its end."""
        taken: set[int] = set()
        await peer.notify(self.region.descriptor())
        try:
            async for note in peer.notifications():
                asked = json.loads(note)
                answer = self.answer(asked, taken)
                if answer is not None:
                    await peer.notify(json.dumps(answer).encode())
        finally:
            self.free += taken

    def answer(self, asked: dict[str, Any], taken: set[int]) -> Any:
        """The answer to a question; None: it needs none."""
        if "take" in asked:
            if asked["take"] > len(self.free):
                in_use = self.blocks - len(self.free)
                return {"error": f"the store has {self.blocks} blocks, and {in_use} are taken"}
            numbers = [self.free.pop(0) for _ in range(asked["take"])]
            taken.update(numbers)
            return {"numbers": numbers}
        if "put" in asked:  # its blocks are written: they came before this note
            numbers = [number for number in asked["numbers"] if number in taken]
            taken.difference_update(numbers)
            self.drop(asked["put"])
            self.table[asked["put"]] = {"numbers": numbers, "size": asked["size"]}
            print(f"{asked['put']}: {asked['size']} bytes", flush=True)
            return None
        if "get" in asked:
            return [self.table.get(name) for name in asked["get"]]
        if "drop" in asked:
            return self.drop(asked["drop"])
        return sorted(self.table)

    def drop(self, name: str) -> bool:
        """Forget a value. A reader that has its list may find another value's bytes: a real cache counts
        readers."""
        value = self.table.pop(name, None)
        if value is not None:
            self.free += value["numbers"]
        return value is not None


async def own(listen: Address, blocks: int) -> None:
    """Run the store until it is interrupted."""
    async with await memory.alloc(blocks * BLOCK) as region:
        owner = Owner(region, blocks)
        async with memory.serve(*listen, on_peer=owner.serve) as server:
            print(f"listening on {server.address[0]}:{server.port}", flush=True)
            await anyio.sleep_forever()


class Client:
    """Reads and fills the store."""

    def __init__(self, peer: memory.Peer) -> None:
        self._peer, self._notes = peer, peer.notifications()

    async def begin(self) -> None:
        """Learn where the memory is."""
        self._remote = await self._peer.open(await anext(self._notes))

    async def ask(self, **question: Any) -> Any:
        """Ask the owner's program."""
        await self._peer.notify(json.dumps(question).encode())
        return json.loads(await anext(self._notes))

    async def put(self, name: str, data: bytes) -> None:
        """Store a value: all its blocks in one call, then its name behind them.

        :raises MemoryError: the store is full.
        """
        count = max(1, -(-len(data) // BLOCK))
        found = await self.ask(take=count)
        if "error" in found:
            raise MemoryError(found["error"])
        blocks = self._remote.blocks(BLOCK, found["numbers"])
        value = {"put": name, "numbers": found["numbers"], "size": len(data)}
        padding = bytes(count * BLOCK - len(data))
        await blocks.write([data, padding], notify=json.dumps(value).encode())
        await self._remote.flush()  # the owner's program has seen it

    async def get(self, *names: str) -> list[memoryview]:
        """Values, READ from the owner's memory: all their blocks in one call.

        :raises KeyError: there is no such value.
        """
        found = await self.ask(get=names)
        for name, value in zip(names, found, strict=True):
            if value is None:
                raise KeyError(name)
        numbers = [number for value in found for number in value["numbers"]]
        async with await memory.alloc(len(numbers) * BLOCK) as region:
            await self._remote.blocks(BLOCK, numbers).read(region)
            values, at = [], 0
            for value in found:
                values.append(memoryview(region)[at : at + value["size"]])
                at += len(value["numbers"]) * BLOCK
        return values  # they keep the memory


async def use(role: str, address: Address, names: list[str], path: str) -> None:
    """One command of a client."""
    async with await memory.connect(*address) as peer:
        client = Client(peer)
        await client.begin()
        if role == "put":
            await client.put(names[0], await anyio.Path(path).read_bytes())
        elif role == "get":
            for value in await client.get(*names):
                sys.stdout.buffer.write(value)
        elif role == "drop":
            if not await client.ask(drop=names[0]):
                raise KeyError(names[0])
        else:
            print("\n".join(await client.ask(list=True)))
        print(f"over {peer.path}", file=sys.stderr)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    """Run one role."""
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="block_store.py"
    )
    roles = top.add_subparsers(dest="role", required=True, metavar="owner | put | get | drop | list")
    owner = roles.add_parser("owner", help="has the memory")
    owner.add_argument("--listen", type=_address, required=True, metavar="HOST:PORT")
    owner.add_argument("--blocks", type=int, default=256, help="of 64 KiB [256]")
    for role, text in (
        ("put", "stores a file"),
        ("get", "prints values"),
        ("drop", "forgets a value"),
        ("list", "prints the names"),
    ):
        client = roles.add_parser(role, help=text)
        client.add_argument("owner", type=_address, metavar="HOST:PORT")
        if role != "list":
            client.add_argument("names", nargs="+" if role == "get" else 1, metavar="name")
        if role == "put":
            client.add_argument("file")
    chosen = top.parse_args()
    try:
        if chosen.role == "owner":
            anyio.run(own, chosen.listen, chosen.blocks)
        else:
            names = getattr(chosen, "names", [])
            anyio.run(use, chosen.role, chosen.owner, names, getattr(chosen, "file", ""))
    except KeyboardInterrupt:
        pass
    except KeyError as error:
        sys.exit(f"there is no {error}")
    except (OSError, MemoryError, anyio.BrokenResourceError, memory.MemoryAccessError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
