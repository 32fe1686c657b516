"""librdmacm, as far as connecting a queue pair of one's own needs it (rdma-core's librdmacm/rdma_cma.h).

iWARP's queue pairs run on TCP connections, which the kernel makes: they are connected through rdma_cm and in
no other way. A queue pair that was made with libibverbs takes part by its number. On InfiniBand and RoCE,
rdma_cm finds a server by address and port, and says with which attributes the queue pair is to be connected.
The library is loaded when the first such connection is made; no other program needs it.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import functools
import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import Code, NegotiationError, VerbsError

_NODE = Path("/dev/infiniband/rdma_cm")
_PS_TCP = 0x0106
_BACKLOG = 16


class CmEvent(enum.IntEnum):
    """``enum rdma_cm_event_type``."""

    ADDR_RESOLVED = 0
    ADDR_ERROR = 1
    ROUTE_RESOLVED = 2
    ROUTE_ERROR = 3
    CONNECT_REQUEST = 4
    CONNECT_RESPONSE = 5
    CONNECT_ERROR = 6
    UNREACHABLE = 7
    REJECTED = 8
    ESTABLISHED = 9
    DISCONNECTED = 10
    DEVICE_REMOVAL = 11
    MULTICAST_JOIN = 12
    MULTICAST_ERROR = 13
    ADDR_CHANGE = 14
    TIMEWAIT_EXIT = 15


class _Id(ctypes.Structure):
    """``struct rdma_cm_id`` up to its source address. A ``struct ibv_context`` begins with its device."""

    _fields_ = (
        ("verbs", ctypes.POINTER(ctypes.c_void_p)),
        ("channel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("qp", ctypes.c_void_p),
        ("source", ctypes.c_uint8 * 28),
    )


#: Room for ``struct ibv_qp_attr`` of any release; it begins with the state that is asked for.
_ATTRIBUTES = ctypes.c_uint32 * 64
#: Where in it the wait is that this end asks for when it has no receive posted. rdma_cm's is 655 ms.
_MIN_RNR_TIMER, _SHORT_RNR_TIMER = 128, 12  # 0.64 ms


class _ConnParam(ctypes.Structure):
    """``struct rdma_conn_param``."""

    _fields_ = (
        ("private_data", ctypes.c_void_p),
        ("private_data_len", ctypes.c_uint8),
        ("responder_resources", ctypes.c_uint8),
        ("initiator_depth", ctypes.c_uint8),
        ("flow_control", ctypes.c_uint8),
        ("retry_count", ctypes.c_uint8),
        ("rnr_retry_count", ctypes.c_uint8),
        ("srq", ctypes.c_uint8),
        ("qp_num", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """``struct rdma_cm_event`` of a connection."""

    _fields_ = (
        ("id", ctypes.c_void_p),
        ("listen_id", ctypes.c_void_p),
        ("event", ctypes.c_int),
        ("status", ctypes.c_int),
        ("conn", _ConnParam),
    )


class _EventChannel(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int),)


class Event(NamedTuple):
    """One event, acknowledged already."""

    #: The identifier that it is about: of a CONNECT_REQUEST a new one.
    id: int
    type: int
    #: 0, a negative errno, or why the peer rejected.
    status: int
    private_data: bytes
    #: READs at a time: that this end may have under way, and that it shall answer.
    initiator_depth: int
    responder_resources: int

    def __str__(self) -> str:
        try:
            name = CmEvent(self.type).name
        except ValueError:
            name = f"event {self.type}"
        if self.status < 0:
            return f"{name}, {os.strerror(-self.status)}"
        return f"{name}, reason {self.status}" if self.status else name


@functools.cache
def load(path: str | None = None) -> ctypes.CDLL:
    """The library: librdmacm, or the software device's at ``path``.

    :raises NegotiationError: it is not there, or the kernel's half is not.
    """
    try:
        library = ctypes.CDLL(path or "librdmacm.so.1", use_errno=True)
    except OSError as error:
        raise NegotiationError(
            Code.NEEDS_RDMA_CM, f"{error}; install it (apt-get install librdmacm1)"
        ) from error
    if path is None and not os.access(_NODE, os.R_OK | os.W_OK):
        what = "no permission for" if _NODE.exists() else "the kernel module rdma_ucm is not loaded: no"
        raise NegotiationError(Code.NEEDS_RDMA_CM, f"{what} {_NODE}")
    pointer, number = ctypes.c_void_p, ctypes.c_int
    signatures: tuple[tuple[Any, ...], ...] = (
        ("create_event_channel", ctypes.POINTER(_EventChannel)),
        ("destroy_event_channel", None, ctypes.POINTER(_EventChannel)),
        ("create_id", number, ctypes.POINTER(_EventChannel), ctypes.POINTER(pointer), pointer, number),
        ("destroy_id", number, pointer),
        ("set_option", number, pointer, number, number, pointer, ctypes.c_size_t),
        ("bind_addr", number, pointer, ctypes.c_char_p),
        ("listen", number, pointer, number),
        ("get_src_port", ctypes.c_uint16, pointer),
        ("resolve_addr", number, pointer, pointer, ctypes.c_char_p, number),
        ("resolve_route", number, pointer, number),
        ("connect", number, pointer, ctypes.POINTER(_ConnParam)),
        ("accept", number, pointer, ctypes.POINTER(_ConnParam)),
        ("reject", number, pointer, pointer, ctypes.c_uint8),
        ("init_qp_attr", number, pointer, pointer, ctypes.POINTER(number)),
        ("establish", number, pointer),
        ("disconnect", number, pointer),
        ("get_cm_event", number, ctypes.POINTER(_EventChannel), ctypes.POINTER(ctypes.POINTER(_Event))),
        ("ack_cm_event", number, ctypes.POINTER(_Event)),
    )
    for name, result, *arguments in signatures:
        function = library["rdma_" + name]
        function.restype, function.argtypes = result, arguments
        setattr(library, "rdma_" + name, function)
    # librdmacm is linked with libibverbs, so the name is found there.
    library.ibv_get_device_name.restype = ctypes.c_char_p
    library.ibv_get_device_name.argtypes = (pointer,)
    return library


def sockaddr(host: str, port: int) -> bytes:
    """``struct sockaddr_in`` or ``sockaddr_in6``. :raises ValueError: not an IP address without a scope."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv4Address):
        return struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, address.packed)
    if address.scope_id is not None:
        raise ValueError(f"{host} has a scope")
    return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI16sI", port, 0, address.packed, 0)


