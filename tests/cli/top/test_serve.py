"""The live page of `aiordma top --serve`: who may read it, what it has, and what a browser makes of it."""

from __future__ import annotations

import contextlib
import html
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner

from aiordma.cli.top.command import top
from aiordma.cli.top.history import Page
from aiordma.cli.top.page import MARKUP, SCRIPT, STYLE
from aiordma.cli.top.web import RefusedError, host_is_safe, parse
from tests.processes import FULL_PATIENCE, process
from tests.world import DEVICE

from ..terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.processes import Process as Other

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

BROWSER = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None
)
#: Of a program. As markup it would run a script.
HOSTILE = "<img src=x onerror=document.title='broken'>.py"


@pytest.fixture(scope="module")
def busy() -> Iterator[Other]:
    """Three streams, of them one on TCP."""
    with process("tests.admin.roles:connected", device=DEVICE, streams=3, plain=1) as other:
        other.hear()
        yield other


@contextlib.contextmanager
def served(*arguments: str) -> Iterator[int]:
    """The port of a page."""
    with terminal("top", "--serve", "0", "-i", "0.1", *arguments) as screen:
        yield int(screen.until(r"http://127\.0\.0\.1:(\d+)/ shows all processes \(Ctrl-C ends it\)\n")[1])
        screen.type("\x03")
        assert screen.end() == 0


def ask(port: int, path: str = "/", method: str = "GET", **fields: str) -> http.client.HTTPResponse:
    """Its body is in the attribute `text`."""
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=FULL_PATIENCE)
    with contextlib.closing(asked):
        asked.request(method, path, headers=fields)
        answer = asked.getresponse()
        answer.text = answer.read().decode()  # type: ignore[attr-defined]
    return answer


def raw(port: int, data: bytes) -> bytes:
    """What comes for these bytes."""
    with socket.create_connection(("127.0.0.1", port), FULL_PATIENCE) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while part := sock.recv(1 << 16):
                found += part
    return found


def page_of(port: int) -> dict[str, Any]:
    answer = ask(port, "/top.json")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    found: dict[str, Any] = json.loads(answer.text)  # type: ignore[attr-defined]
    jsonschema.validate(found, msgspec.json.schema(Page))
    return found


def test_the_page_and_its_data(busy: Other) -> None:
    with served("--pid", str(busy.pid)) as port:
        for path, text, kind in (
            ("/", MARKUP, "html"),
            ("/page.css", STYLE, "css"),
            ("/page.js", SCRIPT, "java"),
        ):
            answer = ask(port, path)
            assert (answer.status, answer.text) == (200, text)  # type: ignore[attr-defined]
            assert kind in answer.headers["Content-Type"]
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "Access-Control-Allow-Origin" not in answer.headers
        found = page_of(port)
        while len(found["history"]) < 3:
            found = page_of(port)
    (loop,) = found["top"]["processes"]
    assert (loop["pid"], loop["on_rdma"], loop["on_tcp"]) == (busy.pid, 4, 2)
    assert [each["kind"] for each in found["events"]].count("link up") == 2
    assert found["history"][-1]["on_rdma"] == 4
    assert [each["at"] for each in found["history"]] == sorted(each["at"] for each in found["history"])


@pytest.mark.parametrize(
    ("path", "method", "fields", "status"),
    [
        ("/", "HEAD", {}, 200),
        ("/top.json?_=1", "GET", {}, 200),
        ("/", "GET", {"Host": "localhost"}, 200),
        ("/", "GET", {"Host": "rebound.example"}, 421),
        ("/top.json", "GET", {"Host": "rebound.example:80"}, 421),
        ("/", "GET", {"Host": "127.0.0.1.rebound.example"}, 421),
        ("/", "POST", {}, 405),
        ("/", "PUT", {}, 405),
        ("/", "OPTIONS", {}, 405),
        ("/../etc/passwd", "GET", {}, 404),
        ("/page.py", "GET", {}, 404),
        ("/", "GET", {"Content-Length": "5"}, 400),
        ("/", "GET", {"Transfer-Encoding": "chunked"}, 400),
        ("/", "GET", {"X": "y" * 10_000}, 431),
    ],
)
def test_requests(page: int, path: str, method: str, fields: dict[str, str], status: int) -> None:
    answer = ask(page, path, method, **fields)
    assert answer.status == status
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    text = answer.text  # type: ignore[attr-defined]
    assert method != "HEAD" or text == ""
    assert status == 200 or len(text) < 100


@pytest.fixture(scope="module")
def page() -> Iterator[int]:
    with served("--program", "no such program") as port:
        yield port


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n",
        b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET / HTTP/1.1\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: local\0host\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_what_is_no_request(page: int, data: bytes) -> None:
    assert raw(page, data).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(RefusedError) as caught:
        parse(data)
    assert caught.value.status == HTTPStatus.BAD_REQUEST
    assert ask(page).status == 200


def test_silent_clients_keep_no_others_away(page: int) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", page)))
            sock.sendall(b"GET / HTT")
        assert ask(page).status == 200
    assert ask(page).status == 200


