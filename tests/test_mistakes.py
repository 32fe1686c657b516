"""Typical mistakes of newcomers: each works, or is refused with words that say what to write instead.

| mistake | what happens | shown by |
| --- | --- | --- |
| `mode="RDMA"`, `"ib"`, `""` | ValueError with the three modes | `test_a_mode_that_there_is_not` |
| a stream in another thread's loop | RuntimeError, also while its own is busy | `streams/test_texts.py` |
| `async with aiordma.connect()` | works, as with `await` and as `rpc.connect()` | `streams/test_opening.py` |
| forgotten `await`: `connect().send()`, `.path` | names what to do | `test_a_forgotten_await` |
| `aiordma.rpc` after `import aiordma` | works | `test_packages_are_attributes` |
| `await rpc.connect()`, `rpc.connect().call` | use `async with` | `test_a_block_that_is_awaited` |
| `async with memory.connect()`, `alloc()` | works, as with `await` | `test_memory_opens_without_await` |
| `config={...}`, `ssl="yes"`, `listen(7000)` | what it must be | `test_parameters_of_another_type` |
| a name that there is not: `aiordma.conect` | Python suggests the nearest | `test_a_misspelt_name` |
| an unknown `AIORDMA_*` variable | one warning, with the nearest | `test_config.py` |
| a peer of another kind | one error, which names both kinds | `test_a_peer_of_another_kind` |
| `rpc.connect` to a closed port | UNAVAILABLE with host and port | `test_a_closed_port` |
| a host that is not found, `host:port`, a URL | named, with what is wrong | `test_a_host_that_is_none` |
| `--help` of an example | usage, no traceback | `test_every_example_explains_itself` |
| a closed loop; the end of the peer | each has a text | `streams/test_texts.py` |
| RDMA that loses in `make demo` | the demo says why | `examples/test_demo.py` |
| `statistics()`, `Client.call` for type checkers | typed | `test_results_have_types` |
| the tutorial's tools | no `nc`, which may be missing | `test_the_documentation_uses_no_such_tool` |
| blocking calls in the event loop | an error in every test | `conftest.py`, `make test-wheels` |
| `timeout=`, `device=`, misspelt parameters | what to write instead | `test_a_parameter_that_there_is_not` |
| methods of sockets and of asyncio's streams | the stream's own method | `test_methods_of_other_libraries` |
| a handler that is no coroutine function | TypeError that says so | `test_a_handler_that_is_none` |
| `rpc.Server(obj)` | TypeError that says what a service is | `test_a_server_without_a_service` |
| few descriptors, no /proc, another user | the reason, the remedy | `negotiation/test_installation.py` |
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

import aiordma
from aiordma import memory, rpc
from aiordma.compat.stream_reader import RingStreamReader
from aiordma.rpc.client import Client
from tests.world import DEVICE

LOCAL = "127.0.0.1"
ROOT = Path(__file__).parents[1]
CONFIG = aiordma.Config(device=DEVICE)


async def echo(stream: aiordma.RdmaStream) -> None:
    async for data in stream:
        await stream.send(data)


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["RDMA", "ib", ""])
async def test_a_mode_that_there_is_not(mode: Any) -> None:
    for function in (
        lambda: aiordma.connect(LOCAL, 1, mode=mode),
        lambda: aiordma.listen(LOCAL, mode=mode),
        lambda: aiordma.connect_datagram(LOCAL, 1, mode=mode),
        lambda: aiordma.open_datagram_endpoint((LOCAL, 0), mode=mode),
        lambda: rpc.connect(LOCAL, 1, mode=mode).__aenter__(),
        lambda: rpc.connect_pool([(LOCAL, 1)], mode=mode).__aenter__(),
    ):
        with pytest.raises(ValueError, match=rf"mode={mode!r}.*auto.*rdma.*tcp"):
            await function()


@pytest.mark.anyio
async def test_a_forgotten_await() -> None:
    opening: Any = aiordma.connect(LOCAL, 1)
    for name in ("path", "receive", "aclose"):
        with pytest.raises(AttributeError, match=r"not open yet.*await it, or open it with `async with`"):
            getattr(opening, name)
    with pytest.raises(TypeError, match=r"not open yet.*await it"):
        opening.send(b"x")
    with pytest.raises(TypeError, match=r"`with` does not open it: .*`async with`"), opening:
        pass
    assert not hasattr(opening, "port")
    opening.close()


@pytest.mark.anyio
async def test_a_block_that_is_awaited() -> None:
    functions: dict[str, Any] = {
        "rpc.connect": lambda: rpc.connect(LOCAL, 1),
        "rpc.serve": lambda: rpc.serve([]),
        "memory.serve": lambda: memory.serve(LOCAL),
    }
    for name, function in functions.items():
        made: Any = function()
        with pytest.raises(
            TypeError, match=rf"cannot be awaited: <{name}\(\): open it with `async with {name}"
        ):
            await made
        with pytest.raises(AttributeError, match=r"not open yet, so there is no 'call': .*`async with"):
            _ = made.call
        with pytest.raises(TypeError, match=r"`with` does not open it: .*`async with"), made:
            pass
        assert not hasattr(made, "port")


@pytest.mark.anyio
async def test_memory_opens_without_await() -> None:
    async with (
        memory.serve(LOCAL, config=CONFIG) as server,
        memory.alloc(8, config=CONFIG) as region,
        memory.connect(LOCAL, server.port, config=CONFIG) as peer,
    ):
        async with peer.open(region.descriptor()) as remote:
            back = bytearray(8)
            await remote.read(back)
            assert back == bytes(8)


@pytest.mark.anyio
async def test_parameters_of_another_type() -> None:
    wrong: Any = {"mode": "rdma"}
    for function in (
        lambda: aiordma.connect(LOCAL, 1, config=wrong),
        lambda: aiordma.listen(LOCAL, config=wrong),
        lambda: aiordma.open_datagram_endpoint((LOCAL, 0), config=wrong),
        lambda: aiordma.open_connection(LOCAL, 1, config=wrong),
        lambda: rpc.connect(LOCAL, 1, config=wrong).__aenter__(),
        lambda: memory.alloc(8, config=wrong),
    ):
        with pytest.raises(TypeError, match=r"config=\{'mode': 'rdma'\}: must be an aiordma.Config, such as"):
            await function()
    for wrong in (7000, (LOCAL, 7000)):
        for function in (lambda: aiordma.connect(wrong, 1), lambda: aiordma.listen(wrong)):  # noqa: B023
            with pytest.raises(TypeError, match=r"host=.*: must be text, .* host and port are two arguments"):
                await function()
    wrong = "localhost"
    pairs: dict[str, Any] = {
        "servers='localhost': each": lambda: rpc.connect_pool(wrong),
        "local": lambda: aiordma.open_datagram_endpoint(wrong),
        "remote": lambda: aiordma.open_datagram_endpoint(None, wrong),
    }
    for name, function in pairs.items():
        with pytest.raises(TypeError, match=rf"{name}='l.*': must be a host and a port, such as"):
            await function()
    with pytest.raises(TypeError, match=r"port=1.5: must be a number from 0 to 65535"):
        await aiordma.connect(LOCAL, 1.5)  # type: ignore[arg-type]
    wrong = "yes"
    with pytest.raises(TypeError, match=r"ssl='yes': must be an ssl.SSLContext, or True"):
        await aiordma.connect(LOCAL, 1, ssl=wrong, config=CONFIG)
    wrong = True
    with pytest.raises(TypeError, match=r"ssl=True: a server needs an ssl.SSLContext, with its certificate"):
        await aiordma.listen(LOCAL, ssl=wrong, config=CONFIG)


def test_packages_are_attributes() -> None:
    program = "import aiordma; print(aiordma.rpc.__name__, aiordma.memory.__name__, aiordma.testing.__name__)"
    out = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60)
    assert out.split() == ["aiordma.rpc", "aiordma.memory", "aiordma.testing"]


def test_a_misspelt_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import aiordma; aiordma.conect"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    # Python 3.15 asks: "Did you mean '.connect' instead of '.conect'?"
    assert re.search(r"has no attribute 'conect'\. Did you mean:? '\.?connect'", done.stderr), done.stderr


@pytest.mark.anyio
async def test_a_peer_of_another_kind() -> None:
    async with aiordma.listen(LOCAL, config=CONFIG) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        with pytest.raises(aiordma.NegotiationError) as caught:
            async with rpc.connect(LOCAL, listener.port, config=CONFIG):
                pass
        text = str(caught.value)
        assert "the client wants calls (aiordma.rpc), the server serves streams (aiordma.connect" in text
        assert text.count("expect different kinds") == 1
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_closed_port() -> None:
    with pytest.raises(rpc.RpcError, match=f"cannot connect to {LOCAL}:1: Connection refused") as caught:
        async with rpc.connect(LOCAL, 1, config=CONFIG):
            pass
    assert caught.value.code is rpc.Code.UNAVAILABLE


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("host", "hint"),
    [
        ("no-such-host.invalid", "'no-such-host.invalid' (port 7)"),
        ("localhost:7000", "host and port are two arguments: 'localhost', 7000"),
        ("rdma://localhost", "this is a URL: give its host and its port"),
    ],
)
async def test_a_host_that_is_none(host: str, hint: str) -> None:
    with pytest.raises(OSError, match=re.escape(hint)):
        await aiordma.connect(host, 7, config=CONFIG)


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_every_example_explains_itself(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), "--help"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {name}")


def test_results_have_types() -> None:
    assert aiordma.statistics.__annotations__["return"] == "EngineStatistics | None"
    assert "returns" in Client.call.__annotations__


def test_the_documentation_uses_no_such_tool() -> None:
    """nc, telnet and their like are not on every machine; Python is."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            assert not re.search(r"^\$.*\b(nc|ncat|netcat|telnet|socat)\b", block, re.M), page


