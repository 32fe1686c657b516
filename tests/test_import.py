"""`import aiordma`: what it loads ahead, where it is light, and where nothing else of aiordma works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import aiordma
from tests.world import needs_pyverbs


def run(code: str, *, without: str = "", **variables: str) -> str:
    """:param without: variables that begin with this are not handed on, unless it is empty."""
    kept = {name: value for name, value in os.environ.items() if not (without and name.startswith(without))}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**kept, **variables},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", aiordma.__all__)
def test_every_public_name_loads(name: str) -> None:
    assert getattr(aiordma, name)
    assert name in dir(aiordma)


def test_no_module_hides_a_public_name() -> None:
    """Importing a submodule binds it to its package: one called ``connect`` would replace the function."""
    names = {path.name.partition(".")[0] for path in Path(aiordma.__file__).parent.iterdir()}
    assert names & set(aiordma.__all__) == set()


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'konnect'"):
        _ = aiordma.konnect


UNCOMPILED = """
import sys
sys.path[:0] = sys.argv[1:]
import asyncio, aiordma
async def main():
    async with aiordma.listen("127.0.0.1") as listener:
        async with aiordma.connect("127.0.0.1", listener.port) as stream, await listener.accept() as other:
            await stream.send(b"x")
            print(await other.receive(), stream.path, stream.fallback_reason.code.name)
asyncio.run(main())
"""


UNCOMPILED_CALLS = """
import sys
sys.path[:0] = sys.argv[1:]
import asyncio
from aiordma import rpc
service = rpc.Service("s")
@service.method
async def echo(data: bytes) -> bytes:
    await asyncio.sleep(0 if len(data) < 9 else 1000)
    return data
@service.method
def add(a: int, b: int) -> int:
    return a + b
@service.method
async def count(n: int):
    for i in range(n):
        yield i
