"""Calls between programs: typed services, streaming, deadlines, errors with codes; over RDMA or TCP."""

from __future__ import annotations

from .errors import Code, RpcCancelled, RpcError, RpcTimeout

__all__ = ["Code", "RpcCancelled", "RpcError", "RpcTimeout"]
