"""Reflection: what it says of methods is what was registered, and it travels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, get_args

import pytest

from aiordma.rpc.codec import decode_result, encode_arguments, encode_value
from aiordma.rpc.errors import Code, RpcError
from aiordma.rpc.reflection import KindName, MethodInfo, ParameterInfo, Reflection, ServiceInfo
from aiordma.rpc.service import Service
from aiordma.rpc.signature import Kind


@dataclass
class Entry:
    key: bytes
    value: bytes


def made() -> tuple[Service, Service]:
    kv = Service("kv")

    @kv.method(idempotent=True)
    async def scan(prefix: bytes = b"", *, limit: int | None = None) -> AsyncIterator[Entry]:
        """Entries by key.

        In order.
        """
        yield Entry(b"", b"")

    @kv.method
    async def load(entries: AsyncIterator[Entry]) -> int:
        return 0

    return kv, Reflection(kv).service


def ask(service: Service, method: str, returns: Any, *args: Any) -> Any:
    """As it goes over the wire."""
    m = service.methods[f"rpc.reflection.{method}"]
    positional, keywords = m.decode(*encode_arguments(args))
    return decode_result(*encode_value(m.handler(*positional, **keywords)), returns)


def test_services_methods_and_signatures() -> None:
    _, own = made()
    found = ask(own, "services", list[ServiceInfo])
    assert [service.name for service in found] == ["kv", "rpc.reflection"]
    scan, load = found[0].methods
    assert scan == MethodInfo(
        name="kv.scan",
        kind="SERVER_STREAM",
        idempotent=True,
        parameters=[
            ParameterInfo(name="prefix", type="bytes", required=False, default="b''"),
            ParameterInfo(name="limit", type="int | None", required=False, default="None", keyword_only=True),
        ],
        returns="Entry",
        signature="(prefix: bytes = b'', *, limit: int | None = None) -> stream of Entry",
        doc="Entries by key.",
    )
    assert (load.kind, load.item, load.returns) == ("CLIENT_STREAM", "Entry", "int")
    assert str(found[0]) == (
        "kv\n"
        "  kv.scan(prefix: bytes = b'', *, limit: int | None = None) -> stream of Entry  (idempotent)\n"
        "  kv.load(stream of Entry) -> int"
    )


def test_methods_that_come_later_are_described() -> None:
    kv, own = made()

    @kv.method
    def late(x: int) -> int:
        return x

    info = ask(own, "method", MethodInfo, "kv.late")
    assert (info.name, info.signature) == ("kv.late", "(x: int) -> int")
    with pytest.raises(RpcError) as caught:
        ask(own, "method", MethodInfo, "kv.no")
    assert caught.value.code is Code.NOT_FOUND


def test_schemas_of_types() -> None:
    _, own = made()
    schema = ask(own, "schema", dict[str, Any], "kv.load")
    assert schema["types"] == {"return": {"type": "integer"}, "stream": {"$ref": "#/$defs/Entry"}}
    assert set(schema["$defs"]["Entry"]["properties"]) == {"key", "value"}


def test_kinds_have_the_names_of_the_enum() -> None:
    assert get_args(KindName) == tuple(Kind.__members__)