async def main():
    async with rpc.serve(service, "127.0.0.1", 0) as server, rpc.connect("127.0.0.1", server.port) as client:
        many = await asyncio.gather(*(client.call("s.echo", b"%d" % n) for n in range(3000)))
        assert many == [b"%d" % n for n in range(3000)]
        items = [item async for item in client.stream("s.count", 5)]
        large = await client.call("s.add", 1, b=2)
        try:
            await client.call("s.echo", bytes(100_000), timeout=0.01)
        except rpc.RpcTimeout:
            print(items, large, client.path, client.in_flight.available == client.in_flight.limit)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def uncompiled(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Where the package lies as source, and those that it needs: for a Python without site, because an
    editable install would be found first."""
    folder = tmp_path_factory.mktemp("uncompiled")
    without = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(Path(__file__).parents[1] / "aiordma", folder / "aiordma", ignore=without)
    return [str(folder), str(Path(anyio.__file__).parents[1])]


def test_compiled_modules_of_another_python_are_a_reason_for_tcp(uncompiled: list[str]) -> None:
    """`aiordma.wake` once could not be imported without its own, and nothing said why."""
    program = [sys.executable, "-S", "-c", UNCOMPILED, *uncompiled]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "b'x' tcp OTHER_PYTHON\n", done.stderr


def test_calls_without_compiled_modules(uncompiled: list[str]) -> None:
    program = [sys.executable, "-S", "-c", UNCOMPILED_CALLS, *uncompiled]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[0, 1, 2, 3, 4] 3 tcp False\n", done.stderr


LOADED = "import sys; before = set(sys.modules); import aiordma; print(*(set(sys.modules) - before))"
HEAVY = {"anyio", "asyncio", "trio", "socket", "pyverbs", "ctypes", "ssl"}


def packages(loaded: str) -> set[str]:
    return {name.partition(".")[0] for name in loaded.split()}


@pytest.mark.parametrize(
    "code",
    [
        f"import os; os.environ['AIORDMA_MODE'] = 'tcp'; {LOADED}",
        f"import os; os.environ['AIORDMA_RUN'] = 'on'; {LOADED}",
        f"import sys; sys.argv[0] = '/usr/bin/aiordma'; {LOADED}",
        f"import sys; sys.argv[0] = 'xr-stat'; {LOADED}",
    ],
    ids=["tcp", "aiordma run", "aiordma", "xr-stat"],
)
def test_where_no_connection_is_expected_the_import_loads_next_to_nothing(code: str) -> None:
    assert not packages(run(code)) & HEAVY


def test_the_module_as_a_command_loads_next_to_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "aiordma", "--version"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "aiordma.cli.main" in done.stderr
    assert "aiordma.links" not in done.stderr


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_first_connection_finds_its_modules_imported(loop: str) -> None:
    """What a program has that imports aiordma. The library of the device is loaded by the connection."""
    code = f"""
import sys, {loop}, aiordma
assert "pyverbs" not in sys.modules
before = set(sys.modules)
async def main():
    async with aiordma.listen("127.0.0.1") as listener:
        async with aiordma.connect("127.0.0.1", listener.port) as stream:
            other = await listener.accept()
            await stream.send(b"hello")
            assert await other.receive() == b"hello"
            await other.aclose()
            print(stream.path)
{loop}.run({"main()" if loop == "asyncio" else "main"})
print(*(name for name in set(sys.modules) - before if name.startswith(("aiordma", "anyio"))))
"""
    path, _, imported = run(code, AIORDMA_VERBS="own").partition("\n")
    assert (path, imported) == ("rdma", "")


@pytest.mark.skipif(os.path.exists("/sys/class/infiniband"), reason="the kernel has RDMA devices to ask for")
def test_where_the_kernel_has_no_rdma_a_first_connection_does_not_load_libibverbs() -> None:
    """It would have nothing to tell, and take longer to load than the software device."""
    code = """
import asyncio, aiordma
from pathlib import Path
async def main():
    async with aiordma.listen("127.0.0.1") as listener:
        async with aiordma.connect("127.0.0.1", listener.port) as stream:
            maps = Path("/proc/self/maps").read_text()
            print(stream.path, [name for name in ("libibverbs", "libsoftdev") if name in maps])
asyncio.run(main())
"""
    assert run(code, AIORDMA_VERBS="own", AIORDMA_DEVICE="soft") == "rdma ['libsoftdev']"


def test_settings_are_worked_out_ahead() -> None:
    """A first connection compares the environment with what is known of it, and makes no settings."""
    code = """
import sys, aiordma
from aiordma import Config, config
def made(frame, event, _):
    if event == "call" and frame.f_code in (Config.__post_init__.__code__, config.settings.__code__):
        print(frame.f_code.co_name)
sys.setprofile(made)
assert Config.from_env() is Config.from_env()
"""
    # With AIORDMA_TEST_SLOWER, the tests have settings themselves.
    assert run(code, without="AIORDMA_") == ""


@needs_pyverbs
def test_of_pyverbs_only_the_constants_are_imported_ahead() -> None:
    """They need no library. What does is imported after the software device's, which it sees then."""
    code = """
import sys, aiordma
from pathlib import Path
print(*(name for name in ("pyverbs.enums", "pyverbs.base", "pyverbs.device") if name in sys.modules))
print([name for name in ("libibverbs", "libsoftdev") if name in Path("/proc/self/maps").read_text()])
from pyverbs.device import get_device_list
print(*(device.name.decode() for device in get_device_list()))
"""
    assert run(code, AIORDMA_DEVICE="soft").splitlines() == ["pyverbs.enums", "[]", "soft0"]
    assert "pyverbs" not in run("import sys, aiordma; print(*sys.modules)", AIORDMA_VERBS="own")


def test_an_import_in_a_running_loop_loads_next_to_nothing() -> None:
    code = f"""
import asyncio
async def main():
    {LOADED}
asyncio.run(main())
"""
    assert not packages(run(code)) & (HEAVY - {"asyncio"})


def test_streams_without_pyverbs_and_compiled_modules() -> None:
    """The same program on a Python that has none of them: TCP, with the reason."""
    code = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        # The protocol cores, which are compiled here, import the last one.
        python = ("aiordma.wake", "aiordma._cython_shared")
        compiled = name.startswith("aiordma.") and "._" in name and not name.startswith(python)
        if compiled or name.startswith(("pyverbs", "trio", "uvloop")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import anyio, aiordma
async def main():
    async with await aiordma.listen("127.0.0.1") as listener, anyio.create_task_group() as tasks:
        async def serve():
            async with await listener.accept() as stream:
                await stream.send(await stream.receive())
        tasks.start_soon(serve)
        async with await aiordma.connect("127.0.0.1", listener.port) as stream:
            await stream.send(b"hello")
            print(await stream.receive(), stream.path, stream.fallback_reason.code.name)
anyio.run(main)
"""
    assert run(code) == "b'hello' tcp OTHER_PYTHON"


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_running_loop_imports_nothing_heavy_itself(loop: str) -> None:
    """A program that imports aiordma in its loop, and has imported nothing of it before."""
    code = f"""
import sys, threading, {loop}
here, there, mine = threading.get_ident(), set(), set()
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("aiordma", "anyio", "pyverbs")):
            (mine if threading.get_ident() == here else there).add(name)
sys.meta_path.insert(0, Watch())
async def main():
    global aiordma
    import aiordma
    async with aiordma.listen("127.0.0.1") as listener:
        async with aiordma.connect("127.0.0.1", listener.port) as stream:
            other = await listener.accept()
            await stream.send(b"hello")
            assert await other.receive() == b"hello"
            await other.aclose()
{loop}.run({"main()" if loop == "asyncio" else "main"})
heavy = {{"aiordma.streams.connector", "aiordma.links.engine", "anyio"}}
print(sorted(heavy & mine), sorted(heavy - there - set(sys.modules)), aiordma.connect.__module__)
"""
    assert run(code) == "[] [] aiordma.streams.connector"


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_stand_in_that_is_kept_starts_one_thread(loop: str) -> None:
    """As `from aiordma import connect` in a loop keeps it: only its first call has anything to import."""
    code = f"""
import {loop}
async def main():
    from aiordma import connect
    from aiordma.wake import beside
    begun, start = [], beside.start_thread
    def counted(work):
        begun.append(work)
        start(work)
    beside.start_thread = counted
    for _ in range(3):
        try:
            await connect("127.0.0.1", 1, mode="tcp")
        except ConnectionRefusedError:
            print(len(begun))
{loop}.run({"main()" if loop == "asyncio" else "main"})
"""
    assert run(code).split() == ["1", "1", "1"]


def test_an_import_that_is_cancelled_goes_on() -> None:
    code = """
import asyncio
async def main():
    import aiordma
    task = asyncio.ensure_future(aiordma.connect("127.0.0.1", 1))
    await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        print("cancelled")
    print(aiordma.connect.__module__)  # loaded, or still a stand-in: this waits for no import
    async with aiordma.listen("127.0.0.1") as listener:
        print(listener.port > 0)
asyncio.run(main())
"""
    assert run(code).split() in (
        ["cancelled", module, "True"] for module in ("aiordma.loading", "aiordma.streams.connector")
    )


@pytest.mark.parametrize("package", ["memory", "rpc", "testing"])
def test_public_packages_need_no_import_of_their_own(package: str) -> None:
    assert run(f"import aiordma; print(aiordma.{package}.__name__, {package!r} in dir(aiordma))") == (
        f"aiordma.{package} True"
    )
