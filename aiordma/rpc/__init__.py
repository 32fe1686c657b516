"""Calls between programs: typed services, streaming, deadlines, errors with codes; over RDMA or TCP."""

from __future__ import annotations

from .balance import Ejection, Picking, State, TargetStatistics
from .client import Client, connect
from .connection import Connection
from .context import Context
from .errors import Code, RpcCancelled, RpcError, RpcTimeout, RpcUnreachable
from .health import Health, Status
from .interceptor import ClientCall, ClientInterceptor, RefusedCall, ServerCall, ServerInterceptor
from .into import Incoming
from .pool import Pool, connect_pool
from .reflection import MethodInfo, ParameterInfo, Reflection, ServiceInfo
from .retry import Backoff, Retry, RetryBudget, RetryPolicy
from .server import Server, ServerStatistics, serve
from .service import Method, Service, method
from .signature import Kind
from .streaming import ClientStream

__all__ = [
    "Backoff",
    "Client",
    "ClientCall",
    "ClientInterceptor",
    "ClientStream",
    "Code",
    "Connection",
    "Context",
    "Ejection",
    "Health",
    "Incoming",
    "Kind",
    "Method",
    "MethodInfo",
    "ParameterInfo",
    "Picking",
    "Pool",
    "Reflection",
    "RefusedCall",
    "Retry",
    "RetryBudget",
    "RetryPolicy",
    "RpcCancelled",
    "RpcError",
    "RpcTimeout",
    "RpcUnreachable",
    "Server",
    "ServerCall",
    "ServerInterceptor",
    "ServerStatistics",
    "Service",
    "ServiceInfo",
    "State",
    "Status",
    "TargetStatistics",
    "connect",
    "connect_pool",
    "method",
    "serve",
]
