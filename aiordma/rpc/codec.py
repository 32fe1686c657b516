# cython: annotation_typing=False
"""Values and bytes: what arguments, results and stream items look like in messages.

Three forms. A bytes-like value that travels alone is sent as it is (``RAW``): no copy, no framing, nothing to
parse. An array, or a large bytes-like argument beside others, is sent as it is behind a description
(``BULK``, ``bulk.py``). Everything else is MessagePack by msgspec, checked against the annotated type while
it is decoded, so that a handler never sees a value of another type than it asked for. No pickle: decoding
builds the annotated types and builtins, and runs no code of the peer's choosing.

A peer cannot make decoding expensive. Nesting ends in an error at the interpreter's recursion limit, a length
is believed only as far as there are bytes behind it, and where the type may hold containers (in which a byte
of MessagePack becomes up to 64 bytes of Python objects) a payload above ``MAX_STRUCTURED_BYTES`` is refused.
The objects of a message are counted before they are made (``counted.py``).
"""

from __future__ import annotations

import enum
import functools
import logging
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import msgpack

from ..plain import check_plain
from ..proto.objects import MAX_KEYS, MAX_OBJECTS, SETS, STRINGS
from .bulk import (
    BULK_BYTES,
    Bulk,
    Form,
    array_hint,
    describe_arguments,
    describe_value,
    described_value,
    flat_array,
    is_array,
    make_array,
)
from .counted import check_objects
from .errors import Code, RpcError

if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview
    #: What travels behind the head of a message.
    Payload = Buffer | Bulk

#: Largest MessagePack payload that is decoded into containers, in bytes. Bytes-like values have no limit of
#: their own (the channel's ``max_message_bytes`` bounds them).
MAX_STRUCTURED_BYTES: Final = 4 << 20

_log = logging.getLogger("aiordma.rpc")
_encode = msgpack.Encoder().encode
_PATH = re.compile(r" - at `\$([^`]*)`$")


class Encoding(enum.IntEnum):
    """The ``encoding`` byte of a message."""

    #: One bytes-like value, as it is.
    RAW = 0
    #: MessagePack: a value; for arguments an array of the positional ones.
    MSGPACK = 1
    #: MessagePack, arguments only: an array of the positional ones, then a map of those by keyword.
    KEYWORDS = 2
    #: A description, and the bytes of one value (``bulk.py``).
    BULK = 3


_RAW: Final = int(Encoding.RAW)
_MSGPACK: Final = int(Encoding.MSGPACK)
_KEYWORDS: Final = int(Encoding.KEYWORDS)
_BULK: Final = int(Encoding.BULK)

_BYTES_LIKE: Final = (bytes, bytearray, memoryview)


def _is_any_buffer(hint: Any) -> bool:
    """Whether ``hint`` is ``collections.abc.Buffer`` (of Python 3.12 or of typing_extensions)."""
    return getattr(hint, "__name__", "") == "Buffer" and getattr(hint, "__module__", "") in (
        "collections.abc",
        "typing_extensions",
    )


def _as_bytes(payload: Buffer) -> bytes:
    return payload if type(payload) is bytes else bytes(payload)


def _as_is(payload: Buffer) -> Buffer:
    return payload


