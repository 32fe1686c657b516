"""Blocks by NIXL or Mooncake, each way, with the bytes compared: ENGINE own|use PORT ADDRESS.

Runs on an interpreter that has the engine. What the two must know of each other goes by TCP.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import socket
import sys
from typing import Any

BLOCK, BLOCKS = 65_536, 64
BYTES = BLOCK * BLOCKS
DEVICE = "soft0"
FIRST, SECOND = (random.Random(seed).randbytes(BYTES) for seed in (1, 2))
"""What the owner has at first, and what is there in the end."""


def memory_of(content: bytes) -> Any:
    numpy: Any = importlib.import_module("numpy")
    return numpy.frombuffer(bytearray(content), numpy.uint8)


def pieces() -> list[tuple[int, int]]:
    """Offsets here and there, in an order in which no two are neighbours: both ends have the same block."""
    numbers = random.Random(3).sample(range(BLOCKS), BLOCKS)
    return [(number * BLOCK, number * BLOCK) for number in numbers]


class Nixl:
    def __init__(self, name: str, _address: str, content: bytes) -> None:
        api: Any = importlib.import_module("nixl_cu12._api")  # what PyPI's nixl is a name for
        # The owner's thread answers peers.
        settings = api.nixl_agent_config(enable_prog_thread=name == "own", backends=["UCX"])
        self._agent = api.nixl_agent(name, settings)
        self.memory = memory_of(content)
        self._agent.register_memory([(self.memory.ctypes.data, BYTES, 0, "")], "DRAM")

    def card(self) -> list[Any]:
        return [self._agent.get_agent_metadata().hex(), self.memory.ctypes.data]

    def meet(self, metadata: str, address: int) -> None:
        self._peer, self._there = self._agent.add_remote_agent(bytes.fromhex(metadata)), address

    def move(self, what: str) -> None:
        sides = (
            self._agent.get_xfer_descs([(base + pair[side], BLOCK, 0) for pair in pieces()], "DRAM")
            for side, base in enumerate((self.memory.ctypes.data, self._there))
        )
        handle = self._agent.initialize_xfer(what, *sides, self._peer)
        state = self._agent.transfer(handle)
        while state != "DONE":
            assert state != "ERR", "NIXL reports an error"
            state = self._agent.check_xfer_state(handle)


class Mooncake:
    def __init__(self, _name: str, address: str, content: bytes) -> None:
        self._engine: Any = importlib.import_module("mooncake.engine").TransferEngine()
        self._address = address
        assert not self._engine.initialize(address, "P2PHANDSHAKE", "rdma", DEVICE), "Mooncake does not start"
        # Without a device it would go by TCP, and not say so.
        assert DEVICE in self._engine.get_local_topology(), f"Mooncake has not found {DEVICE}"
        self.memory = memory_of(content)
        assert not self._engine.register_memory(self.memory.ctypes.data, BYTES), "no memory is registered"

    def card(self) -> list[Any]:
        return [f"{self._address}:{self._engine.get_rpc_port()}", self.memory.ctypes.data]

    def meet(self, name: str, address: int) -> None:
        self._peer, self._there = name, address

    def move(self, what: str) -> None:
        calls = {
            "READ": self._engine.batch_transfer_sync_read,
            "WRITE": self._engine.batch_transfer_sync_write,
        }
        here, there = (
            [base + pair[side] for pair in pieces()]
            for side, base in enumerate((self.memory.ctypes.data, self._there))
        )
        assert not calls[what](self._peer, here, there, [BLOCK] * BLOCKS), "Mooncake reports an error"


ENGINES: dict[str, Any] = {"nixl": Nixl, "mooncake": Mooncake}


def own(engine: Any, port: int, address: str) -> None:
    made = engine("own", address, FIRST)
    with socket.create_server((address, port)) as listener:
        connection, _ = listener.accept()
    with connection, connection.makefile("rw") as peer:
        print(json.dumps(made.card()), file=peer, flush=True)
        peer.readline()
        print(json.dumps(made.memory.tobytes() == SECOND), file=peer, flush=True)
        peer.readline()  # it has ended


def use(engine: Any, port: int, address: str) -> None:
    with socket.create_connection((address, port)) as connection, connection.makefile("rw") as peer:
        made = engine("use", connection.getsockname()[0], bytes(BYTES))
        made.meet(*json.loads(peer.readline()))
        made.move("READ")
        assert made.memory.tobytes() == FIRST, "READ brought something else"
        made.memory[:] = memory_of(SECOND)
        made.move("WRITE")
        print("look", file=peer, flush=True)
        assert json.loads(peer.readline()), "WRITE brought something else"
    print(f"{BLOCKS} blocks each way are right")


if __name__ == "__main__":
    name, role, port, address = sys.argv[1:]
    {"own": own, "use": use}[role](ENGINES[name], int(port), address)
    # No handlers of the process' end: the libnl in NIXL's wheel crashes in its own, over TCP as well.
    sys.stdout.flush()
    os._exit(0)
