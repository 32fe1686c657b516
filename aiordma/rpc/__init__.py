"""Calls between programs: typed services, streaming, deadlines, errors with codes; over RDMA or TCP."""

from __future__ import annotations

from .errors import Code, RpcCancelled, RpcError, RpcTimeout
from .interceptor import ClientCall, ClientInterceptor, ServerCall, ServerInterceptor
from .service import Kind, Method, Service, method

__all__ = [
    "ClientCall",
    "ClientInterceptor",
    "Code",
    "Kind",
    "Method",
    "RpcCancelled",
    "RpcError",
    "RpcTimeout",
    "ServerCall",
    "ServerInterceptor",
    "Service",
    "method",
]
