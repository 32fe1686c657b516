"""One large value beside others: arrays with their type and shape, and bytes among other arguments.

A payload of encoding ``BULK`` is the length of a description (4 bytes, big-endian), the description
(MessagePack), and the bytes of the value. The description travels with the head of the message, so a receiver
knows what comes before the bytes do, and may name the memory that they go to (``into.py``). Of a result or an
item it is ``[type, shape]``; of arguments ``[those by position, those by keyword, which of them the bytes
are, type, shape]``, with nil in the place of the value.

A type is as in numpy's array interface, ``"<f4"``; nil for plain bytes. numpy is not needed, and not
imported: a program that has not imported it gets a ``memoryview`` with a format and a shape.
"""

from __future__ import annotations

import math
import re
import struct
import sys
import types
import typing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import msgpack

if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview

#: Bytes-like arguments from this length on are sent so, where there are others beside them.
BULK_BYTES: Final = 16 << 10

_LENGTH = struct.Struct("!I")
_TYPE = re.compile(r"(?:[|]b1|[|][iu]1|[<>][iuf][248]|[<>]c8|[<>]c16)")
_MOST_DIMENSIONS = 32
#: Longest description of an array, in bytes: its type, and 9 for each dimension.
_MOST_DESCRIBED = 512
_FORMATS = {
    "b": "?",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
} | {
    "f2": "e",
    "f4": "f",
    "f8": "d",
}
_NATIVE = "<" if sys.byteorder == "little" else ">"


class Form(NamedTuple):
    """Type and shape of an array."""

    type: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its items."""
        return math.prod(self.shape) * int(self.type[2:])

    def __str__(self) -> str:
        return f"{self.type}[{', '.join(map(str, self.shape))}]"


def checked_form(kind: str | None, shape: tuple[int, ...] | None) -> Form | None:
    """What a peer says that a value is; None: plain bytes.

    :raises msgspec.ValidationError: no array that may travel.
    """
    if kind is None and shape is None:
        return None
    if kind is None or not _TYPE.fullmatch(kind):
        raise msgspec.ValidationError(f"arrays of type {kind!r:.20} are not sent")
    if not shape or len(shape) > _MOST_DIMENSIONS or min(shape) < 0 or max(shape) >= 1 << 40:
        raise msgspec.ValidationError("the shape of an array is none")
    return Form(kind, shape)


class Bulk:
    """A description, and the bytes that it is of.

    :param description: MessagePack.
    """

    __slots__ = ("data", "description")

    def __init__(self, description: bytes | memoryview, data: Buffer) -> None:
        self.description, self.data = description, data

    def __len__(self) -> int:
        return _LENGTH.size + len(self.description) + len(self.data)

    def behind(self, head: bytes) -> tuple[bytes, Buffer]:
        """Head and body of a message."""
        return b"".join((head, _LENGTH.pack(len(self.description)), self.description)), self.data

    @classmethod
    def of(cls, payload: Buffer | Bulk) -> Bulk:
        """Take a payload apart. :raises msgspec.DecodeError: it is none."""
        if isinstance(payload, Bulk):
            return payload
        at = _LENGTH.size
        whole = memoryview(payload)
        if len(whole) < at or len(whole) - at < (length := _LENGTH.unpack_from(whole)[0]):
            raise msgspec.DecodeError("the description of a large value is cut off")
        return cls(whole[at : at + length], whole[at + length :])

    @classmethod
    def front(cls, payload: Buffer) -> memoryview | None:
        """The description, if ``payload`` is one and no byte more."""
        found = cls.of(payload)
        return memoryview(found.description) if not found.data else None

    def check(self, form: Form | None) -> None:
        """:raises msgspec.ValidationError: there are more or fewer bytes than an array of this form has."""
        check_length(form, len(self.data))


def check_length(form: Form | None, nbytes: int) -> None:
    """:raises msgspec.ValidationError: an array of this form has more or fewer bytes."""
    if form is not None and form.nbytes != nbytes:
        raise msgspec.ValidationError(f"{nbytes} bytes for an array {form}, which has {form.nbytes}")


# ---- sending


def is_array(value: object) -> bool:
    """Whether it is an array (and no number of an array library)."""
    return hasattr(value, "__array_interface__") and bool(value.__array_interface__["shape"])


def bytes_of(data: Any) -> memoryview:
    """A contiguous buffer of any items as bytes. (It has some.)"""
    view = memoryview(data)
    try:
        return view.cast("B")
    except TypeError:  # items that memoryviews do not know: complex numbers, another byte order
        return memoryview(data.reshape(-1).view("u1"))


def flat_array(value: Any) -> tuple[Form, Buffer]:
    """Form and bytes of an array. Copied only when its items do not lie one after the other.

    :raises TypeError: it has items that are not numbers, or is no buffer.
    """
    interface = value.__array_interface__
    kind, shape = interface["typestr"], tuple(interface["shape"])
    if not _TYPE.fullmatch(kind) or len(shape) > _MOST_DIMENSIONS:
        raise TypeError(
            f"arrays of type {kind!r} with {len(shape)} dimensions cannot be sent: only of booleans, "
            f"integers, floats and complex numbers, with {_MOST_DIMENSIONS} dimensions at most"
        )
    view = memoryview(value)
    data: Buffer = b""
    if view.nbytes:
        data = bytes_of(value) if view.c_contiguous else value.tobytes()
    return Form(kind, shape), data


# ---- receiving


def make_array(form: Form | None, data: Buffer) -> Any:
    """The value over its bytes, not copied: of numpy, if that is imported; else a ``memoryview``.

    :raises msgspec.ValidationError: it needs numpy, which this program does not use.
    """
    if form is None:
        return memoryview(data)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if not data:
            return numpy.empty(form.shape, form.type)
        return numpy.frombuffer(data, form.type).reshape(form.shape)
    kind = _FORMATS.get(form.type[1:].replace("b1", "b"))
    if kind is None or form.type[0] not in ("|", _NATIVE):
        raise msgspec.ValidationError(f"an array {form}, and this program has not imported numpy")
    flat: Any = memoryview(data).cast("B")
    if 0 in form.shape:  # memoryviews have no such shapes
        return flat.cast(kind)
    return flat.cast(kind, form.shape)


class ArrayHint(NamedTuple):
    """An annotation ``numpy.ndarray``, or ``numpy.typing.NDArray[...]``."""

    #: Type of the items; None: any.
    scalar: Any
    #: ``| None``
    optional: bool

    def check(self, form: Form | None, text: str) -> None:
        """:raises msgspec.ValidationError: it is no array with such items."""
        if form is None:
            raise msgspec.ValidationError(f"Expected `{text}`, got `bytes`")
        numpy = sys.modules["numpy"]
        if self.scalar is not None and not numpy.issubdtype(numpy.dtype(form.type), self.scalar):
            raise msgspec.ValidationError(f"Expected `{text}`, got an array of {numpy.dtype(form.type).name}")


def array_hint(hint: Any) -> ArrayHint | None:
    """What an annotation says of an array; None: it is not of one."""
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if typing.get_origin(hint) is typing.Union:
        members = typing.get_args(hint)
    members = tuple(map(_meant, members))
    arrays = [m for m in members if _is_ndarray(typing.get_origin(m) or m)]
    others = [m for m in members if m is not types.NoneType and m not in arrays]
    if len(arrays) != 1 or others:
        return None
    parameters = typing.get_args(arrays[0])
    scalar = (
        typing.get_args(parameters[1])[0] if len(parameters) > 1 and typing.get_args(parameters[1]) else None
    )
    return ArrayHint(scalar if isinstance(scalar, type) else None, types.NoneType in members)


def _meant(hint: Any) -> Any:
    """What an alias stands for that a ``type`` statement made: numpy's ``NDArray`` is one since numpy 2.5."""
    parameters = typing.get_args(hint)
    alias = typing.get_origin(hint) if parameters else hint
    value = getattr(alias, "__value__", None)
    if value is None:
        return hint
    return value[parameters] if parameters else value