def number_of(error: VerbsError | MemoryError) -> int:
    """The error number of a failure of :meth:`EventChannel.next_event`."""
    return errno.ENOMEM if isinstance(error, MemoryError) else error.errno or errno.EIO


class EventChannel:
    """Where events of identifiers arrive. Watch :attr:`fd` for readability."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self._channel = self.library.rdma_create_event_channel()
        if not self._channel:
            raise _failed("rdma_create_event_channel")
        self.fd: int = self._channel.contents.fd
        os.set_blocking(self.fd, False)

    def create_id(self) -> int:
        """A new identifier of a connection. :raises VerbsError:"""
        made = ctypes.c_void_p()
        if self.library.rdma_create_id(self._channel, ctypes.byref(made), None, _PS_TCP):
            raise _failed("rdma_create_id")
        return made.value or 0

    def next_event(self) -> Event | None:
        """The next one, if there is one. :raises VerbsError:"""
        event = ctypes.POINTER(_Event)()
        if self.library.rdma_get_cm_event(self._channel, ctypes.byref(event)):
            if ctypes.get_errno() in (errno.EAGAIN, errno.EINTR):
                return None
            raise _failed("rdma_get_cm_event")
        try:
            found = event.contents
            conn = found.conn
            size = conn.private_data_len if conn.private_data else 0
            return Event(
                found.id,
                found.event,
                found.status,
                ctypes.string_at(conn.private_data, size) if size else b"",
                conn.initiator_depth,
                conn.responder_resources,
            )
        finally:
            # Also where there is no memory for a copy: an identifier is not destroyed before that.
            self.library.rdma_ack_cm_event(event)

    def close(self) -> None:
        """All identifiers must be gone. Idempotent."""
        channel, self._channel = self._channel, None
        if channel:
            self.library.rdma_destroy_event_channel(channel)


class ConnectionId:
    """An identifier (``struct rdma_cm_id``): an end of a connection, or a listener. All raise VerbsError."""

    def __init__(self, channel: EventChannel, handle: int | None = None) -> None:
        self._library = channel.library
        self.handle = channel.create_id() if handle is None else handle

    @property
    def device(self) -> str:
        """Name of the device that its address belongs to; empty as long as that is not known."""
        verbs = _Id.from_address(self.handle).verbs
        if not verbs:
            return ""
        name = self._library.ibv_get_device_name(verbs[0])
        return name.decode() if name else ""

    @property
    def local_address(self) -> tuple[str, int]:
        """Where it connects from, once the server's address is resolved."""
        source = bytes(_Id.from_address(self.handle).source)
        (family,) = struct.unpack_from("=H", source)
        port: int = struct.unpack_from("!H", source, 2)[0]
        packed = source[4:8] if family == socket.AF_INET else source[8:24]
        return str(ipaddress.ip_address(packed)), port

    def set_traffic_class(self, traffic_class: int) -> None:
        """Of what the connection sends, and of those that a listener accepts. Call it first. The two bits of
        ECN are left out: on iWARP they are TCP's."""
        tos = ctypes.c_uint8(traffic_class & ~3)
        result = self._library.rdma_set_option(self.handle, 0, 0, ctypes.byref(tos), 1)
        self._check("rdma_set_option", result)

    def listen(self, address: bytes) -> int:
        """Listen there; returns the port."""
        self._check("rdma_bind_addr", self._library.rdma_bind_addr(self.handle, address))
        self._check("rdma_listen", self._library.rdma_listen(self.handle, _BACKLOG))
        return socket.ntohs(self._library.rdma_get_src_port(self.handle))

    def resolve_address(self, address: bytes, milliseconds: int) -> None:
        """ADDR_RESOLVED or ADDR_ERROR follows."""
        result = self._library.rdma_resolve_addr(self.handle, None, address, milliseconds)
        self._check("rdma_resolve_addr", result)

    def resolve_route(self, milliseconds: int) -> None:
        """ROUTE_RESOLVED or ROUTE_ERROR follows."""
        self._check("rdma_resolve_route", self._library.rdma_resolve_route(self.handle, milliseconds))

    def connect(self, qp_number: int, depth: int, private_data: bytes) -> None:
        """ESTABLISHED, REJECTED or another event follows. May take time: siw waits for its TCP connection.

        :param depth: READs at a time, in either direction.
        """
        param = _param(qp_number, depth, depth, private_data)
        self._check("rdma_connect", self._library.rdma_connect(self.handle, ctypes.byref(param)))

    def accept(self, qp_number: int, initiator_depth: int, responder_resources: int) -> None:
        """ESTABLISHED follows."""
        param = _param(qp_number, initiator_depth, responder_resources, b"")
        self._check("rdma_accept", self._library.rdma_accept(self.handle, ctypes.byref(param)))

    def reject(self) -> None:
        self._check("rdma_reject", self._library.rdma_reject(self.handle, None, 0))

    def attributes(self, state: int) -> tuple[ctypes.Array[ctypes.c_uint32], int]:
        """``struct ibv_qp_attr`` and its mask, to bring a queue pair that is not the identifier's to a state.

        :param state: ``ibv_qp_state``: INIT; RTR and RTS after CONNECT_RESPONSE.
        """
        found, mask = _ATTRIBUTES(state), ctypes.c_int()
        result = self._library.rdma_init_qp_attr(self.handle, found, ctypes.byref(mask))
        self._check("rdma_init_qp_attr", result)
        ctypes.c_uint8.from_buffer(found, _MIN_RNR_TIMER).value = _SHORT_RNR_TIMER
        return found, mask.value

    def establish(self) -> None:
        """The queue pair is connected, after CONNECT_RESPONSE: tell the server."""
        self._check("rdma_establish", self._library.rdma_establish(self.handle))

    def disconnect(self) -> None:
        """End the connection; the other end gets DISCONNECTED."""
        self._check("rdma_disconnect", self._library.rdma_disconnect(self.handle))

    def close(self) -> None:
        """A connection ends here and now. Idempotent."""
        handle, self.handle = self.handle, 0
        if handle:
            self._library.rdma_destroy_id(handle)

    def _check(self, operation: str, result: int) -> None:
        if result:
            raise _failed(operation)


def _param(qp_number: int, initiator_depth: int, responder_resources: int, data: bytes) -> _ConnParam:
    return _ConnParam(
        private_data=ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p) if data else None,
        private_data_len=len(data),
        responder_resources=responder_resources,
        initiator_depth=initiator_depth,
        retry_count=7,
        rnr_retry_count=7,
        qp_num=qp_number,
    )


def _failed(operation: str) -> VerbsError:
    return VerbsError(ctypes.get_errno(), operation)
