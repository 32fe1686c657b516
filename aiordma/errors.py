"""The exception tree, the fallback reasons, and the translations between families of errors.

Three families. *Stream-level* errors are anyio's own classes (``ClosedResourceError``,
``BrokenResourceError``, ``EndOfStream``, ``BusyResourceError``, ``WouldBlock``); on the asyncio surface they
are the built-in ``ConnectionError`` classes. *Protocol* errors are :class:`LocalProtocolError` and
:class:`RemoteProtocolError`. *Device* errors are :class:`VerbsError` and :class:`CompletionError`. Where
the last two end a stream, they are the ``__cause__`` of an error of the first family:
:func:`as_connection_error` makes asyncio's.
"""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import dataclass, field
from typing import Any

import anyio

from .proto.codes import Code, describe
from .proto.errors import AioRdmaError, LocalProtocolError, ProtocolError, RemoteProtocolError

__all__ = [
    "AioRdmaError",
    "Code",
    "CompletionError",
    "FallbackReason",
    "IncompleteRead",
    "LinkError",
    "LocalProtocolError",
    "NegotiationError",
    "ProtocolError",
    "RemoteProtocolError",
    "VerbsError",
    "as_connection_error",
    "describe",
    "remedy",
    "wc_status_name",
]

# enum ibv_wc_status of infiniband/verbs.h, in order.
_WC_STATUS = (
    "SUCCESS",
    "LOC_LEN_ERR",
    "LOC_QP_OP_ERR",
    "LOC_EEC_OP_ERR",
    "LOC_PROT_ERR",
    "WR_FLUSH_ERR",
    "MW_BIND_ERR",
    "BAD_RESP_ERR",
    "LOC_ACCESS_ERR",
    "REM_INV_REQ_ERR",
    "REM_ACCESS_ERR",
    "REM_OP_ERR",
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "LOC_RDD_VIOL_ERR",
    "REM_INV_RD_REQ_ERR",
    "REM_ABORT_ERR",
    "INV_EECN_ERR",
    "INV_EEC_STATE_ERR",
    "FATAL_ERR",
    "RESP_TIMEOUT_ERR",
    "GENERAL_ERR",
    "TM_ERR",
    "TM_RNDV_INCOMPLETE",
)

_WC_HINT = {
    "RETRY_EXC_ERR": "the peer's QP did not answer: it is gone, was reset, or the network lost every retry",
    "RNR_RETRY_EXC_ERR": "the peer had no receive posted",
    "REM_ACCESS_ERR": "the peer refused the remote key, address or access right",
    "LOC_PROT_ERR": "the local memory key or address is not valid for this operation",
    "WR_FLUSH_ERR": "the QP went to the error state before this request ran; see the first error",
}


def wc_status_name(status: int) -> str:
    """Name of a completion status (``ibv_wc_status``) without its ``IBV_WC_`` prefix."""
    return _WC_STATUS[status] if 0 <= status < len(_WC_STATUS) else f"STATUS_{status}"


def remedy(number: int) -> str:
    """What is used up, and what helps, for an errno of want of descriptors or memory; "" for others."""
    if number == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"this process has no file descriptors left (limit {limit}); raise it with ulimit -n"
    if number == errno.ENFILE:
        return "the system has no file descriptors left; raise it with sysctl fs.file-max"
    if number == errno.ENOMEM:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            return f"the limit of this process's address space is {limit} bytes; raise it with ulimit -v"
        return "the kernel has no memory for it; see the limits of the cgroup and locked memory (ulimit -l)"
    if number == errno.ENOSPC:
        return "the memory of the host or of the cgroup is used up"
    return ""


class VerbsError(AioRdmaError, OSError):
    """A verbs call failed.

    :param errno: the error number of the call (0: it set none).
    :param operation: the verbs call: ``"ibv_create_qp"``.
    :param detail: its arguments, and what can be done about the failure.
    """

    def __init__(self, errno: int, operation: str, detail: str = "") -> None:
        errno = abs(errno)  # qedr, siw and erdma return it negative from ibv_post_send and ibv_post_recv
        reason = os.strerror(errno) if errno else "failed without an error number"
        notes = "; ".join(note for note in (detail, remedy(errno)) if note)
        OSError.__init__(self, errno, f"{operation}: {reason}" + (f" ({notes})" if notes else ""))
        self.operation = operation
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errno or 0, self.operation, self.detail)


