"""SMTP, where the server speaks first: aiosmtpd, with aiosmtplib and the standard library's client."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from .running import LOCAL, UNDER, client, free_port, paths, server

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("aiosmtpd", reason="aiosmtpd is not installed (`make test-clients` does)")
pytest.importorskip("aiosmtplib", reason="aiosmtplib is not installed (`make test-clients` does)")

pytestmark = pytest.mark.slow

#: By aiosmtplib, or with "plain" by the standard library's client.
CLIENT = """
import asyncio, smtplib, sys, aiosmtplib
from email.message import EmailMessage
message = EmailMessage()
message["From"], message["To"], message["Subject"] = "a@example.org", "b@example.org", sys.argv[2]
message.set_content("hello" * 1000)
if sys.argv[2] == "plain":
    with smtplib.SMTP("127.0.0.1", int(sys.argv[1]), timeout=40) as server:
        server.send_message(message)
else:
    where = {"hostname": "127.0.0.1", "port": int(sys.argv[1])}
    asyncio.run(aiosmtplib.send(message, timeout=40, start_tls=False, **where))
"""


def aiosmtpd(port: int) -> list[str]:
    return ["-m", "aiosmtpd", "-n", "-l", f"{LOCAL}:{port}", "-c", "aiosmtpd.handlers.Debugging", "stdout"]


def test_a_client_of_a_plain_server(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(CLIENT)
    port = free_port()
    with server([sys.executable, *aiosmtpd(port)], port, tmp_path, "smtp") as running:
        for options, subject in (([], "first"), (["--allow", f"out:*:{port}"], "asked")):
            done = client([*UNDER, *options, "client.py", str(port), subject], tmp_path)
            assert paths(done.stderr) == {"tcp": 1}
            assert f"Subject: {subject}" in running.output


def test_a_server_for_clients_of_both_kinds(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(CLIENT)
    port = free_port()
    with server([*UNDER, *aiosmtpd(port)], port, tmp_path, "smtp") as running:
        client([sys.executable, "client.py", str(port), "plain"], tmp_path)
        done = client([*UNDER, "client.py", str(port), "ours"], tmp_path)
        assert paths(done.stderr) == {"rdma": 1}
        report = running.end()
    assert "Subject: plain" in report
    assert "Subject: ours" in report
    assert paths(report) == {"rdma": 1, "tcp": 1}