@pytest.mark.parametrize(
    ("field", "safe"),
    [
        ("127.0.0.1:7119", True),
        ("127.0.0.1", True),
        ("[::1]:7119", True),
        ("192.0.2.1:80", True),
        ("LOCALHOST:7119", True),
        ("server7:7119", True),
        ("server8:7119", False),
        ("localhost.example", False),
        ("1.2.3", False),
        ("", False),
        ("localhost:7119:1", False),
        ("user@localhost", False),
        ("[::1", False),
    ],
)
def test_names_that_may_lead_elsewhere(field: str, safe: bool) -> None:
    assert host_is_safe(field, "server7") == safe


#: An address for documentation (RFC 5737), which is a host's own in a network namespace of the test.
OF_THE_HOST = "192.0.2.2"


@contextlib.contextmanager
def other_user(uid: int, body: str) -> Iterator[subprocess.Popen[str]]:
    """A program of that user. The test is left out where that user cannot start this Python."""
    with subprocess.Popen(
        [sys.executable, "-I", "-c", 'print("started", flush=True)\n' + body],
        user=uid,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stderr is not None
        if said(other) != "started":
            pytest.skip(other.stderr.read().strip().rpartition("\n")[2])
        yield other


def said(other: subprocess.Popen[str]) -> str:
    """Its next line; empty: it has ended."""
    assert other.stdout is not None
    return other.stdout.readline().strip()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2", OF_THE_HOST])
def test_other_users_of_this_host_do_not_read_it(page: int, source: str) -> None:
    with socket.socket() as sock:
        try:
            sock.bind((source, 0))
        except OSError:
            pytest.skip(f"{source} is no address of this host")
    fetch = f"""
import http.client
asked = http.client.HTTPConnection("127.0.0.1", {page}, source_address=({source!r}, 0))
asked.request("GET", "/top.json")
print(asked.getresponse().status)
"""
    found = []
    for uid in (65534, 0):
        with other_user(uid, fetch) as other:
            found.append(said(other))
    assert found == ["403", "200"]


def test_other_users_at_another_address_of_this_host() -> None:
    """In a network namespace whose loopback device has an address that is none of loopback's."""
    made = subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True)
    if made.returncode or shutil.which("ip") is None:
        pytest.skip("no network namespace can be made here, or ip (iproute2) is missing")
    script = (
        f"ip link set lo up && ip address add {OF_THE_HOST}/32 dev lo && "
        'exec "$1" -m pytest -q -p no:cacheprovider -p no:xdist "$2"'
    )
    test = f"{__file__}::test_other_users_of_this_host_do_not_read_it[{OF_THE_HOST}]"
    command = ["unshare", "-n", "sh", "-c", script, "sh", sys.executable, test]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    if "1 skipped" in done.stdout:
        pytest.skip("there is no other user here who can start this Python")
    assert "1 passed" in done.stdout


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_other_users_that_say_nothing_do_not_keep_the_owner_away(page: int) -> None:
    silent = f"""
import socket, sys
held = [socket.create_connection(("127.0.0.1", {page})) for _ in range(100)]
print(len(held), flush=True)
sys.stdin.read()
"""
    with other_user(65534, silent) as other:
        assert said(other) == "100"
        assert ask(page).status == 200
        assert other.stdin is not None
        other.stdin.close()


def test_the_script_makes_no_markup_of_what_it_shows() -> None:
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
        "srcdoc",
    ):
        assert word not in SCRIPT
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", SCRIPT + STYLE + MARKUP)
    assert "<script>" not in MARKUP
    assert "style=" not in MARKUP


def test_what_cannot_be_served() -> None:
    assert CliRunner().invoke(top, ["--serve", "0", "--json"]).exit_code == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = CliRunner().invoke(top, ["--serve", str(taken.getsockname()[1])])
    assert done.exit_code == 1
    assert "already in use" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no browser")
def test_in_a_browser(busy: Other) -> None:
    with served("--pid", str(busy.pid)) as port:
        shown = browsed(port)
    assert "Nothing is slow: 4 connections are on RDMA, 2 on TCP." in shown
    assert f"<td>program.py[{busy.pid}]</td>" in shown
    assert shown.count("<svg") == 5


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no browser")
def test_names_are_no_markup_in_a_browser(tmp_path: Path) -> None:
    program = tmp_path / HOSTILE
    program.write_text(
        "import asyncio, aiordma\n"
        "async def main():\n"
        "    async with await aiordma.listen('127.0.0.1'):\n"
        "        await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "AIORDMA_DEVICE": DEVICE}
    with subprocess.Popen([sys.executable, str(program)], env=environment) as other:
        try:
            with served("--pid", str(other.pid)) as port:
                while not page_of(port)["top"]["processes"]:
                    assert other.poll() is None
                shown = browsed(port)
        finally:
            other.kill()
    assert f"<td>{html.escape(HOSTILE, quote=False)}[{other.pid}]</td>" in shown


def browsed(port: int) -> str:
    """The document, as a browser has it after some seconds of its time."""
    assert BROWSER is not None
    flags = ["--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    command = [BROWSER, *flags, f"http://127.0.0.1:{port}/"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
