"""What distributed's tests call by the names of its TCP transport, of the transport under test."""

from __future__ import annotations

from distributed_aiordma.backend import RdmaBackend as TCPBackend
from distributed_aiordma.backend import RdmasBackend as TLSBackend
from distributed_aiordma.comm import RdmaComm as TCP
from distributed_aiordma.connector import RdmaConnector as TCPConnector
from distributed_aiordma.connector import RdmasConnector as TLSConnector
from distributed_aiordma.listener import RdmaListener as TCPListener
from distributed_aiordma.listener import RdmasListener as TLSListener

__all__ = ["TCP", "TCPBackend", "TCPConnector", "TCPListener", "TLSBackend", "TLSConnector", "TLSListener"]
