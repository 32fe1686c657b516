"""What an installation lacks for RDMA: every error says what to do, and the first fallback is a warning.

It comes from the logger ``aiordma.clc`` and not from the module ``warnings``: it concerns who installs and
runs the program, not a line of its source; Python prints it where no logging is configured; and where
warnings are errors (``-W error``), a connection that may use TCP must not fail.
"""

from __future__ import annotations

import errno
import logging
import resource

from ..errors import Code, NegotiationError
from ..errors import remedy as used_up
from . import hardware

_log = logging.getLogger("aiordma.clc")

_DOCTOR = "`python -m aiordma doctor` shows what is missing"
_SOFT = "AIORDMA_DEVICE=soft uses the software device"

#: Reasons that lie in this machine's installation, with what to do if the error does not say it itself.
_REMEDIES: dict[int, str] = {
    Code.NO_PYVERBS: "",
    Code.OTHER_PYTHON: "",
    Code.CONFIGURATION: "",
    Code.NO_SOFT_DEVICE: "",
    Code.NO_DEVICE: _SOFT,
    Code.NO_SMCR_DEVICE: _SOFT,
}


def _of_errno(number: int) -> str:
    """What to do about an error of a verbs call; empty: it says nothing about the installation."""
    if number == errno.ENOMEM:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if soft == resource.RLIM_INFINITY or all(device.problem for device in hardware.scan()):
            return "free memory, or lower AIORDMA_MEMORY_LIMIT_BYTES"
        return (
            f"this process may lock {soft} bytes of memory, and RDMA devices of the kernel lock what they "
            "use: raise it (`ulimit -l unlimited`; containers: --ulimit memlock=-1)"
        )
    if number in (errno.EPERM, errno.EACCES):
        return "give this user access to /dev/infiniband (containers: --device /dev/infiniband)"
    return used_up(number) if number in (errno.EMFILE, errno.ENFILE) else ""


def _number(error: BaseException) -> int:
    """The errno of what caused it; 0: none of that is known."""
    cause = error.__cause__
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            return cause.errno
        cause = cause.__cause__ or cause.__context__
    return 0


def _remedy(error: NegotiationError) -> str | None:
    """None: the error does not come from the installation."""
    found = _of_errno(_number(error))
    if found and found in error.detail:
        return ""
    return found or _REMEDIES.get(error.code)


def with_remedy(error: NegotiationError, hint: str = _DOCTOR) -> NegotiationError:
    """The error with what to do about it, if it comes from the installation."""
    remedy = _remedy(error)
    if remedy is None or error.detail.endswith(_DOCTOR):
        return error
    explained = NegotiationError(error.code, "; ".join(filter(None, (error.detail, remedy, hint))))
    explained.__cause__ = error.__cause__
    return explained


class _Once:
    warned = False


def warn_once(error: NegotiationError) -> None:
    """A connection is about to use TCP because of ``error``: say so, the first time in this process that the
    installation is to blame, and not the peer or a setting.
    """
    if not _Once.warned and _remedy(error) is not None:
        _Once.warned = True
        _log.warning(
            "RDMA cannot be used, so connections run on TCP: %s. (AIORDMA_MODE=tcp: no RDMA and no warning; "
            "AIORDMA_MODE=rdma: an error instead.)",
            with_remedy(error).text,
        )
