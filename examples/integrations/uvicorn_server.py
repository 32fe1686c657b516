"""A page by uvicorn, by RDMA for clients that can: ``python uvicorn_server.py 127.0.0.1 8000``."""

import sys
from typing import Any

import uvicorn

import aiordma.integrations.uvicorn


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


host, port = sys.argv[1:] or ["127.0.0.1", "8000"]
# uvicorn takes the name. Imported, the module says if this uvicorn is too old for it.
loop = f"{aiordma.integrations.uvicorn.__name__}:asyncio"
uvicorn.run(app, host=host, port=int(port), lifespan="off", loop=loop)
