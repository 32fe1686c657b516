"""httpcore's backend and httpx's transport: by RDMA, by TCP, and their errors."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from aiordma.config import Config
from tests.nowait import true_without_a_turn
from tests.processes import process
from tests.roles import LOCAL
from tests.streams.pairs import tls_contexts

httpcore: Any = pytest.importorskip("httpcore", reason="the extra aiordma[httpcore] is not installed")
httpx: Any = pytest.importorskip("httpx", reason="the extra aiordma[httpx] is not installed")

from aiordma.integrations.httpcore import RdmaBackend  # noqa: E402
from aiordma.integrations.httpx import RdmaTransport  # noqa: E402

pytestmark = pytest.mark.anyio


def path_of(response: Any) -> Any:
    return response.extensions["network_stream"].get_extra_info("aiordma.path")


async def test_pages_come_by_rdma(pages: str) -> None:
    async with httpx.AsyncClient(transport=RdmaTransport()) as client:
        for page in ("/a", "/b"):
            response = await client.get(pages + page)
            assert response.text == page
            assert path_of(response) == "rdma"


async def test_a_plain_server_is_served_by_tcp(plain_pages: str) -> None:
    async with httpx.AsyncClient(transport=RdmaTransport()) as client:
        response = await client.get(plain_pages + "/a")
    assert (response.text, path_of(response)) == ("/a", "tcp")


async def test_a_connection_that_the_server_closed_is_not_used_again(pages: str) -> None:
    async with httpcore.AsyncConnectionPool(network_backend=RdmaBackend()) as pool:
        first = await pool.request("GET", pages + "/last")
        stream = first.extensions["network_stream"]
        with anyio.fail_after(10):
            while not stream.get_extra_info("is_readable"):  # noqa: ASYNC110 (httpcore asks, and never waits)
                await anyio.sleep(0.001)
        second = await pool.request("GET", pages + "/again")
        assert second.content == b"/again"
        assert second.extensions["network_stream"] is not stream


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_a_connection_that_ended_while_the_loop_computed_is_not_used_again(mode: Any) -> None:
    transport = RdmaTransport(mode=mode, config=Config(busy_poll_us=0))
    async with httpx.AsyncClient(transport=transport) as client:
        with process("tests.integrations.roles:forgetful_server", mode=mode) as server:
            url = f"http://{LOCAL}:{await server.heard()}/"
            for _ in range(5):
                response = await client.get(url)
                assert (response.text, path_of(response)) == ("ok", mode)
                server.say("close")
                assert server.hear() == "closed"  # the loop has no turn until then


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_a_server_that_was_killed_shows_while_the_loop_computes(mode: Any) -> None:
    backend = RdmaBackend(mode=mode, config=Config(busy_poll_us=0))
    with process("tests.integrations.roles:forgetful_server", mode=mode) as server:
        stream = await backend.connect_tcp(LOCAL, await server.heard())
        await stream.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await stream.read(100)).endswith(b"ok")
        assert not stream.get_extra_info("is_readable")
        server.kill()
        true_without_a_turn(lambda: stream.get_extra_info("is_readable"))
        await stream.aclose()


async def test_errors_are_those_of_httpcore(plain_pages: str) -> None:
    port = int(plain_pages.rpartition(":")[2])
    with pytest.raises(httpcore.ConnectError, match="speaks plain TCP"):
        await RdmaBackend(mode="rdma").connect_tcp(LOCAL, port)
    with pytest.raises(httpcore.ConnectError):
        await RdmaBackend().connect_tcp(LOCAL, 1)
    stream = await RdmaBackend().connect_tcp(LOCAL, port)
    with pytest.raises(httpcore.ReadTimeout):
        await stream.read(100, timeout=0.01)
    await stream.aclose()
    with pytest.raises(httpcore.WriteError):
        await stream.write(b"hello")


async def test_socket_options_are_for_tcp(pages: str) -> None:
    import socket

    option = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    port = int(pages.rpartition(":")[2])
    stream = await RdmaBackend().connect_tcp(LOCAL, port, socket_options=[option])
    assert stream.get_extra_info("socket").getsockopt(*option[:2])
    await stream.aclose()


async def test_tls_on_the_connection() -> None:
    import aiordma

    client, server = tls_contexts()

    async def answer(stream: Any) -> None:
        from anyio.streams.tls import TLSStream

        async with await TLSStream.wrap(
            stream, server_side=True, ssl_context=server, standard_compatible=False
        ) as inside:
            await inside.send(await inside.receive())

    async with await aiordma.listen(LOCAL, 0) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        stream = await RdmaBackend().connect_tcp(LOCAL, listener.extra(anyio.abc.SocketAttribute.local_port))
        inside = await stream.start_tls(client, LOCAL, timeout=10)
        assert inside.get_extra_info("aiordma.path") == "rdma"
        assert inside.get_extra_info("ssl_object").version()
        await inside.write(b"hello")
        assert await inside.read(100) == b"hello"
        await inside.aclose()
        tasks.cancel_scope.cancel()
