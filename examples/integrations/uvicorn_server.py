"""A page by uvicorn, by RDMA for clients that can: ``python uvicorn_server.py 127.0.0.1 8000``."""

import sys
from typing import Any

import uvicorn


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


uvicorn.run(
    app, host=sys.argv[1], port=int(sys.argv[2]), lifespan="off", loop="aiordma.integrations.uvicorn:asyncio"
)
