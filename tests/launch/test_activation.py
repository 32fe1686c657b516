"""Socket activation under `aiordma run`: the listening socket is descriptor 3, as `systemd` hands it over."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import pytest

from tests import patient

from .served import RUN, by_rdma, client, files, lost, reported, started

if TYPE_CHECKING:
    from pathlib import Path

#: As `systemd-socket-activate` does: the process becomes the program.
LAUNCHER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES="web")
os.execv(sys.argv[2], sys.argv[2:])
"""
#: Of the standard library alone, as sd_listen_fds(3) says.
PROGRAM = """
import asyncio, os, socket, sys

async def serve(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    body = b"%d" % os.getpid()
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(body), body))
    writer.close()

async def main():
    assert (os.environ["LISTEN_FDS"], os.environ["LISTEN_PID"]) == ("1", str(os.getpid()))
    async with await asyncio.start_server(serve, sock=socket.socket(fileno=3)) as server:
        await server.serve_forever()

asyncio.run(main())
"""
PROGRAMS = {
    "asyncio": ["program.py"],
    "uvicorn": ["-m", "uvicorn", "app:app", "--fd", "3"],
    "gunicorn": ["-m", "gunicorn", "app:app", "-k", "asgi", "--no-control-socket"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROGRAMS)
def test_the_listening_socket_is_descriptor_3(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind != "asyncio":
        pytest.importorskip("gunicorn.workers.gasgi" if kind == "gunicorn" else kind)
    patient.as_for_users(monkeypatch)
    files(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        number = listening.fileno()
        launcher = [sys.executable, "-c", LAUNCHER, str(number), *RUN, *PROGRAMS[kind]]
        server = started(launcher, tmp_path, "server", pass_fds=[number])
        with server as running, started(client(port), tmp_path, "client") as asking:
            asking.until(lambda output: bool(by_rdma(output)))
            assert not lost(asking.output)
            asking.end()
            said = running.end()
    assert reported(said) == set(by_rdma(asking.output)), said
