"""`import aiordma` is light, and works where nothing else of it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import aiordma


def run(code: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
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


def test_import_loads_next_to_nothing() -> None:
    loaded = run("import sys; before = set(sys.modules); import aiordma; print(*(set(sys.modules) - before))")
    heavy = {"anyio", "asyncio", "trio", "socket", "pyverbs", "ctypes", "ssl"}
    assert not {name.partition(".")[0] for name in loaded.split()} & heavy


def test_streams_without_pyverbs_and_compiled_modules() -> None:
    """The same program on a Python that has none of them: TCP, with the reason."""
    code = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        compiled = name.startswith("aiordma.") and "._" in name and not name.startswith("aiordma.wake")
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
    """A program that says ``aiordma.connect()`` in its loop, and has imported nothing of it before."""
    code = f"""
import sys, threading, {loop}, aiordma
here, there, mine = threading.get_ident(), set(), set()
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("aiordma", "anyio", "pyverbs")):
            (mine if threading.get_ident() == here else there).add(name)
sys.meta_path.insert(0, Watch())
async def main():
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


def test_an_import_that_is_cancelled_goes_on() -> None:
    code = """
import asyncio, aiordma
async def main():
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
        ["cancelled", module, "True"] for module in ("aiordma.negotiation.late", "aiordma.streams.connector")
    )


@pytest.mark.parametrize("package", ["memory", "rpc", "testing"])
def test_public_packages_need_no_import_of_their_own(package: str) -> None:
    assert run(f"import aiordma; print(aiordma.{package}.__name__, {package!r} in dir(aiordma))") == (
        f"aiordma.{package} True"
    )
