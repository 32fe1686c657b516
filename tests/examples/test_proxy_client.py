"""What the front does with the bytes of one client, without a network."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import proxy.client
import pytest
from proxy.client import Client
from proxy.front import Front
from proxy.lane import BackAway, Lane
from proxy.net import Address
from proxy.resp import encode_command, parse_command

if TYPE_CHECKING:
    from collections.abc import Callable

NOWHERE = Address("127.0.0.1", 1)


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def connected() -> tuple[Client, Wire, Wire]:
    """A client, the stream that it shares, and the one that it gets when it needs its own."""
    front = Front(NOWHERE, NOWHERE, mode="tcp", streams=1, client_buffer_bytes=1 << 20, patience_s=1)
    shared, own = Wire(), Wire()
    front.shared[2].lanes.append(Lane(shared))
    front.own.give_back(Lane(own), 2, refused=False)
    client = Client(front)
    client.connection_made(Wire())
    return client, shared, own


def in_a_loop(work: Callable[[], None]) -> None:
    async def main() -> None:
        work()

    asyncio.run(main())


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the client had parsed."""
    calls: list[bytes] = []

    def counted(data: bytes, pos: int) -> tuple[list[bytes], int] | None:
        calls.append(data)
        return parse_command(data, pos)

    monkeypatch.setattr(proxy.client, "parse_command", counted)
    return calls


@pytest.mark.parametrize("name", [b"mGeT", b"FOO", b"SCRIPT", b"XREAD"])
def test_a_command_that_comes_byte_by_byte_is_parsed_once(name: bytes, parsed: list[bytes]) -> None:
    command = encode_command([name, b"LOAD", *[b""] * 500])

    def work() -> None:
        client, shared, own = connected()
        for at in range(len(command)):
            client.data_received(command[at : at + 1])
        if client.lane is not None:
            client.lane.flush()
        assert shared.written + own.written == command
        # Once more when it has the stream that it waited for.
        assert len(parsed) == (2 if name == b"XREAD" else 1)

    in_a_loop(work)


@pytest.mark.parametrize("command", [b"\r\n", b"PING\r\n", b"*0\r\n", encode_command([b"SCRIPT", b"FLUSH"])])
def test_what_follows_a_command_is_not_copied_for_each(command: bytes, parsed: list[bytes]) -> None:
    def work() -> None:
        client, shared, _ = connected()
        client.data_received(command * 50)
        if client.lane is not None:
            client.lane.flush()
        assert shared.written.count(b"*1\r\n$4\r\nPING\r\n") == (50 if command == b"PING\r\n" else 0)
        assert len(parsed) == 50
        assert all(data is parsed[0] for data in parsed)

    in_a_loop(work)


def test_what_cannot_be_answered_is_closed_when_there_is_no_stream_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        client, _, _ = connected()
        client.front.own.take_idle(2)
        wire = client.transport
        assert isinstance(wire, Wire)
        away = asyncio.Event()

        async def refused(protocol: int) -> Lane:
            await away.wait()
            raise BackAway("nobody there")

        monkeypatch.setattr(client.front.dialer, "open", refused)
        # Long enough for a stream of its own, and then not RESP while it waits for that.
        client.data_received(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$70000\r\n" + bytes(1000))
        client.data_received(bytes(70000))
        assert not wire.written
        away.set()
        assert client._opening is not None
        await asyncio.wait([client._opening])
        assert wire.written.startswith(b"-PROXY Redis cannot be reached (nobody there)")
        assert wire.closed

    asyncio.run(main())


def test_a_client_that_cannot_go_on_is_not_left_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        client, _, _ = connected()

        def broken() -> None:
            raise RuntimeError("a mistake")

        monkeypatch.setattr(client, "_release", broken)
        with pytest.raises(RuntimeError, match="a mistake"):
            client.lanes_changed()
        assert client.transport.is_closing()

    in_a_loop(work)
