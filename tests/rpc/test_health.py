"""Health: checks, watches that always see the newest, drain; on every event loop."""

from __future__ import annotations

import anyio
import pytest

from aiordma.rpc import health as health_module
from aiordma.rpc.codec import encode_arguments
from aiordma.rpc.errors import Code, RpcError
from aiordma.rpc.health import Health, Status
from aiordma.rpc.signature import Kind

pytestmark = pytest.mark.anyio


def test_statuses_of_services() -> None:
    health = Health(["kv"])
    assert health.check() is Status.SERVING
    assert health.check("kv") is Status.SERVING
    with pytest.raises(RpcError) as caught:
        health.check("other")
    assert caught.value.code is Code.NOT_FOUND
    health.set("kv", Status.NOT_SERVING)
    assert health.all() == {"": Status.SERVING, "kv": Status.NOT_SERVING}
    health.remove("kv")
    assert list(health) == [""]
    assert health["kv"] is Status.SERVICE_UNKNOWN
    with pytest.raises(ValueError, match="remove"):
        health.set("kv", Status.SERVICE_UNKNOWN)


def test_a_draining_server_stays_so() -> None:
    health = Health(["kv"])
    health.drain()
    health.set("kv", Status.SERVING)
    assert set(health.all().values()) == {Status.NOT_SERVING}


def test_the_service_says_what_it_takes() -> None:
    methods = Health().service.methods
    assert {name: m.kind for name, m in methods.items()} == {
        "rpc.health.check": Kind.UNARY,
        "rpc.health.watch": Kind.SERVER_STREAM,
        "rpc.health.all": Kind.UNARY,
    }
    args, kwargs = methods["rpc.health.check"].decode(*encode_arguments((), {"service": ""}))
    assert methods["rpc.health.check"].handler(*args, **kwargs) == "SERVING"


async def test_a_watch_sees_the_newest_status_and_only_changes() -> None:
    health = Health()
    watch = health.watch("kv")
    assert await anext(watch) is Status.SERVICE_UNKNOWN
    health.set("kv", Status.SERVING)
    health.set("kv", Status.NOT_SERVING)
    assert await anext(watch) is Status.NOT_SERVING

    seen = []
    reached = anyio.Event()

    async def follow() -> None:
        async for status in watch:
            seen.append(status)
            if len(seen) == 2:
                reached.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        await anyio.wait_all_tasks_blocked()
        health.set("other", Status.SERVING)
        health.set("kv", Status.NOT_SERVING)  # no change
        await anyio.wait_all_tasks_blocked()
        assert seen == []
        health.set("kv", Status.SERVING)
        await anyio.wait_all_tasks_blocked()
        health.drain()
        await reached.wait()
        tasks.cancel_scope.cancel()
    assert seen == [Status.SERVING, Status.NOT_SERVING]


async def test_a_watch_that_ends_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "MAX_WATCHERS", 2)
    health = Health()
    watches = [health.watch(), health.watch()]
    for watch in watches:
        assert await anext(watch) is Status.SERVING
    with pytest.raises(RpcError) as caught:
        await anext(health.watch())
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    for watch in watches:
        await watch.aclose()  # type: ignore[attr-defined]
    again = health.watch()
    assert await anext(again) is Status.SERVING
    await again.aclose()  # type: ignore[attr-defined]
