"""What Dask's security settings ask of a comm."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from .settings import PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .settings import Settings

__all__ = ["check_encryption", "tls_context"]


def check_encryption(address: str, tls: bool, connection_args: Mapping[str, Any], settings: Settings) -> None:
    """:raises RuntimeError: encryption is required, and the payload at ``address`` would have none."""
    if not connection_args.get("require_encryption"):
        return
    if not tls:
        raise RuntimeError(
            f"encryption required by Dask configuration, refusing communication from/to {address!r}: use rdmas://"
        )
    if settings.rdma_outside_tls:
        raise RuntimeError(
            "encryption required by Dask configuration, refusing communication from/to "
            f"{address!r}: {PREFIX}.rdma-outside-tls lets payload travel by RDMA unencrypted"
        )


def tls_context(connection_args: Mapping[str, Any]) -> ssl.SSLContext:
    """:raises TypeError: there is none."""
    context = connection_args.get("ssl_context")
    if not isinstance(context, ssl.SSLContext):
        raise TypeError(
            "rdmas:// expects a `ssl_context` argument of type ssl.SSLContext (perhaps check your TLS "
            f"configuration?), not {context!r}"
        )
    return context
