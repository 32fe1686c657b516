"""The protocol cores twice: as they are installed (compiled), and interpreted from the same source."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import aiordma
from aiordma.proto import (
    call,
    calls,
    cdc,
    client_calls,
    cursor,
    deadlines,
    objects,
    rpc,
    seqack,
    server_calls,
    trace,
    valkey,
)

__all__ = ["COMPILED", "CORES", "IS_COMPILED"]

_SOURCES = Path(aiordma.__file__).parent / "proto"
_NAMES = (
    "codes",
    "errors",
    "cursor",
    "cdc",
    "seqack",
    "rpc",
    "call",
    "deadlines",
    "calls",
    "client_calls",
    "server_calls",
    "trace",
    "valkey",
    "objects",
)  # in the order of their imports


def _interpreted() -> types.SimpleNamespace:
    package = types.ModuleType("interpreted_proto")
    package.__path__ = []
    sys.modules[package.__name__] = package
    found: dict[str, Any] = {}
    for name in _NAMES:
        spec = importlib.util.spec_from_file_location(f"interpreted_proto.{name}", _SOURCES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        found[name] = module
    return types.SimpleNamespace(**found)


COMPILED = types.SimpleNamespace(
    cursor=cursor,
    cdc=cdc,
    seqack=seqack,
    rpc=rpc,
    call=call,
    deadlines=deadlines,
    calls=calls,
    client_calls=client_calls,
    server_calls=server_calls,
    trace=trace,
    valkey=valkey,
    objects=objects,
)
IS_COMPILED = not str(cursor.__file__).endswith(".py")
CORES = {"interpreted": _interpreted()} | ({"compiled": COMPILED} if IS_COMPILED else {})