def _is_ndarray(kind: Any) -> bool:
    return getattr(kind, "__name__", "") == "ndarray" and getattr(kind, "__module__", "") == "numpy"


# ---- descriptions

_encode = msgpack.Encoder().encode
_decode_value = msgpack.Decoder(tuple[str, tuple[int, ...]]).decode
_decode_arguments = msgpack.Decoder(
    tuple[list[msgspec.Raw], dict[str, msgspec.Raw], int | str, str | None, tuple[int, ...] | None]
).decode


class Described(NamedTuple):
    """The arguments of a call with a large one."""

    given: list[msgspec.Raw]
    named: dict[str, msgspec.Raw]
    #: Which of them is the large one: a place, or a name.
    where: int | str
    form: Form | None


def describe_value(form: Form) -> bytes:
    """Of a result or an item."""
    return _encode(form)


def described_value(description: Buffer) -> Form:
    """:raises msgspec.DecodeError: it is none. :raises msgspec.ValidationError: no array that may travel."""
    if len(description) > _MOST_DESCRIBED:
        raise msgspec.ValidationError(f"{len(description)} bytes that describe an array")
    form = checked_form(*_decode_value(description))
    assert form is not None
    return form


def describe_arguments(args: list[Any], kwargs: dict[str, Any], where: int | str, form: Form | None) -> bytes:
    """:raises TypeError: an argument cannot travel."""
    kind, shape = form if form is not None else (None, None)
    return _encode((args, kwargs, where, kind, shape))


def described_arguments(description: Buffer) -> Described:
    """Errors as of :func:`described_value`."""
    given, named, where, kind, shape = _decode_arguments(description)
    if where not in named and not (isinstance(where, int) and 0 <= where < len(given)):
        raise msgspec.ValidationError("the large argument is none of those that are given")
    return Described(given, named, where, checked_form(kind, shape))
