"""grpclib: a channel and a server whose connections negotiate RDMA.

::

    server = RdmaServer([Greeter()])
    await server.start("0.0.0.0", 50051)

    async with RdmaChannel("storage", 50051) as channel:
        await GreeterStub(channel).SayHello(HelloRequest(name="world"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._loops import Negotiating
from ._versions import check_version, unusable

try:
    from grpclib.client import Channel
    from grpclib.server import Server
except ImportError as error:
    raise unusable("grpclib") from error

if TYPE_CHECKING:
    from ..config import Config, Mode

check_version("grpclib")

__all__ = ["RdmaChannel", "RdmaServer"]


class RdmaChannel(Channel):  # type: ignore[misc]
    """``grpclib.client.Channel`` over RDMA, with TCP for everybody else. With `ssl` it stays on TCP."""

    def __init__(
        self, *args: Any, config: Config | None = None, mode: Mode | None = None, **options: Any
    ) -> None:
        """`config`, `mode`: as of :func:`aiordma.create_connection`. The rest: see grpclib."""
        super().__init__(*args, **options)
        this: Any = self
        this._loop = Negotiating(this._loop, config, mode)


class RdmaServer(Server):  # type: ignore[misc]
    """``grpclib.server.Server`` that also serves by RDMA, on the same port."""

    def __init__(
        self, *args: Any, config: Config | None = None, mode: Mode | None = None, **options: Any
    ) -> None:
        """`config`, `mode`: as of :func:`aiordma.create_server`. The rest: see grpclib."""
        super().__init__(*args, **options)
        this: Any = self
        this._loop = Negotiating(this._loop, config, mode)
