"""Servers that begin anew under `aiordma run`: they announce themselves again, and lose no request by it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from aiordma.negotiation.announcement import is_announced
from tests import patient
from tests.processes import FULL_PATIENCE
from tests.roles import free_port

from .served import RUN, by_rdma, client, files, lost, reported, started

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow
TIMES = 3


def test_gunicorn_that_is_told_to_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker waits for the connections that it has; a client that asks all the time stays on RDMA."""
    pytest.importorskip("gunicorn.workers.gasgi")
    patient.as_for_users(monkeypatch)
    files(tmp_path)
    port = free_port()
    gunicorn = ["-m", "gunicorn", "app:app", "-k", "asgi", "-b", f"127.0.0.1:{port}", "--no-control-socket"]
    with started([*RUN, *gunicorn], tmp_path, "server") as server:
        server.until(lambda _output: is_announced(port))
        with started(client(port, tasks=4), tmp_path, "client") as asking:
            for times in range(1, TIMES + 1):
                asking.until(lambda output, times=times: len(by_rdma(output)) >= times)  # type: ignore[misc]
                server.process.send_signal(signal.SIGHUP)
            answers = asking.until(lambda output: len(by_rdma(output)) == TIMES + 1)
            asking.end()
            said = server.end()
    assert lost(answers) == []
    assert reported(said) == set(by_rdma(answers)), said


def test_uvicorn_that_reloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has begun to serve is answered, and the next process serves by RDMA."""
    pytest.importorskip("uvicorn")
    patient.as_for_users(monkeypatch)
    files(tmp_path)
    port = free_port()
    where = ["--port", str(port), "--reload", "--reload-dir", str(tmp_path)]
    with started([*RUN, "-m", "uvicorn", "app:app", *where], tmp_path, "server") as server:
        server.until(lambda _output: is_announced(port))
        with started(client(port, "/wait", times=1, tasks=4), tmp_path, "under way") as asking:
            server.until(lambda output: output.count("waits\n") == 4)
            (tmp_path / "app.py").write_text((tmp_path / "app.py").read_text() + "# another\n")
            server.until(lambda output: "Waiting for connections to close" in output)
            (tmp_path / "go").touch()
            assert asking.process.wait(FULL_PATIENCE) == 0
            first = by_rdma(asking.output)
            assert asking.output.count(f"rdma {''.join(first)}\n") == 4, asking.output
        with started(client(port), tmp_path, "next") as later:
            later.until(lambda output: bool(by_rdma(output)))
            later.end()
        said = server.end()
    second = by_rdma(later.output)
    assert not set(first) & set(second)
    assert reported(said) == {*first, *second}, said
