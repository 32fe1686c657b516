"""Reason codes of a negotiation that ended on TCP.

The numbers are those of Linux SMC (``net/smc/smc_clc.h``, printed by ``smcss``), so that traces and logs
read the same for users of SMC. aiordma's own reasons use a range that SMC does not use (0x0a1dxxxx).
"""

from __future__ import annotations

import enum
from typing import Self


class Code(enum.IntEnum):
    """Why a connection does not use RDMA; ``text`` says it in words."""

    text: str

    def __new__(cls, value: int, text: str) -> Self:
        self = int.__new__(cls, value)
        self._value_ = value
        self.text = text
        return self

    OUT_OF_MEMORY = 0x01010000, "out of registered memory (AIORDMA_MEMORY_LIMIT_BYTES limits it)"
    TIMEOUT_CONFIRM_LINK = 0x02010000, "no Confirm Link arrived over the new link in time"
    TIMEOUT_ADD_LINK = 0x02020000, "no answer to Add Link in time"
    CONFIGURATION = 0x03000000, "configuration error"
    PEER_NO_SMC = 0x03010000, "the peer did not offer RDMA"
    IPSEC = 0x03020000, "IPsec is in use"
    NO_DEVICE = 0x03030000, "no RDMA device found"
    NO_SMCD_DEVICE = 0x03030001, "no SMC-D device found"
    NO_SMCR_DEVICE = 0x03030002, "no usable RDMA device or port (none active with a GID)"
    NO_SMC_V2_EXTENSION = 0x03030004, "the proposal has no version 2 extension"
    NO_COMMON_EID = 0x03030008, "the two ends have no enterprise id in common"
    RELEASE_MISMATCH = 0x03030009, "the answer names another SMC release than was agreed"
    MAX_CONNS_MISMATCH = 0x0303000A, "the answer allows another number of connections than was agreed"
    MAX_LINKS_MISMATCH = 0x0303000B, "the answer allows another number of links than was agreed"
    MODE_MISMATCH = 0x03040000, "the two ends use different SMC modes"
    EYE_CATCHERS_IN_RMBE = 0x03050000, "the peer wants eye catchers in its ring buffer"
    TCP_FASTOPEN = 0x03060000, "a TCP fast open option is in use"
    SUBNET_MISMATCH = 0x03070000, "the two ends are in different IP subnets"
    NO_ACTIVE_LINK = 0x030A0000, "the link group has no active link"
    LINK_NOT_FOUND = 0x030B0000, "the server chose a link that this end does not know"
    VERSION_MISMATCH = 0x030C0000, "the two ends speak different protocol versions"
    NO_ROUTE = 0x030E0000, "no RDMA route to the peer's address"
    GATEWAY_MISMATCH = 0x030F0000, "one end reaches the other through a gateway, the other directly"
    OUT_OF_SYNC = 0x04000000, "the two ends do not agree on the state of the connection"
    PEER_DECLINED = 0x05000000, "the peer declined RDMA"
    INTERNAL = 0x09990000, "an internal error of the peer's SMC"
    INTERNAL_RTOKEN = 0x09990001, "no free slot for the peer's memory key"
    INTERNAL_READY_LINK = 0x09990002, "the link could not be made ready"
    INTERNAL_REGISTER = 0x09990003, "the ring buffer could not be registered"

    DISABLED = 0x0A1D0001, "RDMA is switched off by configuration (mode tcp or device none)"
    NO_PYVERBS = 0x0A1D0002, "pyverbs is not installed for this Python (apt install python3-pyverbs)"
    NO_SOFT_DEVICE = 0x0A1D0003, "the software RDMA device could not be loaded"
    OTHER_PYTHON = 0x0A1D0004, "aiordma's compiled modules or pyverbs belong to another Python version"
    PLAIN_TCP_PEER = 0x0A1D0005, "the peer speaks plain TCP"
    TLS_PAYLOAD_POLICY = 0x0A1D0006, "the connection uses TLS, and payload outside TLS is not allowed"
    PEER_UNREACHABLE = 0x0A1D0007, "the two RDMA devices cannot reach each other"
    LIMIT_REACHED = 0x0A1D0008, "a configured limit on memory or connections was reached"
    PROTOCOL_VIOLATION = 0x0A1D0009, "the peer broke the negotiation protocol"
    DEVICE_FAILURE = 0x0A1D000A, "the RDMA device failed while the connection was set up"
    TICKET_UNKNOWN = (
        0x0A1D000D,
        "the stream was opened with a ticket, and the server that answered does not know the ticket",
    )
    SHUTTING_DOWN = 0x0A1D000B, "the RDMA engine of this event loop is shutting down"
    NEEDS_RDMA_CM = (
        0x0A1D000E,
        "one RDMA device connects through rdma_cm only (iWARP), and an end has no rdma_cm",
    )
    DRAINED = 0x0A1D000F, "the RDMA device was drained on request: connections use TCP until that is revoked"
    OTHER_USER = (
        0x0A1D0011,
        "the two ends run as different users of one host, and software devices share memory within one user "
        "only: run both as the same user",
    )
    OTHER_NAMESPACE = (
        0x0A1D0012,
        "the two ends are in different network namespaces (containers) of one host, and software devices "
        "share memory within one only: share the namespace, or set SOFTDEV_WIRE=auto at both ends",
    )
    PLAIN_UDP_PEER = 0x0A1D0010, "the peer speaks plain UDP"
    WRONG_KIND = 0x0A1D000C, "the two ends expect different kinds of connection"
    LINK_LOST = 0x0A1D0020, "the RDMA link was lost; the stream failed over to its TCP connection"
    SWITCHED = 0x0A1D0021, "the stream was switched to its TCP connection on request"
    FAILOVER_REFUSED = 0x0A1D0023, "the stream was already broken when its peer began the TCP failover"
    FAILOVER_OFF = 0x0A1D0022, "TCP failover is switched off (failover_timeout_ms is 0)"
    PEER_DOES_NOT_READ = (
        0x0A1D0024,
        "the peer has not read what was sent before: the stream returns to RDMA when it has",
    )


def describe(code: int) -> str:
    """The text of ``code``; an unknown code is named by its number."""
    try:
        return Code(code).text  # type: ignore[call-arg]
    except ValueError:
        return f"unknown reason 0x{code:08x}"
