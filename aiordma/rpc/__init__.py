"""Calls between programs: typed services, streaming, deadlines, errors with codes; over RDMA or TCP."""

from __future__ import annotations

from .errors import Code, RpcCancelled, RpcError, RpcTimeout
from .health import Health, Status
from .interceptor import ClientCall, ClientInterceptor, ServerCall, ServerInterceptor
from .reflection import MethodInfo, ParameterInfo, Reflection, ServiceInfo
from .retry import Backoff, Retry, RetryBudget, RetryPolicy
from .service import Kind, Method, Service, method

__all__ = [
    "Backoff",
    "ClientCall",
    "ClientInterceptor",
    "Code",
    "Health",
    "Kind",
    "Method",
    "MethodInfo",
    "ParameterInfo",
    "Reflection",
    "Retry",
    "RetryBudget",
    "RetryPolicy",
    "RpcCancelled",
    "RpcError",
    "RpcTimeout",
    "ServerCall",
    "ServerInterceptor",
    "Service",
    "ServiceInfo",
    "Status",
    "method",
]
