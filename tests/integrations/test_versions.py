"""Other versions of the libraries, and settings of theirs that an adapter cannot serve: told, not ignored."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from aiordma.integrations import _versions

ROOT = Path(__file__).parents[2]
LIBRARIES = pytest.mark.parametrize("library", _versions.LEAST)
#: The adapter for uvicorn imports nothing of it.
IMPORTED = pytest.mark.parametrize("library", sorted(_versions.LEAST.keys() - {"uvicorn"}))


def adapter_of(library: str) -> str:
    return library.removesuffix("-py")


def import_anew(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    name = f"aiordma.integrations.{adapter_of(library)}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.import_module(name)


def pretend(monkeypatch: pytest.MonkeyPatch, library: str, version: str | None) -> None:
    """`library` is installed in this version; None: it is not."""
    real = importlib.metadata.version

    def told(name: str) -> str:
        if name != library:
            return real(name)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(_versions, "version", told)


@LIBRARIES
def test_an_old_version_is_told_the_new_ones(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    module = pytest.importorskip(adapter_of(library))
    monkeypatch.setattr(module, "__version__", "0.0.9", raising=False)
    pretend(monkeypatch, library, "0.0.9")
    known = f"works with {library} {_versions.LEAST[library]} and newer"
    with pytest.raises(ImportError, match=known) as told:
        import_anew(monkeypatch, library)
    assert f"this is {library} 0.0.9: pip install 'aiordma[{adapter_of(library)}]'" in str(told.value)


@IMPORTED
def test_a_version_without_what_is_needed(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """As websockets 13 has no module for proxies, and 10 none for asyncio: the import itself fails."""
    module = adapter_of(library)
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, ModuleType(module))  # no package, and empty
    pretend(monkeypatch, library, "0.0.9")
    with pytest.raises(ImportError, match=f"works with {library} .* this is {library} 0.0.9"):
        import_anew(monkeypatch, library)


@IMPORTED
def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    module = adapter_of(library)
    for name in [name for name in sys.modules if name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    pretend(monkeypatch, library, None)
    with pytest.raises(ModuleNotFoundError, match=f"works with {library} .* it is not installed: pip"):
        import_anew(monkeypatch, library)


def test_the_extras_ask_for_the_same_versions() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {}
    for extra in map(adapter_of, _versions.LEAST):
        found = re.fullmatch(r"([\w-]+)>=([\d.]+)", extras[extra][0])
        assert found is not None
        asked[found[1]] = found[2]
    assert asked == _versions.LEAST


def test_versions_are_compared_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "uvicorn", raising=False)
    pretend(monkeypatch, "uvicorn", "0.9.9")
    with pytest.raises(ImportError):
        _versions.check_version("uvicorn")
    for version in ("0.36", "0.36.0rc1", "0.100", "1"):
        pretend(monkeypatch, "uvicorn", version)
        _versions.check_version("uvicorn")


def test_hypercorn_has_one_process() -> None:
    hypercorn: Any = pytest.importorskip("hypercorn", reason="the extra aiordma[hypercorn] is not installed")
    from aiordma.integrations.hypercorn import run

    for setting, value in (("workers", 4), ("use_reloader", True)):
        config = hypercorn.Config()
        setattr(config, setting, value)
        with pytest.raises(ValueError, match=f"^{setting}.*aiordma run hypercorn"):
            run(None, config)


@pytest.mark.anyio
async def test_httpx_with_a_proxy_of_its_own() -> None:
    httpx: Any = pytest.importorskip("httpx", reason="the extra aiordma[httpx] is not installed")
    from aiordma.integrations.httpx import RdmaTransport

    client = httpx.AsyncClient(transport=RdmaTransport(), proxy="http://127.0.0.1:1")
    with pytest.raises(ValueError, match=r"give the proxy to RdmaTransport\(proxy="):
        async with client:
            pass
    async with httpx.AsyncClient(transport=RdmaTransport(proxy="http://127.0.0.1:1")) as client:
        with pytest.raises((httpx.ProxyError, httpx.ConnectError)):
            await client.get("http://127.0.0.1:2/")
    others = {"all://other": httpx.AsyncHTTPTransport()}
    async with httpx.AsyncClient(transport=RdmaTransport(), mounts=others):
        pass


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "examples/integrations").glob("*.py")))
def test_examples_need_no_arguments(name: str) -> None:
    """Their last lines, as they run without any: what they call gets something."""
    path = ROOT / "examples/integrations" / f"{name}.py"
    program = (
        "import sys, runpy, asyncio\n"
        f"sys.argv = [{str(path)!r}]\n"
        "class Called(Exception): pass\n"
        "def called(*given, **options): raise Called\n"
        "for module, names in dict(asyncio='run', trio='run', uvicorn='run').items():\n"
        "    try: setattr(__import__(module), names, called)\n"
        "    except ImportError: pass\n"
        "asyncio.Runner.run = called\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except Called: print('called')\n"
        "except ModuleNotFoundError: print('called')\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout == "called\n", done.stderr
