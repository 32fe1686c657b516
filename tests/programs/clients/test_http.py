"""curl, nginx and clients in Python before a server under `aiordma run`, and its clients before nginx."""

from __future__ import annotations

import hashlib
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from .running import LOCAL, UNDER, Running, client, free_port, paths, program, server

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

pytestmark = pytest.mark.slow

SIZE = 3_000_000
APP = f"""
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if scope["path"] == "/large":
        body = bytes(range(250)) * {SIZE // 250}
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": body or b"hello"}})
"""
SUM = hashlib.sha256(bytes(range(250)) * (SIZE // 250)).hexdigest()
CLIENT = """
import asyncio, hashlib, sys, httpx
async def main(url):
    async with httpx.AsyncClient(timeout=40) as client:
        for _ in range(3):
            assert (await client.get(url)).text == "hello"
        assert (await client.post(url, content=b"x" * 1_000_000)).content == b"x" * 1_000_000
        print(hashlib.sha256((await client.get(url + "large")).content).hexdigest())
asyncio.run(main(sys.argv[1]))
"""
NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log info;
events {{ }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    client_max_body_size 10m;
    upstream app {{ server 127.0.0.1:{app}; keepalive 4; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
}}
"""


def files(folder: Path) -> None:
    (folder / "app.py").write_text(APP)
    (folder / "client.py").write_text(CLIENT)


def uvicorn(port: int) -> list[str]:
    return [
        *UNDER,
        "-m",
        "uvicorn",
        "app:app",
        "--host",
        LOCAL,
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]


def sum_of(words: str) -> str:
    return words.strip().splitlines()[-1]


def test_curl_and_clients_of_both_kinds_on_one_port(tmp_path: Path) -> None:
    curl = program("curl")
    files(tmp_path)
    port = free_port()
    url = f"http://{LOCAL}:{port}/"
    with server(uvicorn(port), port, tmp_path, "uvicorn") as app:
        assert client([curl, "-s", url, url], tmp_path).stdout == "hellohello"
        assert client([curl, "-s", "--data", "posted", url], tmp_path).stdout == "posted"
        assert sum_of(client([sys.executable, "client.py", url], tmp_path).stdout) == SUM
        done = client([*UNDER, "client.py", url], tmp_path)
        assert sum_of(done.stdout) == SUM
        assert paths(done.stderr) == {"rdma": 1}
        assert paths(app.end()) == {"rdma": 1, "tcp": 3}


def test_nginx_before_it(tmp_path: Path) -> None:
    """nginx is a plain client of the program, and a plain server for a client under `aiordma run`."""
    nginx = program("nginx")
    files(tmp_path)
    behind, port = free_port(), free_port()
    (tmp_path / "nginx.conf").write_text(NGINX.format(folder=tmp_path, app=behind, port=port))
    url = f"http://{LOCAL}:{port}/"
    with (
        server(uvicorn(behind), behind, tmp_path, "uvicorn") as app,
        server([nginx, "-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path)], port, tmp_path, "nginx"),
    ):
        done = client([*UNDER, "client.py", url], tmp_path)
        assert sum_of(done.stdout) == SUM
        assert paths(done.stderr) == {"tcp": 1}
        # Asked all the same, as a server on another host would be: nginx closes that connection.
        asked = client([*UNDER, "--allow", f"out:*:{port}", "client.py", url], tmp_path)
        assert sum_of(asked.stdout) == SUM
        assert paths(asked.stderr) == {"tcp": 1}
        assert set(paths(app.end())) == {"tcp"}
    requests = (tmp_path / "access.log").read_text().splitlines()
    assert sum('" 200 ' in line for line in requests) == 10
    assert len(requests) <= 11, "the Proposal may count as a bad request, once"


@pytest.mark.parametrize("which", ["server", "client"])
def test_one_end_is_killed(tmp_path: Path, which: str) -> None:
    """Both ends are under `aiordma run`, and a request is under way."""
    (tmp_path / "app.py").write_text("""
import asyncio
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    print("asked", flush=True)
    await receive()
    if scope["path"] == "/wait":
        assert (await receive())["type"] == "http.disconnect"
        print("gone", flush=True)
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})
""")
    (tmp_path / "client.py").write_text("""
import asyncio, sys, httpx
async def main(url):
    async with httpx.AsyncClient(timeout=40) as client:
        assert (await client.get(url)).text == "hello"
        print("begins", flush=True)
        try:
            await client.get(url + "wait")
        except httpx.TransportError as error:
            print("lost", type(error).__name__, flush=True)
asyncio.run(main(sys.argv[1]))
""")
    port = free_port()
    url = f"http://{LOCAL}:{port}/"
    with server(uvicorn(port), port, tmp_path, "uvicorn") as app:
        asking = Running([*UNDER, "client.py", url], tmp_path, "client")
        try:
            wait_for(app, "asked\nasked\n")
            if which == "server":
                app.process.send_signal(signal.SIGKILL)
                wait_for(asking, "lost ")
                assert asking.process.wait(60) == 0
                assert paths(asking.output) == {"rdma": 1}
            else:
                asking.process.send_signal(signal.SIGKILL)
                wait_for(app, "gone\n")
                (tmp_path / "next.py").write_text("import sys, httpx; print(httpx.get(sys.argv[1]).text)")
                assert client([*UNDER, "next.py", url], tmp_path).stdout == "hello\n"
                assert paths(app.end()) == {"rdma": 1, "tcp": 1}
        finally:
            asking.kill()


def wait_for(running: Running, text: str) -> None:
    """Until it has printed that; the test's own time limit ends it."""
    while text not in running.output:
        assert running.process.poll() is None or text in running.output, running.output
        time.sleep(0.02)  # another process writes the file
