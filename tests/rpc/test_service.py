"""Services: what is read from a handler, and what is answered to arguments that do not fit."""

from __future__ import annotations

import collections.abc
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from msgspec import msgpack
from typing_extensions import Buffer

from aiordma.rpc.codec import Encoding, encode_arguments
from aiordma.rpc.errors import Code, RpcError
from aiordma.rpc.service import Method, Service, method
from aiordma.rpc.signature import Kind


@dataclass
class Point:
    x: int
    y: int


class Context:
    """Anything with this mark is taken for the call's context."""

    __rpc_context__ = True


def made(handler: Callable[..., Any]) -> Method:
    return Service("t").add(handler, name="m")


def through(m: Method, *args: Any, **kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    return m.decode(*encode_arguments(args, kwargs))


def refused(m: Method, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(RpcError) as caught:
        through(m, *args, **kwargs)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert caught.value.message.startswith("t.m: ")
    return caught.value.message.removeprefix("t.m: ")


# ---- kinds -------------------------------------------------------------------------------------------------


def unary(x: int) -> int:
    return x


async def unary_async(x: int) -> int:
    return x


def out_sync(x: int) -> Iterator[int]:
    yield x


async def out_async(x: int) -> AsyncIterator[int]:
    yield x


async def out_unannotated(x):  # type: ignore[no-untyped-def]
    yield x


def out_made(x: int) -> AsyncIterator[int]:
    return out_async(x)


async def into(items: AsyncIterator[Point], scale: int = 1) -> int:
    return sum([p.x async for p in items]) * scale


async def both(
    name: str, items: collections.abc.AsyncIterable[bytes], context: Context
) -> AsyncIterator[bytes]:
    async for item in items:
        yield item


@pytest.mark.parametrize(
    ("handler", "kind", "is_async", "returns", "item"),
    [
        (unary, Kind.UNARY, False, int, None),
        (unary_async, Kind.UNARY, True, int, None),
        (out_sync, Kind.SERVER_STREAM, False, int, None),
        (out_async, Kind.SERVER_STREAM, True, int, None),
        (out_unannotated, Kind.SERVER_STREAM, True, Any, None),
        (out_made, Kind.SERVER_STREAM, True, int, None),
        (into, Kind.CLIENT_STREAM, True, int, Point),
        (both, Kind.BIDI, True, bytes, bytes),
    ],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_the_kind_is_read_from_the_signature(
    handler: Callable[..., Any], kind: Kind, is_async: bool, returns: Any, item: Any
) -> None:
    m = made(handler)
    assert (m.kind, m.is_async, m.signature.returns, m.signature.item) == (kind, is_async, returns, item)
    assert kind.streams_in == (item is not None)
    assert kind.streams_out == (handler.__name__ not in ("unary", "unary_async", "into"))


def test_context_and_stream_have_places_among_the_arguments() -> None:
    m = made(both)
    assert (m.signature.stream_index, m.signature.context_index) == (1, 2)
    assert through(m, "n") == (["n", None, None], {})
    m = made(into)
    assert through(m, 3) == ([None, 3], {})
    assert through(m, scale=4) == ([None, 4], {})
    assert through(m) == ([None, 1], {})

    def first(context: Context | None, key: bytes) -> None: ...

    m = made_local(first)
    assert through(m, b"k") == ([None, b"k"], {})


def made_local(handler: Callable[..., Any]) -> Method:
    return Service("t").add(handler, name="m", localns=globals())


def wrapped(handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return handler(*args, **kwargs)

    return inner


class Callable_:
    async def __call__(self, x: int) -> int:
        return x


def test_decorated_and_callable_handlers_are_seen_through() -> None:
    assert made(wrapped(unary_async)).is_async
    assert made(wrapped(out_async)).kind is Kind.SERVER_STREAM
    assert made(functools.partial(unary_async)).is_async
    assert made(Callable_()).is_async


# ---- arguments ---------------------------------------------------------------------------------------------


def test_arguments_by_position_and_by_keyword() -> None:
    def handler(key: bytes, value: Point, *, ttl: float = 0.0, tag: str | None = None) -> None: ...

    m = made_local(handler)
    assert through(m, b"k", Point(1, 2)) == ([b"k", Point(1, 2)], {})
    assert through(m, b"k", value=Point(1, 2), ttl=1.5) == ([b"k", Point(1, 2)], {"ttl": 1.5})
    assert through(m, key=b"k", value=Point(1, 2), tag="t") == ([b"k", Point(1, 2)], {"tag": "t"})


def test_defaults_are_the_handlers_own() -> None:
    shared: list[int] = []

    def handler(x: int, y: list[int] = shared, z: int | None = None) -> None: ...

    m = made_local(handler)
    args, _ = through(m, 1)
    assert args == [1, [], None]
    assert args[1] is shared
    assert through(m, 1, z=4)[0][1] is shared


@pytest.mark.parametrize(
    ("hint", "kind"), [(bytes, bytes), (memoryview, memoryview), (bytearray, bytearray), (Any, bytes)]
)
def test_one_bytes_like_argument(hint: Any, kind: type) -> None:
    def handler(data: Any) -> None: ...

    handler.__annotations__["data"] = hint
    m = made(handler)
    for payload in (b"abc", memoryview(bytearray(b"abc"))):
        ((value,), kwargs) = m.decode(Encoding.RAW, payload)
        assert type(value) is kind
        assert value == b"abc"
        assert kwargs == {}
    # The same value inside an array, as another client may send it.
    ((value,), _) = m.decode(Encoding.MSGPACK, msgpack.encode([b"abc"]))
    assert type(value) is kind


def test_a_view_or_a_buffer_is_not_copied() -> None:
    def view(data: memoryview) -> None: ...
    def buffer(data: Buffer) -> None: ...

    block = memoryview(bytearray(b"large"))
    ((value,), _) = made_local(view).decode(Encoding.RAW, block)
    assert value.obj is block.obj
    ((value,), _) = made(buffer).decode(Encoding.RAW, block)
    assert value is block
    ((value,), _) = made(buffer).decode(Encoding.RAW, b"small")
    assert value == b"small"


def test_bytes_first_then_defaults() -> None:
    def handler(key: bytes, limit: int = 10, *, reverse: bool = False) -> None: ...

    assert through(made(handler), b"k") == ([b"k", 10], {})


def complicated(key: bytes, value: Point, *, ttl: float = 0.0) -> None: ...
def no_arguments() -> None: ...
def short(data: Annotated[bytes, msgspec.Meta(max_length=3)]) -> None: ...
def needs_keyword(data: bytes, *, mode: str) -> None: ...
def by_position_only(data: bytes, /, mode: str = "") -> None: ...


@pytest.mark.parametrize(
    ("handler", "args", "kwargs", "message"),
    [
        (complicated, (b"k", {"x": 1, "y": "2"}), {}, "argument 'value.y': expected `int`, got `str`"),
        (
            complicated,
            (b"k",),
            {"value": {"x": 1, "y": "2"}},
            "argument 'value.y': expected `int`, got `str`",
        ),
        (complicated, (b"k", {"x": 1}), {}, "argument 'value': object missing required field `y`"),
        (complicated, (1, {"x": 1, "y": 2}), {}, "argument 'key': expected `bytes`, got `int`"),
        (
            complicated,
            (b"k", Point(1, 2), 3),
            {},
            "value: Point, ttl: float = 0.0), got 3 arguments",
        ),
        (complicated, (b"k",), {}, "argument 'value' is missing"),
        (complicated, (), {"key": b"k"}, "argument 'value' is missing"),
        (complicated, (b"k", Point(1, 2)), {"key": b"k"}, "argument 'key' is given twice"),
        (complicated, (b"k", Point(1, 2)), {"tll": 1}, "has no argument 'tll'"),
        (complicated, (b"k", Point(1, 2)), {"t" * 500: 1}, "has no argument '" + "t" * 64 + "'"),
        (complicated, (b"k", Point(1, 2)), {"ttl": "1"}, "argument 'ttl': expected `float`, got `str`"),
        (complicated, (b"k", Point(1, 2), 1.0), {"ttl": 1}, "got 3 by position"),
        (no_arguments, (b"x",), {}, "takes no arguments, got 1"),
        (no_arguments, (1,), {}, "takes no arguments, got 1 argument"),
        (unary, (b"x",), {}, "argument 'x': expected `int`, got `bytes`"),
        (unary, (True,), {}, "argument 'x': expected `int`, got `bool`"),
        (short, (b"long",), {}, "argument 'data': expected `bytes` of length <= 3"),
        (needs_keyword, (b"x",), {}, "argument 'mode' is missing"),
        (needs_keyword, ([1],), {"mode": "a"}, "argument 'data': expected `bytes`, got `array`"),
        (by_position_only, (), {"data": b"x"}, "argument 'data' is given by position only"),
    ],
)
def test_bad_arguments_are_named(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    assert message in refused(made(handler), *args, **kwargs)


def test_malformed_and_oversized_payloads() -> None:
    m = made(complicated)
    for encoding, payload in (
        (1, b"\x92"),
        (2, b"\x90"),
        (1, b"\x80"),
        (7, b""),
        (2, b"\x92\x90\x81\x01\x01"),
    ):
        with pytest.raises(RpcError) as caught:
            m.decode(encoding, payload)
        assert caught.value.code is Code.INVALID_ARGUMENT
    small = Service("t", max_structured_bytes=100)

    def sum_of(items: list[int]) -> int:
        return sum(items)

    def put(key: bytes, value: bytes) -> None: ...

    with pytest.raises(RpcError) as caught:
        through(small.add(sum_of), [1000] * 100)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert "at most 100" in caught.value.message
    # Flat arguments cannot blow up, however long: bulk data need not be alone.
    assert through(small.add(put), b"k", b"v" * 1000)[0][1] == b"v" * 1000


class Stern(msgspec.Struct):
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x must not be negative")
        if self.x > 9:
            raise LookupError("secret")


def stern(s: Stern) -> None: ...


def test_a_types_own_checks(caplog: pytest.LogCaptureFixture) -> None:
    assert "must not be negative" in refused(made(stern), {"x": -1})
    with pytest.raises(RpcError) as caught:
        through(made(stern), {"x": 10})
    assert caught.value.code is Code.INTERNAL
    assert "secret" not in caught.value.message
    assert "secret" in caplog.text


def test_streamed_items_are_checked() -> None:
    m = made(into)
    assert m.decode_item(Encoding.MSGPACK, msgpack.encode(Point(1, 2))) == Point(1, 2)
    with pytest.raises(RpcError, match=r"t\.m: streamed item at \.y: expected `int`, got `str`"):
        m.decode_item(Encoding.MSGPACK, msgpack.encode({"x": 1, "y": ""}))
    with pytest.raises(RpcError, match="takes no stream"):
        made(unary).decode_item(0, b"")


HANDLERS = [made(h) for h in (unary, complicated, no_arguments, short, needs_keyword, into, both, stern)]


@hypothesis.given(st.sampled_from(HANDLERS), st.integers(0, 3), st.binary(max_size=300))
def test_any_payload_gives_arguments_or_an_rpc_error(m: Method, encoding: int, payload: bytes) -> None:
    try:
        args, kwargs = m.decode(encoding, payload)
    except RpcError:
        return
    assert len(args) + len(kwargs) <= 3


# ---- registration ------------------------------------------------------------------------------------------


def test_registering_keeps_the_function_usable() -> None:
    service = Service("kv")

    @service.method
    async def get(key: bytes) -> bytes:
        """The value of a key.

        More about it.
        """
        return key

    @service.method(name="set", idempotent=True)
    def put(key: bytes, value: bytes) -> None: ...

    assert list(service.methods) == ["kv.get", "kv.set"]
    assert service.methods["kv.get"].handler is get
    assert service.methods["kv.get"].doc == "The value of a key."
    assert not service.methods["kv.get"].idempotent
    assert service.methods["kv.set"].idempotent
    assert service.methods["kv.set"].handler is put
    assert repr(service) == "<Service kv: get, set>"
    assert repr(service.methods["kv.set"]) == "<Method kv.set(key: bytes, value: bytes) -> None>"


def test_types_defined_beside_a_handler_are_found() -> None:
    class Local(msgspec.Struct):
        x: int

    service = Service("kv")

    @service.method
    def put(value: Local) -> Local:
        return value

    assert through(service.methods["kv.put"], {"x": 1})[0] == [Local(1)]


class Counter:
    def __init__(self) -> None:
        self.count = 0

    @method
    def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    @method(name="value", idempotent=True)
    async def get_value(self) -> int:
        return self.count

    @staticmethod
    @method
    def zero() -> int:
        return 0

    def not_served(self) -> None: ...


class Other(Counter):
    def add(self, n: int = 1) -> int:
        return 0


def test_an_object_with_state() -> None:
    counter = Counter()
    service = Service("count", counter)
    assert set(service.methods) == {"count.add", "count.value", "count.zero"}
    args, kwargs = through(service.methods["count.add"], n=3)
    service.methods["count.add"].handler(*args, **kwargs)
    assert counter.count == 3
    assert service.methods["count.value"].idempotent
    assert service.methods["count.value"].is_async
    assert "count.add" not in Service("count", Other()).methods
    with pytest.raises(TypeError, match="no methods marked"):
        Service("x", object())


class Opaque:
    pass


def two_streams(a: AsyncIterator[int], b: AsyncIterator[int]) -> None: ...
def variable(*keys: bytes) -> None: ...
def opaque(x: Opaque) -> None: ...
def opaque_result() -> Opaque:
    return Opaque()


def sync_stream(items: AsyncIterator[int]) -> int:
    return 0


async def coroutine_of_iterator() -> AsyncIterator[int]:
    return out_async(1)


def keyword_context(*, context: Context) -> None: ...
def unresolved(x: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (two_streams, "two parameters like 'b'"),
        (variable, "a name of its own"),
        (opaque, "parameter 'x': type Opaque"),
        (opaque_result, "the result: type Opaque"),
        (sync_stream, "must be 'async def'"),
        (coroutine_of_iterator, "asynchronous generator"),
        (keyword_context, "must not be keyword-only"),
        (unresolved, "'Missing' is not defined"),
        (42, "cannot be served"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_cannot_be_served_is_said_when_it_is_registered(handler: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        made(handler)
    assert str(caught.value).startswith("t.m: ")


@pytest.mark.parametrize("name", ["", "1a", "a.", ".a", "a..b", "a b", "ä", "a" * 201])
def test_names(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        Service(name)
    with pytest.raises(ValueError, match="name"):
        Service("t").add(unary, name=name)


def test_a_name_is_given_once() -> None:
    service = Service("t")
    service.add(unary)
    with pytest.raises(ValueError, match=r"'t\.unary' is registered"):
        service.add(unary)
    with pytest.raises(ValueError, match="name="):
        service.add(lambda: None)
    with pytest.raises(ValueError, match="max_structured_bytes"):
        Service("t", max_structured_bytes=0)
