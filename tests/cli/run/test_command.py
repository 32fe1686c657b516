"""`aiordma run`: programs and their children, unchanged, over RDMA."""

from __future__ import annotations

import os
import subprocess
import sys
import zipapp
from pathlib import Path
from typing import Any

import pytest

from tests.world import DEVICE

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

COMMAND = [sys.executable, "-m", "aiordma", "run"]

#: Connects to itself, and has a child connect to it; prints the two paths.
PROGRAM = """
import asyncio, sys

async def echo(reader, writer):
    writer.write(await reader.read(5))
    writer.close()

async def ask(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello")
    assert await reader.read(5) == b"hello"
    print(writer.get_extra_info("aiordma.path"), flush=True)
    writer.close()

async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await ask(port)
    child = await asyncio.create_subprocess_exec(sys.executable, __file__, str(port))
    await child.wait()
    server.close()

asyncio.run(ask(int(sys.argv[1])) if len(sys.argv) > 1 else main())
"""

#: The same with a child of multiprocessing.
MULTIPROCESSING = """
import asyncio, multiprocessing, sys

def child(port):
    asyncio.run(ask(port))

async def echo(reader, writer):
    writer.write(await reader.read(5))
    writer.close()

async def ask(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello")
    await reader.read(5)
    print(writer.get_extra_info("aiordma.path"), flush=True)
    writer.close()

async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    started = multiprocessing.get_context(sys.argv[1]).Process(target=child, args=(port,))
    started.start()
    await asyncio.to_thread(started.join)
    server.close()

if __name__ == "__main__":
    asyncio.run(main())
"""


