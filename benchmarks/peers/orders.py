"""A message with fields, as a program's calls have it: an order that the server adds up, and its receipt.

Each peer packs it as its users do: aiordma from the types below, msgpack and pyzmq by `msgspec` with the same
types, gRPC by protobuf (`pb_order()`), Ray by pickle. Some 600 bytes when packed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import msgspec

LINES = 10


class Line(msgspec.Struct):
    article: str
    count: int
    price: float


class Order(msgspec.Struct):
    number: int
    customer: str
    street: str
    paid: bool
    lines: list[Line]


class Receipt(msgspec.Struct):
    number: int
    total: float
    articles: list[str]


def order(number: int, line: Callable[..., Any] = Line, whole: Callable[..., Any] = Order) -> Any:
    """One that differs from the others in its number; of other types with the same fields, if given."""
    lines = [
        line(article=f"article {place} of the catalogue, blue", count=place, price=2.5 * place)
        for place in range(LINES)
    ]
    return whole(
        number=number,
        customer="A. N. Other, purchasing",
        street="1 Example Street, 00001 Example",
        paid=True,
        lines=lines,
    )


#: What each receipt must say.
TOTAL = sum(line.count * line.price for line in order(0).lines)


def settle(asked: Any, receipt: Callable[..., Any] = Receipt) -> Any:
    """What the handlers do."""
    total = sum(line.count * line.price for line in asked.lines)
    return receipt(number=asked.number, total=total, articles=[line.article for line in asked.lines])


# ---- msgpack

pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
unpack_order = msgspec.msgpack.Decoder(Order).decode
unpack_receipt = msgspec.msgpack.Decoder(Receipt).decode


def settle_packed(payload: bytes) -> bytes:
    return pack(settle(unpack_order(payload)))


# ---- protobuf, without its compiler: the classes are made from descriptors

_SCALARS = {int: "TYPE_INT64", str: "TYPE_STRING", bool: "TYPE_BOOL", float: "TYPE_DOUBLE"}
_FIELDS: dict[str, dict[str, Any]] = {
    "Line": {"article": str, "count": int, "price": float},
    "Order": {"number": int, "customer": str, "street": str, "paid": bool, "lines": ["Line"]},
    "Receipt": {"number": int, "total": float, "articles": [str]},
}


@functools.cache
def pb() -> dict[str, Any]:
    """The three types as protobuf's message classes, by name."""
    descriptor_pb2, descriptor_pool, message_factory = (
        importlib.import_module(f"google.protobuf.{name}")
        for name in ("descriptor_pb2", "descriptor_pool", "message_factory")
    )
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="orders", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), 1):
            repeated = isinstance(kind, list)
            one = kind[0] if repeated else kind
            added = message.field.add(
                name=field, number=number, label="LABEL_REPEATED" if repeated else "LABEL_OPTIONAL"
            )
            if isinstance(one, str):
                added.type, added.type_name = "TYPE_MESSAGE", f".orders.{one}"
            else:
                added.type = _SCALARS[one]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"orders.{name}"))
        for name in _FIELDS
    }


def pb_order(number: int) -> Any:
    """`order(number)` as protobuf's."""
    return order(number, pb()["Line"], pb()["Order"])


def pb_settle(asked: Any) -> Any:
    """`settle()` of protobuf's messages."""
    return settle(asked, pb()["Receipt"])
