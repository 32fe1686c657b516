"""Streams to a valkey-server by its own RDMA protocol: :func:`connect`.

The server is an unmodified one, built with RDMA and started with ``--rdma-port``. What is sent on the stream
is RESP, as on TCP. For redis-py and valkey-py see ``aiordma.integrations``.
"""

from .connect import ValkeyStream, connect

__all__ = ["ValkeyStream", "connect"]
