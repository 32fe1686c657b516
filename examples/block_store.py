"""A store of blocks in one process's memory, which others read and fill without its program.

    python examples/block_store.py owner --listen 127.0.0.1:7011 --blocks 1024
    python examples/block_store.py put 127.0.0.1:7011 weights model.bin
    python examples/block_store.py get 127.0.0.1:7011 weights > copy.bin
    python examples/block_store.py list 127.0.0.1:7011

As in the caches of servers for language models, the store is blocks of one size, and a value is a list of
block numbers. A writer asks the owner for blocks (a notification and its answer), writes into them, and says
so with its last block. Readers learn the block numbers and READ the blocks; the owner has no part in that.
Space is counted by fetch-and-add on a word in front of the blocks.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import anyio

from aiordma import memory
from aiordma.memory import Rights

BLOCK = 65_536
WORDS = 4096  # in front of the blocks: word 0 counts the blocks that are taken
Address = tuple[str, int]


class Owner:
    """Has the memory, and the table of names."""

    def __init__(self, region: memory.Region, blocks: int) -> None:
        self.region, self.blocks = region, blocks
        self.table: dict[str, dict[str, Any]] = {}

    async def serve(self, peer: memory.Peer) -> None:
        """Tell one client where the memory is, then answer its questions."""
        rights = Rights.READ | Rights.WRITE | Rights.ATOMIC
        hello = {"blocks": self.blocks, "descriptor": self.region.descriptor(rights).hex()}
        await peer.notify(json.dumps(hello).encode())
        async for note in peer.notifications():
            asked = json.loads(note)
            if "put" in asked:  # its blocks are written: they came before this note
                self.table[asked["put"]] = {"blocks": asked["blocks"], "size": asked["size"]}
                print(f"{asked['put']}: {asked['size']} bytes", flush=True)
            elif "get" in asked:
                await peer.notify(json.dumps(self.table.get(asked["get"])).encode())
            else:
                await peer.notify(json.dumps(sorted(self.table)).encode())


async def own(listen: Address, blocks: int) -> None:
    """Run the store until it is interrupted."""
    async with await memory.alloc(WORDS + blocks * BLOCK) as region:
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
        hello = json.loads(await anext(self._notes))
        self._blocks = hello["blocks"]
        self._remote = await self._peer.open(bytes.fromhex(hello["descriptor"]))

    async def ask(self, question: dict[str, Any]) -> Any:
        """Ask the owner's program."""
        await self._peer.notify(json.dumps(question).encode())
        return json.loads(await anext(self._notes))

    def _block(self, number: int, size: int) -> memory.RemoteMemory:
        at = WORDS + number * BLOCK
        return self._remote[at : at + size]

    async def put(self, name: str, data: bytes) -> None:
        """Store a value: its blocks at the same time, then its name behind the last of them.

        :raises MemoryError: the store is full.
        """
        count = max(1, -(-len(data) // BLOCK))
        first = await self._remote.fetch_and_add(count)
        if first + count > self._blocks:
            await self._remote.fetch_and_add(-count)
            raise MemoryError(f"the store has {self._blocks} blocks, and {first} are taken")
        async with anyio.create_task_group() as tasks:
            for number in range(count):
                part = data[number * BLOCK : (number + 1) * BLOCK]
                tasks.start_soon(self._block(first + number, len(part)).write, part)
        taken = {"put": name, "blocks": [first, count], "size": len(data)}
        await self._peer.notify(json.dumps(taken).encode())
        await self._remote.flush()  # the owner's program has seen it

    async def get(self, name: str) -> bytearray:
        """A value, READ from the owner's memory.

        :raises KeyError: there is none.
        """
        found = await self.ask({"get": name})
        if found is None:
            raise KeyError(name)
        first, count = found["blocks"]
        value = bytearray(found["size"])
        view = memoryview(value)
        async with anyio.create_task_group() as tasks:
            for number in range(count):
                part = view[number * BLOCK : (number + 1) * BLOCK]
                tasks.start_soon(self._block(first + number, len(part)).read, part)
        return value


async def use(role: str, address: Address, name: str, path: str) -> None:
    """One command of a client."""
    async with await memory.connect(*address) as peer:
        client = Client(peer)
        await client.begin()
        if role == "put":
            await client.put(name, await anyio.Path(path).read_bytes())
        elif role == "get":
            sys.stdout.buffer.write(await client.get(name))
        else:
            print("\n".join(await client.ask({"list": True})))
        print(f"over {peer.path}", file=sys.stderr)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    """Run one role."""
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="block_store.py"
    )
    roles = top.add_subparsers(dest="role", required=True, metavar="owner | put | get | list")
    owner = roles.add_parser("owner", help="has the memory")
    owner.add_argument("--listen", type=_address, required=True, metavar="HOST:PORT")
    owner.add_argument("--blocks", type=int, default=256, help="of 64 KiB [256]")
    for role, text in (("put", "stores a file"), ("get", "prints a value"), ("list", "prints the names")):
        client = roles.add_parser(role, help=text)
        client.add_argument("owner", type=_address, metavar="HOST:PORT")
        if role != "list":
            client.add_argument("name")
        if role == "put":
            client.add_argument("file")
    chosen = top.parse_args()
    try:
        if chosen.role == "owner":
            anyio.run(own, chosen.listen, chosen.blocks)
        else:
            anyio.run(
                use, chosen.role, chosen.owner, getattr(chosen, "name", ""), getattr(chosen, "file", "")
            )
    except KeyboardInterrupt:
        pass
    except KeyError as error:
        sys.exit(f"there is no {error}")
    except (OSError, MemoryError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
