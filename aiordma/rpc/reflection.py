"""Reflection: a server describes what it serves: signatures, types and the first sentence of documentation.

A server offers it like any other service (it describes itself, too)::

    async with rpc.serve([kv, rpc.Reflection(kv).service], host, port):
        ...

    for service in await client.call("rpc.reflection.services", returns=list[rpc.ServiceInfo]):
        print(service)
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from .codec import describe_type, encodable_type
from .errors import Code, RpcError
from .service import Method, Service
from .signature import NO_DEFAULT

REFLECTION_SERVICE: Final = "rpc.reflection"

KindName = Literal["UNARY", "SERVER_STREAM", "CLIENT_STREAM", "BIDI"]


class ParameterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One argument of a method."""

    name: str
    #: The type, as it is written in a program.
    type: str
    required: bool
    #: The default, as it is written in a program; empty when there is none.
    default: str = ""
    keyword_only: bool = False


class MethodInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One method."""

    #: Name in messages, ``"kv.get"``.
    name: str
    kind: KindName
    idempotent: bool
    parameters: list[ParameterInfo]
    #: Type of the result, or of each item where the server streams.
    returns: str
    #: Type of each item that the caller streams; empty where it streams none.
    item: str = ""
    #: All of it as one line.
    signature: str = ""
    doc: str = ""

    def __str__(self) -> str:
        return f"{self.name}{self.signature}" + ("  (idempotent)" if self.idempotent else "")


class ServiceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One service."""

    name: str
    methods: list[MethodInfo]

    def __str__(self) -> str:
        return "\n".join([self.name, *(f"  {method}" for method in self.methods)])


def describe(method: Method) -> MethodInfo:
    """The description of ``method``."""
    signature = method.signature
    kind: KindName = signature.kind.name  # type: ignore[assignment]
    return MethodInfo(
        name=method.name,
        kind=kind,
        idempotent=method.idempotent,
        parameters=[
            ParameterInfo(
                name=p.name,
                type=describe_type(p.hint),
                required=p.default is NO_DEFAULT,
                default="" if p.default is NO_DEFAULT else f"{p.default!r:.200}",
                keyword_only=p.keyword_only,
            )
            for p in signature.parameters
        ],
        returns=describe_type(signature.returns),
        item=describe_type(signature.item) if signature.kind.streams_in else "",
        signature=str(signature),
        doc=method.doc[:500],
    )


def _schema(method: Method) -> dict[str, Any]:
    """JSON Schemas of a method's types; bytes appear as base64 text there, as JSON has them."""
    signature = method.signature
    hints = {p.name: p.hint for p in signature.parameters} | {"return": signature.returns}
    if signature.kind.streams_in:
        hints["stream"] = signature.item
    schemas, components = msgspec.json.schema_components([encodable_type(hint) for hint in hints.values()])
    return {"types": dict(zip(hints, schemas, strict=True)), "$defs": components}


class Reflection:
    """Describes ``services`` and itself. Methods that they get later are described, too."""

    def __init__(self, *services: Service) -> None:
        #: What the server has to serve.
        self.service = Service(REFLECTION_SERVICE)
        self._described = (*services, self.service)
        self.service.add(self.services, idempotent=True)
        self.service.add(self.method, idempotent=True)
        self.service.add(self.schema, idempotent=True)

    def _find(self, name: str) -> Method:
        for service in self._described:
            if name in service.methods:
                return service.methods[name]
        raise RpcError(Code.NOT_FOUND, f"no method {name!r:.99} here")

    # ---- the methods that are served -----------------------------------------------------------------------

    def services(self) -> list[ServiceInfo]:
        """All services with their methods."""
        return [
            ServiceInfo(name=service.name, methods=[describe(m) for m in service.methods.values()])
            for service in self._described
        ]

    def method(self, name: str) -> MethodInfo:
        """One method, by its full name."""
        return describe(self._find(name))

    def schema(self, name: str) -> dict[str, Any]:
        """JSON Schemas of the types of a method's arguments, streamed items and result."""
        return _schema(self._find(name))