def run(
    tmp_path: Path, *arguments: str, stdin: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    settings = {"AIORDMA_DEVICE": DEVICE, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **settings, **environment},
        input=stdin,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_a_script_and_its_children(tmp_path: Path, script: Path) -> None:
    done = run(tmp_path, "--report", str(script))
    assert (done.returncode, done.stdout) == (0, "rdma\nrdma\n"), done.stderr
    assert done.stderr.count("aiordma run: connections of process") == 2
    assert "rdma  2  client 127.0.0.1" in done.stderr


def test_without_children(tmp_path: Path, script: Path) -> None:
    done = run(tmp_path, "--no-children", str(script))
    assert (done.returncode, done.stdout) == (0, "rdma\nNone\n"), done.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_of_multiprocessing(tmp_path: Path, method: str) -> None:
    (tmp_path / "program.py").write_text(MULTIPROCESSING)
    done = run(tmp_path, "-m", "program", method)
    assert (done.returncode, done.stdout) == (0, "rdma\n"), done.stderr


def test_rules_from_everywhere(tmp_path: Path, script: Path) -> None:
    (tmp_path / "rules").write_text("# none of ours\ndeny out:192.0.2.0/24\n")
    code = "import os; print(os.environ['AIORDMA_RUN_RULES'])"
    done = run(
        tmp_path, "--rules", "rules", "--allow", "*:5000", "--deny", "in:*:6000", "python", "-c", code,
        AIORDMA_RUN_RULES="deny *:1",
    )  # fmt: skip
    assert done.stdout == "deny *:1; deny out:192.0.2.0/24; allow *:5000; deny in:*:6000\n", done.stderr
    assert run(tmp_path, "--deny", "out:127.0.0.0/8", str(script)).stdout == "None\nNone\n"
    wrong = run(tmp_path, "--deny", "10.0.0.0/99", str(script))
    assert wrong.returncode == 2
    assert "'10.0.0.0/99' is no network" in wrong.stderr


def test_options_and_exit_status_are_the_programs(tmp_path: Path) -> None:
    done = run(tmp_path, "sh", "-c", "exit 3")
    assert done.returncode == 3
    done = run(tmp_path, "no-such-program", "--report")
    assert done.returncode == 127
    assert "no-such-program: no such program" in done.stderr


@pytest.mark.parametrize(
    "first_line", ["#!/bin/bash\n", "", "#!/usr/bin/env -S bash\n"], ids=["program", "no first line", "env"]
)
def test_a_program_ends_when_nobody_reads_what_it_writes(tmp_path: Path, first_line: str) -> None:
    """Python ignores SIGPIPE, and the signal at the end of a full quota; what it starts shall not."""
    (tmp_path / "tool").write_text(f"{first_line}yes | head -1\ngrep ^SigIgn: /proc/self/status\n")
    (tmp_path / "tool").chmod(0o755)
    done = run(tmp_path, "./tool")
    plain = subprocess.run(
        ["/bin/sh", "./tool"], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, "")


def test_the_site_s_own_start_up_module_runs(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins; builtins.of_the_site = 42\n")
    code = "import sitecustomize, sys; print(of_the_site, 'aiordma' in sitecustomize.__file__)"
    done = run(tmp_path, "python", "-c", code, PYTHONPATH=str(site))
    assert (done.returncode, done.stdout) == (0, "42 False\n"), done.stderr


def test_a_program_without_asyncio_loads_next_to_nothing(tmp_path: Path) -> None:
    code = "import sys; print(sorted({'asyncio', 'anyio', 'ssl', 'pyverbs', 'ctypes'} & set(sys.modules)))"
    done = run(tmp_path, "python", "-c", code)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_another_python_without_aiordma(tmp_path: Path) -> None:
    """It finds the start-up module in PYTHONPATH, which leaves it alone."""
    done = run(tmp_path, "python", "-S", "-c", "import sitecustomize; print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


# ---- a program of this Python runs in the process of the command


def test_it_is_started_as_python_starts_it(tmp_path: Path) -> None:
    """A script, a module and a command: what they see of themselves, with and without `aiordma run`."""
    code = """
import json, os, sys
main = sys.modules["__main__"]
print(json.dumps([sys.argv, __name__, __file__, sys.path[0], __spec__ and __spec__.name,
                  main.__dict__ is globals(),
                  sorted(name for name in globals() if not name.startswith("__"))]))
"""
    (tmp_path / "program.py").write_text(code)
    (tmp_path / "tool").write_text(f"#!{sys.executable}\n{code}")
    (tmp_path / "tool").chmod(0o755)
    for words, command in (
        (["program.py", "-x", "--report"], [sys.executable, "program.py", "-x", "--report"]),
        (["-m", "program", "y"], [sys.executable, "-m", "program", "y"]),
        (["./tool", "z"], ["./tool", "z"]),
    ):
        plain = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
        done = run(tmp_path, *words)
        assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr


#: Prints what a program sees of itself, and the path of a connection in it.
OF_ITSELF = """
import asyncio, json, sys

async def echo(reader, writer):
    writer.write(await reader.read(5))
    writer.close()

async def main():
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        writer.close()
        return writer.get_extra_info("aiordma.path")

print(asyncio.run(main()), file=sys.stderr)
print(json.dumps([sys.argv, __name__, globals().get("__file__"), sys.path[0], __spec__ and __spec__.name]))
"""


def _directory(place: Path) -> None:
    (place / "app").mkdir()
    (place / "app" / "__main__.py").write_text(f"import beside\n{OF_ITSELF}")
    (place / "app" / "beside.py").write_text("")


def _archive(place: Path, name: str, interpreter: str | None, mode: int) -> None:
    source = place / "source"
    source.mkdir()
    (source / "__main__.py").write_text(f"import beside\n{OF_ITSELF}")
    (source / "beside.py").write_text("")
    zipapp.create_archive(source, place / name, interpreter)
    (place / name).chmod(mode)


def _script(place: Path, mode: int) -> None:
    (place / "tool").write_text(OF_ITSELF)
    (place / "tool").chmod(mode)


@pytest.mark.parametrize(
    ("make", "words", "own_start"),
    [
        (lambda place: None, ["-c", OF_ITSELF, "-x", "--report"], False),
        (lambda place: None, ["-", "y"], False),
        (_directory, ["app", "z"], False),
        (_directory, ["app/", "-m"], False),
        (_directory, ["./app"], False),
        (lambda place: _archive(place, "app.pyz", None, 0o644), ["app.pyz", "z"], False),
        (lambda place: _archive(place, "app.pyz", None, 0o755), ["./app.pyz", "z"], False),
        (lambda place: _archive(place, "app", sys.executable, 0o755), ["./app", "z"], True),
        (lambda place: _archive(place, "app", f"/usr/bin/env {sys.executable}", 0o755), ["./app"], True),
        (lambda place: _script(place, 0o644), ["tool", "z"], False),
    ],
    ids=["-c", "-", "DIR", "DIR/", "./DIR", "pyz", "./pyz", "zipped command", "of env", "script"],
)
def test_whatever_python_runs(tmp_path: Path, make: Any, words: list[str], own_start: bool) -> None:
    """As it is run without `aiordma run`; and its connections are negotiated."""
    make(tmp_path)
    plain = subprocess.run(
        words if own_start else [sys.executable, *words],
        capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path, input=OF_ITSELF,
    )  # fmt: skip
    done = run(tmp_path, *words, stdin=OF_ITSELF)
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    assert done.stderr == "rdma\n"


def test_a_command_goes_before_a_directory_of_its_name(tmp_path: Path) -> None:
    """As in the source of the program itself."""
    (tmp_path / "sh").mkdir()
    (tmp_path / "sh" / "__main__.py").write_text("raise SystemExit(5)")
    assert run(tmp_path, "sh", "-c", "exit 3").returncode == 3
    assert run(tmp_path, "./sh").returncode == 5
    (tmp_path / "empty").mkdir()
    assert run(tmp_path, "empty").returncode == 127


def test_a_script_without_a_first_line_is_the_shell_s(tmp_path: Path) -> None:
    _script(tmp_path, 0o755)
    (tmp_path / "tool").write_text("exit 6\n")
    assert run(tmp_path, "./tool").returncode == 6


@pytest.mark.parametrize(
    ("code", "status", "ends_with"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("import sys; sys.exit('told')", 1, "told\n"),
        ("def fail():\n    raise OSError('mine')\nfail()", 1, "OSError: mine\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -2, "KeyboardInterrupt\n"),
        ("x = ", 1, "SyntaxError: invalid syntax\n"),
    ],
)
def test_its_end_is_the_command_s(tmp_path: Path, code: str, status: int, ends_with: str) -> None:
    (tmp_path / "program.py").write_text(code)
    done = run(tmp_path, "program.py")
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.endswith(ends_with)
    assert "launch" not in done.stderr
    if "fail" in code:
        assert done.stderr.count("File ") == 2
    by_module = run(tmp_path, "-m", "program")
    assert by_module.returncode == status
    assert "launch" not in by_module.stderr


#: What click would take for its own where the program runs inside it, and what Python says and ends with.
_CLICKS_OWN = {
    "import signal; signal.raise_signal(signal.SIGINT)": (-2, "KeyboardInterrupt"),
    "raise EOFError('mine')": (1, "EOFError: mine"),
    "raise BrokenPipeError(32, 'mine')": (1, "BrokenPipeError: [Errno 32] mine"),
    "raise OSError(28, 'mine', '/data/x')": (1, "OSError: [Errno 28] mine: '/data/x'"),
    "raise OSError(5, 'mine')": (1, "OSError: [Errno 5] mine"),
    "import click; raise click.ClickException('mine')": (1, "click.exceptions.ClickException: mine"),
}


@pytest.mark.parametrize("code", _CLICKS_OWN)
@pytest.mark.parametrize(
    "words",
    [["--", "program.py"], ["--allow", "*", "--", "program.py"], ["-mc", "program"]],
    ids=["--", "an option, --", "by click"],
)
def test_its_errors_are_its_own_however_it_was_started(tmp_path: Path, words: list[str], code: str) -> None:
    status, line = _CLICKS_OWN[code]
    (tmp_path / "program.py").write_text(code)
    done = run(tmp_path, *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith(f"{line}\n")
    assert not {"click/core.py", "launch", "During handling"} & set(done.stderr.split())


@pytest.mark.parametrize("words", [["--"], ["-c", "--"]], ids=" ".join)
def test_nothing_to_run(tmp_path: Path, words: list[str]) -> None:
    done = run(tmp_path, *words)
    assert (done.returncode, "Missing argument" in done.stderr) == (2, True)


def test_options_in_every_spelling(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("deny out:192.0.2.0/24\n")
    (tmp_path / "program.py").write_text("import os; print(os.environ.get('AIORDMA_RUN_RULES'))")
    both = "deny out:192.0.2.0/24; allow *:5000\n"
    assert run(tmp_path, "--allow=*:5000", "--rules=rules", "program.py").stdout == both
    assert run(tmp_path, "--rules", "rules", "--allow", "*:5000", "program.py").stdout == both
    assert run(tmp_path, "--no-children", "--allow", "*:5000", "program.py").stdout == "None\n"
    for wrong, why in {
        ("--rules", "missing", "program.py"): "'missing' does not exist",
        ("--nonsense", "program.py"): "",
        ("--allow",): "requires an argument",
        (): "Missing argument",
    }.items():
        done = run(tmp_path, *wrong)
        assert done.returncode in (2, 127)
        assert why in done.stderr
    assert "Negotiate only what a rule allows" in run(tmp_path, "--help").stdout


def test_a_short_program_needs_neither_click_nor_another_python(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getppid(), *sorted(sys.modules))"
    (tmp_path / "program.py").write_text(code)
    plain = subprocess.run(
        [sys.executable, "program.py"], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    done = run(tmp_path, "program.py")
    parent, *loaded = done.stdout.split()
    assert int(parent) == os.getpid(), done.stderr
    others = {name.partition(".")[0] for name in set(loaded) - set(plain.stdout.split())}
    assert not others & {"click", "asyncio", "ssl", "anyio", "ipaddress", "shutil", "inspect"}, others


#: On trio, the same as PROGRAM.
ON_TRIO = """
import subprocess, sys, trio

async def echo(stream):
    await stream.send_all(await stream.receive_some())

async def ask(port):
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"hello")
        assert await stream.receive_some() == b"hello"
        print(getattr(stream.socket, "stream", None) and stream.socket.stream.path, flush=True)

async def main():
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, echo, 0)
        port = listeners[0].socket.getsockname()[1]
        await ask(port)
        await trio.run_process([sys.executable, __file__, str(port)])
        nursery.cancel_scope.cancel()

trio.run(*([ask, int(sys.argv[1])] if len(sys.argv) > 1 else [main]))
"""


def test_a_program_on_trio_and_its_children(tmp_path: Path) -> None:
    pytest.importorskip("trio", reason="trio is not installed")
    (tmp_path / "program.py").write_text(ON_TRIO)
    done = run(tmp_path, "--report", "program.py")
    assert (done.returncode, done.stdout) == (0, "rdma\nrdma\n"), done.stderr
    assert "rdma  2  client 127.0.0.1" in done.stderr
    done = run(tmp_path, "--no-children", "program.py")
    assert (done.returncode, done.stdout) == (0, "rdma\nNone\n"), done.stderr
