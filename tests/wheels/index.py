"""A simple index (PEP 503) on this host: from it, pip installs as it will from the registry."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

#: What pip takes from its surroundings; without it nothing comes from elsewhere.
ALONE = {
    "PIP_CONFIG_FILE": "/dev/null",
    "PIP_NO_CACHE_DIR": "1",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}


def project(file: str) -> str:
    """The normalized name of the project that a wheel or an sdist belongs to.

    >>> project("typing_extensions-4.15.0-py3-none-any.whl"), project("Aio.RDMA-0.1.0.tar.gz")
    ('typing-extensions', 'aio-rdma')
    """
    name = file.split("-")[0] if file.endswith(".whl") else file.rpartition("-")[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def pages(files: Iterable[Path]) -> dict[str, bytes]:
    """What the index answers, by path: the list of projects, a page for each, and the files."""
    links: dict[str, list[str]] = defaultdict(list)
    answers = {}
    for file in files:
        content = file.read_bytes()
        answers[f"/files/{file.name}"] = content
        digest = hashlib.sha256(content).hexdigest()
        links[project(file.name)].append(f'<a href="/files/{file.name}#sha256={digest}">{file.name}</a>')
    for name, its in links.items():
        answers[f"/simple/{name}/"] = _page(its)
    answers["/simple/"] = _page([f'<a href="/simple/{name}/">{name}</a>' for name in links])
    return answers


def _page(links: list[str]) -> bytes:
    return f"<!DOCTYPE html><html><body>{'<br>'.join(links)}</body></html>".encode()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, answers: dict[str, bytes], *args: object) -> None:
        self.answers = answers
        super().__init__(*args)  # type: ignore[arg-type]  # what a server gives its handlers

    def do_GET(self) -> None:
        answer = self.answers.get(self.path)
        if answer is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header(
            "Content-Type", "application/octet-stream" if "/files/" in self.path else "text/html"
        )
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing: pip names what it does not find."""


@contextmanager
def serve(files: Iterable[Path]) -> Iterator[str]:
    """The URL of an index of ``files``, which is served until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, pages(files)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
