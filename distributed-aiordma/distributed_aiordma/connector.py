"""Opens comms: the client's side of ``rdma://`` and ``rdmas://``."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, ClassVar

from anyio.abc import SocketAttribute
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import Connector, FatalCommClosedError

import aiordma

from .comm import RdmaComm
from .paths import check_path
from .security import check_encryption, tls_context
from .settings import Settings

if TYPE_CHECKING:
    from aiordma import RdmaStream

__all__ = ["RdmaConnector", "RdmasConnector"]


class RdmaConnector(Connector):
    """``rdma://``: over RDMA without encryption."""

    prefix: ClassVar[str] = "rdma://"
    comm_class: ClassVar[type[RdmaComm]] = RdmaComm
    encrypted: ClassVar[bool] = False

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> RdmaComm:
        """Connect to ``address``, which has no scheme.

        :raises OSError: the server cannot be reached now; distributed tries again.
        :raises FatalCommClosedError: trying again is of no use: a wrong certificate, a refused path.
        """
        settings = Settings.now()
        peer = self.prefix + address
        check_encryption(peer, self.encrypted, connection_args, settings)
        host, port = parse_host_port(address)
        stream = await self._open(host, port, settings, connection_args)
        refusal = check_path(stream, peer, refuse=settings.require_rdma)
        if refusal is not None:
            stream.abort()
            raise FatalCommClosedError(refusal)
        local = self.prefix + unparse_host_port(*stream.extra(SocketAttribute.local_address)[:2])
        return self.comm_class(stream, local, peer, deserialize, settings)

    async def _open(
        self, host: str, port: int, settings: Settings, connection_args: dict[str, Any]
    ) -> RdmaStream:
        return await aiordma.connect(host, port, config=settings.config())


class RdmasConnector(RdmaConnector):
    """``rdmas://``: the negotiation inside TLS, and the payload, too, unless ``rdma-outside-tls`` is set."""

    prefix = "rdmas://"
    encrypted = True

    async def _open(
        self, host: str, port: int, settings: Settings, connection_args: dict[str, Any]
    ) -> RdmaStream:
        context = tls_context(connection_args)
        try:
            return await aiordma.connect(
                host,
                port,
                config=settings.config(),
                ssl=context,
                server_hostname=connection_args.get("server_hostname") or host,
                rdma_outside_tls=settings.rdma_outside_tls,
            )
        except ssl.SSLCertVerificationError as exc:
            raise FatalCommClosedError(
                f"the certificate of {self.prefix}{host}:{port} does not match: {exc.verify_message}. Check "
                "your security settings (Dask's page on TLS)"
            ) from exc
        except ssl.SSLError as exc:
            raise FatalCommClosedError(f"TLS with {self.prefix}{host}:{port}: {exc}") from exc
