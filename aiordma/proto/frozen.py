"""Immutable records: what ``dataclass(frozen=True)`` makes, without compiling methods for each class.

Python compiles five methods for each dataclass when its module is imported. That is a third of a millisecond
for each of some thirty messages and events, which every process pays before its first connection. These
classes share their methods. An instance is made somewhat slower; none of them is made for each message of a
stream or a call.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

T = TypeVar("T", bound="Frozen")


@dataclass_transform(frozen_default=True)
class Frozen:
    """Base of such a class. Its annotations are its fields, but for those of ``ClassVar``.

    :param kw_only: fields are given by name only.
    """

    #: all fields, in order; those that have no default; all of them; those that may be given by position
    _fields: ClassVar[tuple[str, ...]] = ()
    _required: ClassVar[frozenset[str]] = frozenset()
    _known: ClassVar[frozenset[str]] = frozenset()
    _positional: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        own = [name for name, kind in cls.__annotations__.items() if not str(kind).startswith("ClassVar")]
        cls._fields = tuple(dict.fromkeys((*cls._fields, *own)))
        cls._known = frozenset(cls._fields)
        cls._required = frozenset(name for name in cls._fields if not hasattr(cls, name))
        cls._positional = () if kw_only else cls._fields
        type.__setattr__(cls, "__match_args__", cls._positional)  # mypy has one of its own

    def __init__(self, *values: Any, **named: Any) -> None:
        if values:
            by_position = dict(zip(self._positional, values, strict=False))
            if len(values) > len(self._positional) or not named.keys().isdisjoint(by_position):
                raise TypeError(
                    f"{type(self).__name__}() takes {self._signature()}, not {values} and {named}"
                )
            named.update(by_position)
        if not self._required <= named.keys() <= self._known:
            raise TypeError(f"{self._signature()}, not {sorted(named)}")
        self.__dict__.update(named)

    @classmethod
    def _signature(cls) -> str:
        fields = (name if name in cls._required else f"[{name}]" for name in cls._fields)
        return f"{cls.__name__}() takes {', '.join(fields) or 'nothing'}"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed: {name}")

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self._fields])

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), *self._values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({fields})"

    def alike(self, **changes: Any) -> Self:
        """As :meth:`changed`, where the caller knows that these are fields."""
        made = object.__new__(type(self))
        object.__setattr__(made, "__dict__", self.__dict__ | changes)
        return made

    def changed(self, **changes: Any) -> Self:
        """A copy with other values for these fields.

        :raises TypeError: one of them is no field.
        """
        return type(self)(**{name: getattr(self, name) for name in self._fields} | changes)