class Shape:
    """What is known of one type whose values travel: built once, used for every value.

    :param hint: the annotation; ``Any`` takes everything.
    :raises TypeError: values of this type cannot be checked or decoded; the message says why.
    """

    __slots__ = ("array", "decode", "from_raw", "hint", "keys", "limit", "text")

    #: Makes the value of a RAW payload; None when the type has no bytes-like values.
    from_raw: Callable[[Buffer], Any] | None
    #: Makes the value of a MessagePack payload.
    decode: Callable[[Buffer], Any]
    #: Longest MessagePack payload, in bytes; None where the type cannot hold containers.
    limit: int | None

    def __init__(self, hint: Any, limit: int = MAX_STRUCTURED_BYTES) -> None:
        self.hint = hint
        self.text = describe_type(hint)
        #: what it says of an array; None: its values are none
        self.array = array_hint(hint)
        encodable = encodable_type(hint)
        self.limit = limit if _holds_containers(encodable) else None
        #: what its values have as keys (``proto/objects.py``)
        self.keys = _keys_of(encodable)
        self.decode = msgpack.Decoder(encodable).decode
        self.from_raw = None if self.array is not None else _raw_maker(hint, encodable)

    @property
    def views(self) -> bool:
        """Whether its values are views of the memory that they were received into."""
        return self.array is not None or self.from_raw is _as_is or self.from_raw is memoryview

    def bulk(self, form: Form | None, data: Buffer) -> Any:
        """The value of this form with these bytes. Errors as of :meth:`value`."""
        self.check(form)
        if self.array is not None:
            return make_array(form, data)
        assert self.from_raw is not None
        if form is None:
            return self.from_raw(data)
        return make_array(form, data)

    def check(self, form: Form | None) -> None:
        """:raises msgspec.ValidationError: it is of another type than a value of this form."""
        if self.array is not None:
            self.array.check(form, self.text)
        elif self.from_raw is None or (
            form is not None and not self.views and self.from_raw is not _as_bytes
        ):
            raise msgspec.ValidationError(
                f"Expected `{self.text}`, got `{'bytes' if form is None else 'array'}`"
            )
        elif form is not None and self.hint is bytes:
            raise msgspec.ValidationError(f"Expected `{self.text}`, got `array`")

    def value(self, encoding: int, payload: Payload) -> Any:
        """The value in ``payload``.

        :raises msgspec.ValidationError: another type, or a constraint is not met.
        :raises msgspec.DecodeError, RecursionError: not MessagePack; nested too deeply.
        :raises RpcError: ``RESOURCE_EXHAUSTED``, the payload is longer than ``limit``.
        """
        if encoding == _RAW:
            if self.from_raw is None:
                raise msgspec.ValidationError(f"Expected `{self.text}`, got `bytes`")
            return self.from_raw(payload)  # type: ignore[arg-type]
        if encoding == _BULK:
            whole = Bulk.of(payload)
            form = described_value(whole.description)
            whole.check(form)
            return self.bulk(form, whole.data)
        if encoding != _MSGPACK:
            raise msgspec.DecodeError(f"encoding {encoding} is not known")
        if self.limit is not None and len(payload) > self.limit:
            raise too_long(len(payload), self.limit)
        if self.array is not None and not (self.array.optional and payload == _NIL):
            raise msgspec.ValidationError(f"Expected `{self.text}`, got a value that is no array")
        return self.decode(payload)  # type: ignore[arg-type]


_NIL = b"\xc0"


def too_long(length: int, limit: int) -> RpcError:
    return RpcError(
        Code.RESOURCE_EXHAUSTED,
        f"a structured value of {length} bytes, at most {limit} are decoded; "
        "send bulk data as bytes, or as a stream of smaller items",
    )


def encodable_type(hint: Any) -> Any:
    """The type that msgspec is to decode for ``hint``.

    :raises TypeError: msgspec cannot check values of it.
    """
    plain, members = _unwrap(hint)
    if array_hint(hint) is not None:
        return types.NoneType  # an array is never MessagePack
    if all(_is_any_buffer(m) or m in (*_BYTES_LIKE, types.NoneType) for m in members) and any(
        _is_any_buffer(m) or m in _BYTES_LIKE for m in members
    ):
        # msgspec takes one bytes-like type in a union, and does not know Buffer. A view needs no copy.
        kinds = [m for m in members if m is not types.NoneType]
        if len(kinds) > 1 or _is_any_buffer(kinds[0]):
            return memoryview | None if types.NoneType in members else memoryview
    try:
        for part in _parts(msgspec.inspect.type_info(hint)):
            if isinstance(part, msgspec.inspect.CustomType):
                array = array_hint(part.cls) is not None
                raise TypeError(
                    f"values of {describe_type(part.cls)} cannot be checked; "
                    + (
                        "an array is an argument, a result or an item by itself, not a part of one"
                        if array
                        else "use a dataclass, a msgspec.Struct, a TypedDict or builtin types"
                    )
                )
    except TypeError as exc:
        raise TypeError(f"type {describe_type(plain)}: {exc}") from exc
    return hint


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """``hint`` without ``Annotated``, and the members of its union (itself when it is none)."""
    while typing.get_origin(hint) is typing.Annotated:
        hint = hint.__origin__
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return hint, typing.get_args(hint)
    return hint, (types.NoneType if hint is None else hint,)


def _raw_maker(hint: Any, encodable: Any) -> Callable[[Buffer], Any] | None:
    if hint is Any or hint is object:
        return _as_bytes
    if encodable is not hint:
        return _as_is
    plain, members = _unwrap(hint)
    kind = next((kind for kind in _BYTES_LIKE if any(_unwrap(m)[0] is kind for m in members)), None)
    if kind is None:
        return None
    if hint is plain and kind in members:
        return _as_bytes if kind is bytes else kind
    # With constraints (Annotated[bytes, Meta(max_length=...)]): the same checks as for MessagePack.
    return lambda payload: msgspec.convert(kind(payload), hint)