class CompletionError(AioRdmaError):
    """A work request completed with an error status.

    :param status: ``ibv_wc_status`` as a number; ``status_name`` is its name.
    :param vendor_err: the vendor's own code.
    :param opcode: name of the operation that failed (``"RDMA_WRITE"``).
    :param qp_num: number of the local QP.
    """

    def __init__(self, status: int, vendor_err: int = 0, opcode: str = "?", qp_num: int = 0) -> None:
        self.status = status
        self.status_name = wc_status_name(status)
        self.vendor_err = vendor_err
        self.opcode = opcode
        self.qp_num = qp_num
        hint = _WC_HINT.get(self.status_name)
        super().__init__(
            f"{opcode} on QP {qp_num} failed: {self.status_name} (vendor error 0x{vendor_err:x})"
            + (f": {hint}" if hint else "")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.vendor_err, self.opcode, self.qp_num)


class IncompleteRead(anyio.IncompleteRead, EOFError):
    """The peer finished before as many bytes came as were asked for (attributes: as in asyncio).

    :param partial: what came. For ``receive_exactly_into()`` a view of what was filled.
    :param expected: how many bytes were asked for.
    """

    def __init__(self, partial: bytes | memoryview, expected: int) -> None:
        Exception.__init__(self, f"the peer finished after {len(partial)} of {expected} expected bytes")
        self.partial = partial
        self.expected = expected

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (bytes(self.partial), self.expected)


class LinkError(AioRdmaError):
    """A link (the RC QP between two engines) is broken, and with it every connection on it.

    :param reason: what happened.
    :param peer: the other end, host and port.
    """

    def __init__(self, reason: str, peer: str = "") -> None:
        super().__init__(f"link to {peer} lost: {reason}" if peer else f"link lost: {reason}")
        self.reason = reason
        self.peer = peer

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.peer)


class NegotiationError(AioRdmaError, ConnectionError):
    """RDMA is not available for this connection.

    :param code: a :class:`Code`, or an unknown code that the peer sent.
    :param text: details; without it the code's own text is used.
    """

    def __init__(self, code: int, text: str = "") -> None:
        message = describe(code)
        if text:
            message = f"{message}: {text}"
        OSError.__init__(self, f"{message} (0x{code:08x})")
        self.strerror = message  # which is what many programs show of an OSError
        self.code = code
        self.text = message
        self.detail = text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.detail)


def _named(code: int) -> int:
    """The :class:`Code` of a number, if it has one."""
    try:
        return Code(code)  # type: ignore[call-arg]
    except ValueError:
        return code


@dataclass(frozen=True, slots=True)
class FallbackReason:
    """Why a stream runs on TCP. ``str()`` follows ``smcss``: ``TCP 0xlocal/0xpeer: text``."""

    code: int
    """The deciding reason: one of :class:`Code`, unless the peer is newer than this end."""
    text: str
    """The reason in one sentence."""
    local: int
    """What this end stated; ``Code.PEER_DECLINED`` when the peer decided."""
    peer: int | None = None
    """The diagnosis that the peer sent; None when it sent none."""
    spoke: bool = field(default=False, compare=False, repr=False)
    """The peer has said something else than a negotiation does. Silence has other reasons, too."""

    @classmethod
    def of_local(cls, code: int, detail: str = "", *, spoke: bool = False) -> FallbackReason:
        """This end decided, for ``code``."""
        text = describe(code)
        return cls(_named(code), f"{text}: {detail}" if detail else text, _named(code), spoke=spoke)

    @classmethod
    def of_peer(cls, diagnosis: int) -> FallbackReason:
        """The peer declined with ``diagnosis``."""
        text = f"the peer declined: {describe(diagnosis)}"
        return cls(_named(diagnosis), text, Code.PEER_DECLINED, _named(diagnosis))

    @classmethod
    def of_error(cls, error: NegotiationError) -> FallbackReason:
        """This end decided because of ``error``."""
        return cls(_named(error.code), error.text, _named(error.code))

    def __str__(self) -> str:
        peer = "" if self.peer is None else f"/0x{self.peer:08x}"
        return f"TCP 0x{self.local:08x}{peer}: {self.text}"


def as_connection_error(exc: BaseException) -> OSError:
    """The built-in error that asyncio's users expect.

    :return: ``exc`` itself if it is a ``ConnectionError``, else a ``ConnectionResetError`` with ``exc`` as
        its cause.
    """
    if isinstance(exc, ConnectionError):
        return exc
    error = ConnectionResetError(str(exc) or type(exc).__name__)
    error.strerror = str(error)  # which is what many programs show of an OSError
    error.__cause__ = exc
    return error
