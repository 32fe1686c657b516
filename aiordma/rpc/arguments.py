# cython: annotation_typing=False
"""From the payload of a call to the arguments of its handler, checked, with errors that name the argument."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import msgpack

from .bulk import Bulk, check_length, described_arguments
from .codec import Encoding, Shape, encodable_type, explain, too_long
from .errors import Code, RpcError
from .signature import NO_DEFAULT, Parameter, Signature

if TYPE_CHECKING:
    from .bulk import Form
    from .codec import Buffer, Payload

    Arguments = tuple[list[Any], dict[str, Any]]

_RAW = int(Encoding.RAW)
_MSGPACK = int(Encoding.MSGPACK)
_KEYWORDS = int(Encoding.KEYWORDS)
_BULK = int(Encoding.BULK)

_PLACE = re.compile(r"\[(\d+)\]")
_COUNT = re.compile(r"Expected `array` of .*length \d+, got (\d+)")


class Decode:
    """The arguments of one method. Everything that does not depend on a call is worked out here, once.

    :raises TypeError: values of a parameter's type cannot be decoded.
    """

    __slots__ = (
        "_by_keyword",
        "_by_position",
        "_has_arrays",
        "_keyword_only",
        "_limit",
        "_name",
        "_parameters",
        "_shapes",
        "holes",
        "positional",
    )

    def __init__(self, name: str, signature: Signature, limit: int) -> None:
        self._name = name
        self._parameters = signature.parameters
        self._shapes: dict[str, Shape] = {}
        for p in signature.parameters:
            try:
                self._shapes[p.name] = Shape(p.hint, limit)
            except TypeError as exc:
                raise TypeError(f"{name}: parameter {p.name!r}: {exc}") from exc
        #: those that may be given by position, in order
        self.positional = [p for p in signature.parameters if not p.keyword_only]
        self._keyword_only = [p for p in signature.parameters if p.keyword_only]
        # Where the context and the caller's items go; the server's connection puts them there.
        self.holes = sorted(i for i in (signature.context_index, signature.stream_index) if i >= 0)
        limited = any(shape.limit is not None for shape in self._shapes.values())
        self._limit = limit if limited else None
        # An array is never MessagePack: then each value is looked at by itself.
        self._has_arrays = any(shape.array is not None for shape in self._shapes.values())
        kind = list[msgspec.Raw] if self._has_arrays else _record(self.positional)
        self._by_position: Callable[[Buffer], Any] = msgpack.Decoder(kind).decode
        self._by_keyword = msgpack.Decoder(tuple[list[msgspec.Raw], dict[str, msgspec.Raw]]).decode

    def __call__(self, encoding: int, payload: Payload) -> Arguments:
        """(positional, by keyword); None stands where the context and the stream belong.

        :raises RpcError: ``INVALID_ARGUMENT`` naming the argument, ``RESOURCE_EXHAUSTED``.
        """
        args, kwargs = self.arguments(encoding, payload)
        for index in self.holes:
            args.insert(index, None)
        return args, kwargs

    def arguments(self, encoding: int, payload: Payload) -> Arguments:
        """Those that travelled, and defaults. Errors as of a call of this object."""
        try:
            if encoding == _RAW:
                return self._from_raw(payload), {}  # type: ignore[arg-type]
            if encoding == _BULK:
                whole = Bulk.of(payload)
                return self._from_bulk(
                    whole.description, lambda p, form: self.large(p, form, len(whole.data), whole.data)
                )
            if self._limit is not None and len(payload) > self._limit:
                raise too_long(len(payload), self._limit)
            if encoding == _MSGPACK and not self._has_arrays:
                args = list(msgspec.structs.astuple(self._by_position(payload)))  # type: ignore[arg-type]
                if self._keyword_only:
                    self._fill({}, self._keyword_only)
                return args, {}
            if encoding == _MSGPACK:
                return self._from_both(self._by_position(payload), {}, self._small)  # type: ignore[arg-type]
            if encoding == _KEYWORDS:
                given, named = self._by_keyword(payload)  # type: ignore[arg-type]
                return self._from_both(given, named, self._small)
            raise msgspec.DecodeError(f"encoding {encoding} is not known")
        except Exception as exc:
            raise self._explained(exc) from exc

    def described(self, description: Buffer, large: Callable[[Parameter, Form | None], Any]) -> Arguments:
        """The arguments of a description; ``large`` makes the value that it is of. Errors as of a call."""
        try:
            return self._from_bulk(description, large)
        except Exception as exc:
            raise self._explained(exc) from exc

    def large(self, p: Parameter, form: Form | None, nbytes: int, data: Buffer | None) -> Any:
        """The value of a large argument; only checked without ``data``."""
        shape = self._shapes[p.name]
        try:
            check_length(form, nbytes)
            return shape.check(form) if data is None else shape.bulk(form, data)
        except Exception as exc:
            raise explain(exc, lambda below: f"{self._name}: argument '{p.name}{below}'") from exc

    def views(self, name: str) -> bool:
        """Whether the values of a parameter are views of the memory that they were received into."""
        return self._shapes[name].views

    def _from_raw(self, payload: Buffer) -> list[Any]:
        if not self.positional:
            raise self._wrong(f"takes {self._count()}, got 1")
        first, *rest = self.positional
        value = self._one(first, _RAW, payload)
        self._fill({}, self._keyword_only)
        return [value, *self._fill({}, rest)]

    def _from_bulk(self, description: Buffer, large: Callable[[Parameter, Form | None], Any]) -> Arguments:
        if self._limit is not None and len(description) > self._limit:
            raise too_long(len(description), self._limit)
        given, named, where, form = described_arguments(description)
        hole: Any = given[where] if isinstance(where, int) else named[where]

        def value(p: Parameter, raw: msgspec.Raw) -> Any:
            return large(p, form) if raw is hole else self._small(p, raw)

        return self._from_both(given, named, value)

    def _small(self, p: Parameter, raw: msgspec.Raw) -> Any:
        return self._one(p, _MSGPACK, memoryview(raw))

    def _from_both(
        self,
        given: list[msgspec.Raw],
        named: dict[str, msgspec.Raw],
        value: Callable[[Parameter, msgspec.Raw], Any],
    ) -> Arguments:
        """The values of those by position and of those by keyword."""
        if len(given) > len(self.positional):
            raise self._wrong(f"takes {self._count()}, got {len(given)} by position")
        values: dict[str, Any] = {}
        for p, raw in zip(self.positional, given, strict=False):
            values[p.name] = value(p, raw)
        for name, raw in named.items():
            known = self._shapes.get(name)
            if known is None:
                raise self._wrong(f"has no argument '{name:.64}'; it takes {self._count()}")
            if name in values:
                raise self._wrong(f"argument '{name}' is given twice, by position and by keyword")
            p = next(p for p in self._parameters if p.name == name)
            if p.positional_only:
                raise self._wrong(f"argument '{name}' is given by position only")
            values[name] = value(p, raw)
        args = self._fill(values, self.positional)
        self._fill(values, self._keyword_only)
        return args, {p.name: values[p.name] for p in self._keyword_only if p.name in values}

    def _one(self, p: Parameter, encoding: int, payload: Buffer) -> Any:
        try:
            return self._shapes[p.name].value(encoding, payload)
        except Exception as exc:
            raise explain(exc, lambda below: f"{self._name}: argument '{p.name}{below}'") from exc

    def _fill(self, values: dict[str, Any], parameters: list[Parameter]) -> list[Any]:
        """The values of ``parameters``, defaults for what is not given."""
        missing = [p.name for p in parameters if p.default is NO_DEFAULT and p.name not in values]
        if missing:
            raise self._wrong(f"argument '{missing[0]}' is missing; it takes {self._count()}")
        return [values.get(p.name, p.default) for p in parameters]

    def _count(self) -> str:
        if not self._parameters:
            return "no arguments"
        return f"({', '.join(map(str, self._parameters))})"

    def _wrong(self, text: str) -> RpcError:
        return RpcError(Code.INVALID_ARGUMENT, f"{self._name}: {text}")

    def _explained(self, exc: Exception) -> RpcError:
        if isinstance(exc, RpcError) and exc.message.startswith(self._name):
            return exc

        def path(below: str) -> str:
            """msgspec counts: ``[1].x`` is field x of the second argument."""
            if (match := _PLACE.match(below)) and int(match[1]) < len(self.positional):
                return f"{self._name}: argument '{self.positional[int(match[1])].name}{below[match.end() :]}'"
            return f"{self._name}: arguments{below}"

        if isinstance(exc, msgspec.ValidationError) and (match := _COUNT.fullmatch(str(exc))):
            return self._wrong(f"takes {self._count()}, got {match[1]} argument{'s' * (match[1] != '1')}")
        return explain(exc, path)


def _same(value: Any) -> Any:
    return value


def _record(parameters: list[Parameter]) -> type[msgspec.Struct]:
    """A type whose MessagePack form is the array of the positional arguments."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for i, p in enumerate(parameters):
        hint = encodable_type(p.hint)
        if p.default is NO_DEFAULT:
            fields.append((f"a{i}", hint))
        else:
            fields.append((f"a{i}", hint, msgspec.field(default_factory=functools.partial(_same, p.default))))
    return msgspec.defstruct("arguments", fields, array_like=True, forbid_unknown_fields=True)


def arguments_decoder(name: str, signature: Signature, limit: int) -> Callable[[int, Payload], Arguments]:
    """A function from (encoding, payload) to (positional arguments, arguments by keyword).

    :raises TypeError: values of a parameter's type cannot be decoded.
    """
    general = Decode(name, signature, limit)
    if len(signature.parameters) != 1 or signature.context_index >= 0 or signature.stream_index >= 0:
        return general
    only = signature.parameters[0]
    if only.keyword_only:
        return general
    # The calls that must cost next to nothing: one bytes-like argument.
    if only.hint is bytes:

        def only_bytes(encoding: int, payload: Payload) -> Arguments:
            if encoding == 0:
                return [payload if type(payload) is bytes else bytes(payload)], {}  # type: ignore[arg-type]
            return general(encoding, payload)

        return only_bytes
    if only.hint is memoryview:

        def only_view(encoding: int, payload: Payload) -> Arguments:
            if encoding == 0:
                return [memoryview(payload)], {}  # type: ignore[arg-type]
            return general(encoding, payload)

        return only_view
    return general