@pytest.mark.anyio
async def test_a_parameter_that_there_is_not() -> None:
    for keywords, hint in (
        ({"timeout": 3}, r"'timeout'; put the call into `with anyio\.fail_after"),
        (
            {"ring_bytes": 65536},
            r"'ring_bytes'; it is a setting: pass config=aiordma\.Config\(ring_bytes=65536",
        ),
        ({"local_hots": LOCAL}, r"'local_hots'; did you mean 'local_host'"),
        ({"xyzzy": 1}, r"'xyzzy'; there are: config, mode"),
    ):
        unknown: dict[str, Any] = dict(keywords)
        with pytest.raises(TypeError, match=f"there is no parameter {hint}"):
            await aiordma.connect(LOCAL, 1, **unknown)
    with pytest.raises(TypeError, match="there is no parameter 'reuse'; did you mean 'reuse_port'"):
        await aiordma.listen(LOCAL, 0, **{"reuse": True})  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_methods_of_other_libraries() -> None:
    async with aiordma.listen(LOCAL, mode="tcp") as listener:
        async with aiordma.connect(LOCAL, listener.port, mode="tcp") as stream:
            for name, instead in (
                ("read", r"receive\(\); aiordma\.open_connection\(\) gives asyncio's"),
                ("recv", r"receive\(\)"),
                ("sendall", r"`await stream\.send"),
                ("drain", r"`await stream\.send\(data\)`, which waits"),
                ("close", r"`await stream\.aclose"),
            ):
                with pytest.raises(AttributeError, match=f"no attribute '{name}': use {instead}"):
                    getattr(stream, name)
            with pytest.raises(AttributeError, match=r"has no attribute 'xyzzy'$"):
                _ = stream.xyzzy  # type: ignore[attr-defined]
            assert not hasattr(stream, "read")
    with pytest.raises(AttributeError, match="type object 'RdmaStream' has no attribute 'recv': use receive"):
        _ = aiordma.RdmaStream.recv  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [aiordma.RdmaStream, aiordma.DatagramConnection, RingStreamReader])
