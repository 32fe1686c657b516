"""A page by hypercorn, by RDMA for clients that can: ``python hypercorn_server.py 127.0.0.1:8000``."""

import sys
from typing import Any

from hypercorn.config import Config

from aiordma.integrations.hypercorn import run


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"hello"})


config = Config()
config.bind = sys.argv[1:] or ["127.0.0.1:8000"]
run(app, config)