def _parts(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """``info`` and every type that it is made of, each once."""
    seen: set[int] = set()
    todo: list[Any] = [info]
    while todo:
        part = todo.pop()
        if isinstance(part, tuple):
            todo.extend(part)
        elif isinstance(part, msgspec.inspect.Field):
            todo.append(part.type)
        elif isinstance(part, msgspec.inspect.Type) and id(part) not in seen:
            seen.add(id(part))
            yield part
            todo.extend(getattr(part, name) for name in getattr(part, "__struct_fields__", ()))


_SCALARS = tuple(
    getattr(msgspec.inspect, f"{name}Type")
    for name in (
        "None Bool Int Float Str Bytes ByteArray MemoryView DateTime Time Date TimeDelta UUID Decimal Enum "
        "Literal Union"
    ).split()
)


def _holds_containers(encodable: Any) -> bool:
    return not all(isinstance(part, _SCALARS) for part in _parts(msgspec.inspect.type_info(encodable)))


#: Their hashes are keyed, or there are not many of them.
_SAFE_KEYS = tuple(
    getattr(msgspec.inspect, f"{name}Type") for name in "Str Bytes Enum Literal None Bool".split()
)


def _keys_of(encodable: Any) -> int:
    """What else than numbers in maps may become keys with hashes that the peer chooses."""
    kinds = msgspec.inspect
    found = 0
    for part in _parts(kinds.type_info(encodable)):
        if isinstance(part, (kinds.SetType, kinds.FrozenSetType)):
            key = part.item_type
            if not isinstance(key, _SAFE_KEYS):
                found |= SETS
        elif isinstance(part, kinds.DictType):
            key = part.key_type
        else:
            continue
        if not isinstance(key, (*_SAFE_KEYS, kinds.AnyType, kinds.IntType, kinds.FloatType)):
            found |= STRINGS
    return found


def describe_type(hint: Any) -> str:
    """``hint`` as it is written in a program: ``list[int]``, ``Point | None``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " | ".join("None" if m is types.NoneType else describe_type(m) for m in typing.get_args(hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return describe_type(hint.__origin__)
    if isinstance(origin, type) and arguments:
        inner = ", ".join("..." if a is Ellipsis else describe_type(a) for a in arguments)
        return f"{origin.__qualname__}[{inner}]"
    if isinstance(hint, type):
        return hint.__qualname__.rpartition("<locals>.")[2]
    return str(hint).replace("typing.", "")


# ---- encoding ----------------------------------------------------------------------------------------------


def _flat(view: memoryview) -> Buffer:
    """``view`` as one run of bytes; copied only when its memory is not one."""
    check_plain(view)
    if not view.c_contiguous:
        return view.tobytes()
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def encode_value(value: object) -> tuple[int, Payload]:
    """A result or a stream item as (encoding, payload). Bytes-like values and arrays are not copied.

    :raises TypeError: values of this type (or of one inside it) cannot travel.
    """
    kind = type(value)
    if kind is bytes or kind is bytearray:
        return _RAW, value  # type: ignore[return-value]
    if kind is memoryview:
        return _RAW, _flat(value)  # type: ignore[arg-type]
    try:
        return _MSGPACK, _pack(value)
    except TypeError:
        if not is_array(value):
            raise
    form, data = flat_array(value)
    return _BULK, Bulk(describe_value(form), data)


def encode_arguments(args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> tuple[int, Payload]:
    """The arguments of a call as (encoding, payload). Not copied: one bytes-like argument alone, one array,
    and of several the first large one that is bytes-like.

    :raises TypeError: an argument cannot travel.
    """
    if not kwargs and len(args) == 1:
        value = args[0]
        kind = type(value)
        if kind is bytes or kind is bytearray:
            return _RAW, value
        if kind is memoryview:
            return _RAW, _flat(value)
    else:
        _check_plain(args, kwargs)
        for where, value in enumerate(args):
            if type(value) in _BYTES_LIKE and memoryview(value).nbytes >= BULK_BYTES:
                return _BULK, _with_large(args, kwargs, where, None, _flat(memoryview(value)))
        for name, value in kwargs.items() if kwargs else ():
            if type(value) in _BYTES_LIKE and memoryview(value).nbytes >= BULK_BYTES:
                return _BULK, _with_large(args, kwargs, name, None, _flat(memoryview(value)))
    try:
        return (_KEYWORDS, _pack((args, kwargs))) if kwargs else (_MSGPACK, _pack(args))
    except TypeError:
        arrays = [(place, each) for place, each in _places(args, kwargs) if is_array(each)]
        if not arrays:
            raise
    if len(arrays) > 1:
        raise TypeError(f"{len(arrays)} arrays as arguments of one call: send one, or make them one")
    place, array = arrays[0]
    return _BULK, _with_large(args, kwargs, place, *flat_array(array))


def _check_plain(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
    """:raises TypeError: one is a memoryview of Python objects, which MessagePack would take for bytes."""
    for value in args:
        if type(value) is memoryview:
            check_plain(value)
    for value in kwargs.values() if kwargs else ():
        if type(value) is memoryview:
            check_plain(value)


def _places(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Iterator[tuple[int | str, Any]]:
    yield from enumerate(args)
    if kwargs:
        yield from kwargs.items()


def _with_large(
    args: tuple[Any, ...], kwargs: dict[str, Any] | None, where: int | str, form: Form | None, data: Buffer
) -> Bulk:
    """The arguments, and the bytes of the one that is large."""
    given, named = list(args), dict(kwargs or ())
    if isinstance(where, int):
        given[where] = None
    else:
        named[where] = None
    try:
        return Bulk(describe_arguments(given, named, where, form), data)
    except _UNSENDABLE as exc:
        raise _unsendable("the arguments", exc) from exc


def _pack(value: object) -> bytes:
    try:
        return _encode(value)
    except _UNSENDABLE as exc:
        what = "the arguments" if type(value) is tuple else f"a value of type {describe_type(type(value))}"
        raise _unsendable(what, exc) from exc


_UNSENDABLE = (TypeError, OverflowError, ValueError, BufferError, RecursionError)


def _unsendable(what: str, exc: Exception) -> TypeError:
    return TypeError(
        f"{what} cannot be sent: {exc}; use builtin types, dataclasses, "
        "msgspec.Struct or TypedDict, and bytes, a contiguous memoryview or one array for bulk data"
    )


# ---- decoding ----------------------------------------------------------------------------------------------


def explain(exc: Exception, path: Callable[[str], str]) -> RpcError:
    """The error to answer with when decoding raised ``exc``.

    :param path: writes a place for people, given msgspec's path below the value: ``".x[0]"`` or ``""``.
    """
    if isinstance(exc, RpcError):
        return RpcError(exc.code, f"{path('')}: {exc.message}", exc.details, exc.metadata)
    if isinstance(exc, RecursionError):
        return RpcError(Code.INVALID_ARGUMENT, f"{path('')}: nested too deeply")
    if isinstance(exc, MemoryError):
        return RpcError(Code.RESOURCE_EXHAUSTED, f"{path('')}: no memory to decode it")
    if isinstance(exc, (msgspec.MsgspecError, ValueError, TypeError)):
        text = str(exc)
        below = ""
        if match := _PATH.search(text):
            below, text = match[1], text[: match.start()]
        return RpcError(Code.INVALID_ARGUMENT, f"{path(below)}: {text[:1].lower()}{text[1:]}")
    # The type's own code (a __post_init__) failed for a reason that is no verdict on the value.
    _log.error("decoding %s failed", path(""), exc_info=exc)
    return RpcError(Code.INTERNAL, f"{path('')}: {type(exc).__name__} while it was decoded")


_ANY: Final = Shape(Any)


@functools.lru_cache(maxsize=1024)
def _cached_shape(hint: Any) -> Shape:
    return Shape(hint)


def shape_of(hint: Any) -> Shape:
    """The :class:`Shape` of a type, kept for the next time.

    :raises TypeError: values of this type cannot be decoded.
    """
    try:
        hash(hint)
    except TypeError:  # for example constraints that hold a list
        return Shape(hint)
    return _cached_shape(hint)


def decode_result(
    encoding: int,
    payload: Payload,
    returns: Any = None,
    where: str = "the result",
    most_objects: int = MAX_OBJECTS,
    most_keys: int = MAX_KEYS,
) -> Any:
    """The value in a result or stream item, for the caller.

    :param returns: the type it must have. None: whatever came, bytes-like values as ``bytes``. With
        ``memoryview`` a large bytes-like value is not copied.
    :param where: what it is, for error messages.
    :raises RpcError: ``INTERNAL``, the value is not of that type; ``RESOURCE_EXHAUSTED``, too long, or of
        more than ``most_objects`` objects or ``most_keys`` keys.
    :raises TypeError: values of the type ``returns`` cannot be decoded.
    """
    if encoding == _RAW and (returns is None or returns is bytes):
        return payload if type(payload) is bytes else bytes(payload)  # type: ignore[arg-type]
    shape = _ANY if returns is None else shape_of(returns)
    size = len(payload)
    if size > most_keys or size > most_objects:  # each has a byte or more
        check_objects(encoding, payload, most_objects, most_keys, shape.keys, where)
    try:
        return shape.value(encoding, payload)
    except Exception as exc:
        error = explain(exc, lambda below: f"{where}{below and ' at ' + below}")
        if error.code is Code.INVALID_ARGUMENT:
            # Not the caller's fault: the server answered something else than the caller was promised.
            error = RpcError(Code.INTERNAL, error.message)
        raise error from exc