def test_no_class_on_the_path_of_a_message_answers_for_attributes_itself(kind: type) -> None:
    """Python remembers where an attribute of a class is, unless the class has one of these methods."""
    assert not hasattr(kind, "__getattr__")
    assert kind.__getattribute__ is object.__getattribute__  # type: ignore[comparison-overlap]


@pytest.mark.anyio
async def test_a_handler_that_is_none() -> None:
    handlers: list[Any] = [None, lambda _: None]
    errors: list[Exception] = []
    async with aiordma.listen(LOCAL, mode="tcp") as listener:
        with pytest.raises(TypeError, match="must be a coroutine function of the connection"):
            await listener.serve(handlers[0])
        async with anyio.create_task_group() as tasks:
            on_error = lambda _, error: errors.append(error)  # noqa: E731
            tasks.start_soon(functools.partial(listener.serve, handlers[1], on_error=on_error))
            async with aiordma.connect(LOCAL, listener.port, mode="tcp") as stream:
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()
            tasks.cancel_scope.cancel()
    (error,) = errors
    assert "write the handler with `async def`" in str(error)


def test_a_server_without_a_service() -> None:
    no_services: list[Any] = [5, [object()]]
    for services in no_services:
        with pytest.raises(TypeError, match=r"rpc\.Service\('name', of=obj\) makes one"):
            rpc.Server(services)
