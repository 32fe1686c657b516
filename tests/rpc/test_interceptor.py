"""Interceptors: the outermost is called first, each may change everything, unused ones cost nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from aiordma.rpc.errors import Code, RpcError
from aiordma.rpc.interceptor import (
    ClientCall,
    ClientInterceptor,
    ServerCall,
    ServerInterceptor,
    StreamProceed,
    UnaryProceed,
    as_async,
    chain_stream,
    chain_unary,
    whole,
)
from aiordma.rpc.server import Server
from aiordma.rpc.service import Service

pytestmark = pytest.mark.anyio


class Noting(ClientInterceptor):
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    async def unary(self, call: ClientCall, proceed: UnaryProceed[ClientCall]) -> Any:
        self.notes.append(f"{self.name} in")
        try:
            return await proceed(call)
        finally:
            self.notes.append(f"{self.name} out")


class Retrying(ClientInterceptor):
    async def unary(self, call: ClientCall, proceed: UnaryProceed[ClientCall]) -> Any:
        try:
            return await proceed(call)
        except RpcError:
            call.metadata["attempt"] = "2"
            return await proceed(call)


class Doubling(ServerInterceptor):
    def stream(self, call: ServerCall, proceed: StreamProceed[ServerCall]) -> AsyncIterator[Any]:
        async def items() -> AsyncIterator[Any]:
            async for item in proceed(call):
                yield item * 2

        return items()


async def test_the_first_is_the_outermost() -> None:
    notes: list[str] = []

    async def last(call: ClientCall) -> str:
        notes.append(call.method)
        return "result"

    proceed = chain_unary([Noting("a", notes), Noting("b", notes)], last)
    assert await proceed(ClientCall("kv.get", (b"k",))) == "result"
    assert notes == ["a in", "b in", "kv.get", "b out", "a out"]


async def test_one_may_proceed_again_or_not_at_all() -> None:
    seen: list[Any] = []

    async def last(call: ClientCall) -> str:
        seen.append(call.metadata.get("attempt"))
        if len(seen) == 1:
            raise RpcError(Code.UNAVAILABLE, "gone")
        return "second"

    assert await chain_unary([Retrying()], last)(ClientCall("m", ())) == "second"
    assert seen == [None, "2"]

    class Refusing(ClientInterceptor):
        async def unary(self, call: ClientCall, proceed: UnaryProceed[ClientCall]) -> Any:
            raise RpcError(Code.UNAUTHENTICATED)

    with pytest.raises(RpcError, match="UNAUTHENTICATED"):
        await chain_unary([Refusing()], last)(ClientCall("m", ()))
    assert len(seen) == 2


async def test_streams() -> None:
    method = Service("t").add(lambda n: iter(range(n)), name="m")
    call = ServerCall(method, None, [3], {})

    def last(call: ServerCall) -> AsyncIterator[Any]:
        return as_async(call.method.handler(*call.args, **call.kwargs))

    assert [item async for item in chain_stream([Doubling(), Doubling()], last)(call)] == [0, 4, 8]


def test_what_does_not_intercept_is_not_in_the_chain() -> None:
    async def last(call: ClientCall) -> None: ...

    assert chain_unary([], last) is last
    assert chain_unary([ClientInterceptor()], last) is last
    assert chain_stream([Noting("a", [])], last) is last


class Unary(ServerInterceptor):
    async def unary(self, call: ServerCall, proceed: UnaryProceed[ServerCall]) -> Any:
        return await proceed(call)


class UnaryOnly(Unary):
    others_pass = True


class UnaryAgain(UnaryOnly):
    """Overrides for itself: what the class before said was about that class."""

    async def unary(self, call: ServerCall, proceed: UnaryProceed[ServerCall]) -> Any:
        return await proceed(call)


class Both(Unary, Doubling):
    pass


@pytest.mark.parametrize(
    ("of", "missing"),
    [(Unary, "stream"), (Doubling, "unary"), (UnaryAgain, "stream")],
)
async def test_a_server_refuses_a_guard_of_one_kind(of: type[ServerInterceptor], missing: str) -> None:
    with pytest.raises(TypeError, match=rf"override {missing}\(\), too, or set others_pass = True"):
        Server(Service("t"), interceptors=[of()])


def test_whole_and_declared_interceptors_are_taken() -> None:
    taken = [Both(), UnaryOnly(), ServerInterceptor()]
    assert whole(iter(taken)) == taken
