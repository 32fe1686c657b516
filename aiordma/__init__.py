"""aiordma: asyncio-native RDMA networking for Python.

Importing it also imports what a first stream needs, if that is possible (``loading``). The other
names below are loaded when they are first used, and an RDMA device is looked for when the first connection
wants one. So ``import aiordma`` works on every Python, with or without pyverbs and the compiled modules; what
is missing shows as a reason in ``stream.fallback_reason``.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from . import loading, running
from .verbs import import_order

if TYPE_CHECKING:
    from . import rpc as rpc
    from . import testing as testing
    from .attributes import RdmaAttribute
    from .compat.connection import (
        connect_accepted_socket,
        create_connection,
        create_server,
        open_connection,
        start_server,
    )
    from .compat.datagram import create_datagram_connection, create_datagram_endpoint, create_datagram_server
    from .compat.own_methods import unpatched
    from .compat.upgrade import start_tls
    from .config import Config
    from .control import change_settings, statistics, switch_path, use_device
    from .credit import CreditWindow
    from .datagrams.connection import DatagramConnection, DatagramListener, connect_datagram, listen_datagram
    from .datagrams.endpoint import DatagramEndpoint, EndpointStatistics, open_datagram_endpoint
    from .errors import (
        AioRdmaError,
        Code,
        CompletionError,
        FallbackReason,
        IncompleteRead,
        LinkError,
        LocalProtocolError,
        NegotiationError,
        ProtocolError,
        RemoteProtocolError,
        VerbsError,
    )
    from .launch.hooks import install, uninstall
    from .launch.loops import new_event_loop
    from .links.statistics import EngineStatistics
    from .streams.connector import connect
    from .streams.info import StreamInfo
    from .streams.listener import RdmaListener, listen
    from .streams.stream import RdmaStream

__version__ = "0.1.0"

import_order.watch()

#: Packages that are part of the public interface; they, too, are loaded when they are first used.
_PACKAGES = ("memory", "rpc", "testing")

_HOME = {
    "RdmaAttribute": "attributes",
    "Config": "config",
    "connect": "streams.connector",
    "CreditWindow": "credit",
    "DatagramConnection": "datagrams.connection",
    "DatagramEndpoint": "datagrams.endpoint",
    "DatagramListener": "datagrams.connection",
    "connect_datagram": "datagrams.connection",
    "listen_datagram": "datagrams.connection",
    "open_datagram_endpoint": "datagrams.endpoint",
    "EndpointStatistics": "datagrams.endpoint",
    "EngineStatistics": "links.statistics",
    "RdmaListener": "streams.listener",
    "connect_accepted_socket": "compat.connection",
    "create_connection": "compat.connection",
    "create_datagram_connection": "compat.datagram",
    "create_datagram_endpoint": "compat.datagram",
    "create_datagram_server": "compat.datagram",
    "create_server": "compat.connection",
    "install": "launch.hooks",
    "new_event_loop": "launch.loops",
    "listen": "streams.listener",
    "open_connection": "compat.connection",
    "RdmaStream": "streams.stream",
    "StreamInfo": "streams.info",
    "start_server": "compat.connection",
    "start_tls": "compat.upgrade",
    "uninstall": "launch.hooks",
    "unpatched": "compat.own_methods",
    "change_settings": "control",
    "statistics": "control",
    "switch_path": "control",
    "use_device": "control",
    "AioRdmaError": "errors",
    "Code": "errors",
    "CompletionError": "errors",
    "FallbackReason": "errors",
    "IncompleteRead": "errors",
    "LinkError": "errors",
    "LocalProtocolError": "errors",
    "NegotiationError": "errors",
    "ProtocolError": "errors",
    "RemoteProtocolError": "errors",
    "VerbsError": "errors",
}

__all__ = [
    "AioRdmaError",
    "Code",
    "CompletionError",
    "Config",
    "CreditWindow",
    "DatagramConnection",
    "DatagramEndpoint",
    "DatagramListener",
    "EndpointStatistics",
    "EngineStatistics",
    "FallbackReason",
    "IncompleteRead",
    "LinkError",
    "LocalProtocolError",
    "NegotiationError",
    "ProtocolError",
    "RdmaAttribute",
    "RdmaListener",
    "RdmaStream",
    "RemoteProtocolError",
    "StreamInfo",
    "VerbsError",
    "change_settings",
    "connect",
    "connect_accepted_socket",
    "connect_datagram",
    "create_connection",
    "create_datagram_connection",
    "create_datagram_endpoint",
    "create_datagram_server",
    "create_server",
    "install",
    "listen",
    "listen_datagram",
    "new_event_loop",
    "open_connection",
    "open_datagram_endpoint",
    "start_server",
    "start_tls",
    "statistics",
    "switch_path",
    "uninstall",
    "unpatched",
    "use_device",
]


#: Those that are awaited: in a running loop, their modules are imported beside it.
_AWAITED = frozenset(
    name for name in __all__ if name.startswith(("connect", "create_", "listen", "open_", "start_"))
)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f".{name}", __name__)
    home = _HOME.get(name)
    if home is None:
        # With these Python can add what was meant.
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    if name in _AWAITED and not running.is_loaded(f"{__name__}.{home}"):
        if running.in_running_loop():
            return loading.stand_in(f"{__name__}.{home}", name)
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})


if loading.is_wanted():
    loading.import_ahead()
