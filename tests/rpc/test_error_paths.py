"""Whatever the error of a call is, or lacks: that call fails with it, at once, and the connection goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import rpc
from aiordma.config import Config
from aiordma.errors import LocalProtocolError
from aiordma.proto.metadata import encode_metadata
from aiordma.proto.rpc import MAX_DETAILS_BYTES, UNARY, Hello, call_head, hello_message
from aiordma.proto.server_calls import ServerCalls
from aiordma.testing.rpc import rpc_pair
from tests.health import until
from tests.world import DEVICE

if TYPE_CHECKING:
    from aiordma.config import Mode

pytestmark = pytest.mark.anyio

Code = rpc.Code


class Bare(rpc.RpcError):
    """Does not call what it inherits."""

    def __init__(self) -> None:
        Exception.__init__(self, "bare")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class Silent(rpc.RpcError):
    @property
    def metadata(self) -> Any:
        raise ZeroDivisionError

    @metadata.setter
    def metadata(self, value: Any) -> None:
        pass


def changed(**fields: Any) -> Exception:
    error = rpc.RpcError(Code.NOT_FOUND, "m")
    for name, value in fields.items():
        setattr(error, name, value)
    return error


def with_metadata(metadata: Any) -> Exception:
    return rpc.RpcError(Code.NOT_FOUND, "m", metadata=metadata)


def details_of_text() -> Exception:
    return rpc.RpcError(Code.NOT_FOUND, "m", details="text")  # type: ignore[arg-type]


#: What is raised, the code that the caller gets, and its message (None: any).
ERRORS: dict[str, tuple[Callable[[], Exception], Code, str | None]] = {
    "much metadata": (lambda: with_metadata({"k": "v" * 60000}), Code.NOT_FOUND, "m"),
    "many entries": (lambda: with_metadata({f"k{i}": "v" * 100 for i in range(1000)}), Code.NOT_FOUND, "m"),
    "long value": (lambda: with_metadata({"k": "v" * 70000}), Code.NOT_FOUND, "m"),
    "key that is no text": (lambda: with_metadata({1: "v"}), Code.NOT_FOUND, "m"),
    "value that is no text": (lambda: with_metadata({"k": 1}), Code.NOT_FOUND, "m"),
    "surrogate in metadata": (lambda: with_metadata({"k": "\ud800"}), Code.NOT_FOUND, "m"),
    "metadata that is none": (lambda: with_metadata(7), Code.NOT_FOUND, "m"),
    "metadata that cannot be read": (lambda: Silent(Code.NOT_FOUND, "m"), Code.NOT_FOUND, "m"),
    "one key twice": (lambda: with_metadata([("k", "v"), ("k", "w")]), Code.INTERNAL, None),
    "details of text": (details_of_text, Code.UNKNOWN, None),
    "details of text later": (lambda: changed(details="text"), Code.NOT_FOUND, "m"),
    "long details later": (lambda: changed(details=bytes(MAX_DETAILS_BYTES + 1)), Code.NOT_FOUND, "m"),
    "surrogate": (lambda: rpc.RpcError(Code.NOT_FOUND, "a \ud800"), Code.NOT_FOUND, "a \\ud800"),
    "long message": (lambda: rpc.RpcError(Code.NOT_FOUND, "é" * 9000), Code.NOT_FOUND, "é" * 1021 + "..."),
    "long message later": (lambda: changed(message="é" * 9000), Code.NOT_FOUND, None),
    "message that is no text": (lambda: changed(message=7), Code.NOT_FOUND, "7"),
    "code that is none": (lambda: changed(code=999), Code.UNKNOWN, "m"),
    "code 0": (lambda: changed(code=0), Code.UNKNOWN, "m"),
    "code of a newer version": (lambda: changed(code=99), Code.UNKNOWN, "m"),
    "code that is no number": (lambda: changed(code="late"), Code.UNKNOWN, "m"),
    "bare": (Bare, Code.UNKNOWN, None),
    "unprintable": (Unprintable, Code.UNKNOWN, None),
}


class Failing:
    @rpc.method
    def plain(self, kind: str) -> int:
        raise ERRORS[kind][0]()

    @rpc.method
    async def at_once(self, kind: str) -> int:
        raise ERRORS[kind][0]()

    @rpc.method
    async def late(self, kind: str) -> int:
        await checkpoint()
        raise ERRORS[kind][0]()

    @rpc.method
    async def with_headers(self, kind: str, context: rpc.Context) -> int:
        context.set_metadata({"head": "h" * 6000})
        context.set_trailing_metadata({"trail": "t" * 6000})
        raise ERRORS[kind][0]()

    @rpc.method
    def items(self, kind: str) -> Iterator[int]:
        yield 1
        raise ERRORS[kind][0]()

    @rpc.method
    async def items_late(self, kind: str, context: rpc.Context) -> AsyncIterator[int]:
        context.set_metadata({"head": "h" * 6000})
        yield 1
        await checkpoint()
        raise ERRORS[kind][0]()

    @rpc.method
    async def taking(self, kind: str, stream: AsyncIterator[int]) -> int:
        async for _ in stream:
            raise ERRORS[kind][0]()
        return 0

    @rpc.method
    async def held(self) -> AsyncIterator[int]:
        yield 1
        await anyio.sleep_forever()

    @rpc.method
    def ok(self) -> int:
        return 1


async def call(client: rpc.Client, method: str, kind: str) -> None:
    if method not in ("items", "items_late", "taking"):
        await client.call(f"t.{method}", kind)
        return
    async with client.stream(f"t.{method}", kind) as stream:
        if method == "taking":
            await stream.send(1)
        async for _ in stream:
            pass


async def error_of(client: rpc.Client, method: str, kind: str) -> rpc.RpcError:
    with pytest.raises(rpc.RpcError) as caught, anyio.fail_after(30):
        await call(client, method, kind)
    return caught.value


METHODS = ("plain", "at_once", "late", "with_headers", "items", "items_late", "taking")


async def fail_in_every_method(client: rpc.Client, kind: str) -> None:
    """Each call fails with this error, and the next one is answered."""
    _, code, message = ERRORS[kind]
    for method in METHODS:
        error = await error_of(client, method, kind)
        assert error.code is code
        assert message is None or error.message == message
        assert await client.call("t.ok") == 1


@pytest.mark.parametrize("exposed", [False, True], ids=["hidden", "exposed"])
@pytest.mark.parametrize("kind", ERRORS)
async def test_each_error_fails_its_call(kind: str, exposed: bool) -> None:
    async with rpc_pair(rpc.Service("t", of=Failing()), expose_errors=exposed) as pair:
        await fail_in_every_method(pair.client, kind)
        assert pair.client.connection.calls == pair.server.statistics().in_flight == 0
        assert pair.client.usable


@pytest.mark.parametrize("path", ["rdma", "tcp"])
async def test_each_error_fails_its_call_between_two_ends(path: Mode) -> None:
    config = Config(device=DEVICE)
    async with (
        rpc.serve(rpc.Service("t", of=Failing()), "127.0.0.1", config=config, drain_timeout=0.0) as server,
        rpc.connect("127.0.0.1", server.port, config=config, mode=path) as client,
        rpc.connect("127.0.0.1", server.port, config=config, mode=path) as other,
    ):
        assert client.path == path
        async with other.stream("t.held") as held:
            assert await held.receive() == 1
            for kind in ERRORS:
                await fail_in_every_method(client, kind)
            assert await other.call("t.ok") == 1
        await until(lambda: server.statistics().in_flight == client.connection.calls == 0)
        assert client.usable


@pytest.mark.parametrize("limit", [600, 3000])
async def test_an_error_that_is_longer_than_messages_may_be(limit: int) -> None:
    """As a result that is."""
    ERRORS["details"] = (lambda: rpc.RpcError(Code.NOT_FOUND, "m", bytes(4000)), Code.NOT_FOUND, "m")
    try:
        made = rpc.Service("t", of=Failing())
        async with rpc_pair(made, channel={"max_message_bytes": limit}) as pair:
            for method in ("plain", "late", "items", "taking"):
                error = await error_of(pair.client, method, "details")
                assert error.code is Code.RESOURCE_EXHAUSTED
                assert "max_message_bytes" in error.message or str(limit) in error.message
                assert await pair.client.call("t.ok") == 1
    finally:
        del ERRORS["details"]


async def test_what_no_call_can_be_made_of() -> None:
    """The call fails where it is made, and nothing of it is left."""
    wrong: list[tuple[str, dict[str, Any], type[Exception]]] = [
        ("t.ok", {"metadata": {"k": "v" * 60000}}, LocalProtocolError),
        ("t.ok", {"metadata": {"k": "v" * 70000}}, ValueError),
        ("t.ok", {"metadata": {"k": "\ud800"}}, ValueError),
        ("t.ok", {"metadata": {1: "v"}}, TypeError),
        ("t.ok", {"metadata": {"k": 1}}, TypeError),
        ("t." + "x" * 300, {}, ValueError),
        ("t.\ud800", {}, ValueError),
        ("", {}, ValueError),
        ("t.ok", {"timeout": float("nan")}, ValueError),
    ]
    async with rpc_pair(rpc.Service("t", of=Failing()), calls=2) as pair:
        client = pair.client
        for method, options, kind in wrong * 3:
            with pytest.raises(kind):
                await client.call(method, **options)
            with pytest.raises(kind):
                await client.stream(method, **options).receive()
            assert client.connection.calls == 0
            assert client.in_flight.available == client.in_flight.limit
            assert await client.call("t.ok") == 1


def test_what_an_error_is_made_of() -> None:
    with pytest.raises(TypeError, match="details='text'"):
        details_of_text()
    with pytest.raises(TypeError, match="message=7"):
        rpc.RpcError(Code.NOT_FOUND, 7)  # type: ignore[arg-type]
    error = rpc.RpcError(Code.NOT_FOUND, details=bytearray(b"d"))  # type: ignore[arg-type]
    assert type(error.details) is bytes


@pytest.mark.parametrize(
    "arguments",
    [
        (5, "m", "text"),
        (5, 7),
        (5, "m", bytes(MAX_DETAILS_BYTES + 1)),
        (5, "m", None, None, encode_metadata({"k": "v" * 1000})),
        (5, "m", None, encode_metadata({"k": "v" * 600}), encode_metadata({"k": "v" * 600})),
        (0, "m"),
        (256, "m"),
    ],
)
def test_a_call_ends_only_with_a_message(arguments: tuple[Any, ...]) -> None:
    machine = ServerCalls(Hello(8, 8, 1000, 1000))
    machine.receive(hello_message(Hello(0, 0, 1000, 1000)))
    machine.receive(call_head(1, UNARY, 0, 1, b"t.x"))
    made = machine.call
    with pytest.raises((TypeError, AttributeError, ValueError, LocalProtocolError)):
        machine.fail(made, *arguments)
    if len(arguments) > 4:
        with pytest.raises((ValueError, LocalProtocolError)):
            machine.reply(made, 0, *arguments[3:])
    assert not made.closed
    assert list(machine.calls) == [1]
    assert machine.counts() == [("t.x", 1, 0, 1)]
    machine.fail(made, 5, "m")
    assert made.closed


@pytest.mark.parametrize("intercepted", [False, True])
async def test_what_is_no_method_or_timeout_is_named(intercepted: bool) -> None:
    def price(name: str) -> int:
        return 1

    service = rpc.Service("shop")
    service.add(price)
    interceptors = [rpc.ClientInterceptor()] if intercepted else []
    wrong: list[tuple[Any, Any, type[Exception], str]] = [
        (price, None, TypeError, "method=<function .*: must be the name of a method"),
        (None, None, TypeError, "method=None: must be the name of a method"),
        ("shop.price", "1s", TypeError, "timeout='1s': must be a number of seconds"),
        ("shop.price", float("nan"), ValueError, "timeout=nan: must be a number of seconds"),
    ]
    async with rpc_pair(service, client_interceptors=interceptors) as pair:
        client: Any = pair.client
        free = client.in_flight.available
        for method, timeout, kind, text in wrong:
            for _ in range(2):
                with pytest.raises(kind, match=text):
                    await client.call(method, "x", timeout=timeout)
                with pytest.raises(kind, match=text):
                    async with client.stream(method, "x", timeout=timeout):
                        pass
        assert client.in_flight.available == free
        assert await client.call("shop.price", "x", timeout=30, returns=int) == 1
