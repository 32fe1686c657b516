"""The software device's library: found, loaded, and asked.

``libsoftdev.so`` exports the public ``ibv_*`` functions and answers for its own device; everything else
it hands on to the real libibverbs. For pyverbs to see it, it must be in the process's global symbol scope
before pyverbs' modules are loaded, so this module imports neither pyverbs nor anything that does.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..errors import NegotiationError

LIBRARY = "libsoftdev.so"
#: What is counted of packets to and from other hosts (softdev.h explains each).
WIRE_COUNTERS = (
    "sent",
    "runs",
    "received",
    "send_failed",
    "malformed",
    "bad_icrc",
    "no_qp",
    "wrong_peer",
    "forwarded",
    "marked",
    "cnps_sent",
    "cnps_received",
    "paced",
)

#: What compiled modules call.
BY_ADDRESS = ("softdev_holds", "softdev_will", "softdev_note", "softdev_expect")

_loaded: SoftLibrary | None = None


class Shortage(NamedTuple):
    """What a connection lacked."""

    text: str
    #: 0: it was the peer's process that lacked it.
    errno: int

    def error(self) -> NegotiationError:
        """What the connection fails with."""
        from ..errors import Code, NegotiationError  # not needed on the way of a connect

        error = NegotiationError(Code.DEVICE_FAILURE, self.text)
        error.__cause__ = OSError(self.errno, self.text) if self.errno else None
        return error


class _Handle(ctypes.CDLL):
    """The library; a function that it lacks is named with what to do."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), mode=ctypes.RTLD_GLOBAL, use_errno=True)
        self.path = path

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):
                raise
            raise OSError(
                errno.ENOENT,
                f"{self.path} has no {name}(): it is older than this aiordma, and not installed with it; "
                "install aiordma again (pip install --force-reinstall aiordma), or remove that file",
            ) from None


class SoftLibrary:
    """The loaded library (once per process, see :func:`load`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lib = _Handle(path)
        self._handle = lib
        self._calls = lib.softdev_calls
        self._calls.restype = ctypes.c_uint64
        self._calls.argtypes = []
        self._rnr = lib.softdev_rnr
        self._rnr.restype = ctypes.c_uint64
        self._rnr.argtypes = []
        self._shortage = lib.softdev_shortage
        self._shortage.restype = ctypes.c_int
        self._shortage.argtypes = [ctypes.c_int]
        self._wire_count = lib.softdev_wire_count
        self._wire_count.restype = ctypes.c_uint64
        self._wire_count.argtypes = [ctypes.c_char_p]
        self._is = lib.softdev_is
        self._is.restype = ctypes.c_int
        self._is.argtypes = [ctypes.c_void_p]
        self._alloc = lib.softdev_alloc
        self._alloc.restype = ctypes.c_void_p
        self._alloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._free = lib.softdev_free
        self._free.restype = ctypes.c_int
        self._free.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        lib.softdev_layout.restype = ctypes.c_uint
        lib.softdev_layout.argtypes = []
        #: Of the memory that processes share; only equal ones share any.
        self.layout = int(lib.softdev_layout())
        #: Its queue pairs are connected through rdma_cm, and only so: for tests (softdev/personalities).
        self.by_cm = bool(lib.softdev_by_cm())
        self._shown = 1
        self._devices = lib.softdev_devices
        self._devices.restype = ctypes.c_int
        self._devices.argtypes = [ctypes.c_uint]
        self._port = lib.softdev_port
        self._port.restype = ctypes.c_int
        self._port.argtypes = [ctypes.c_char_p, ctypes.c_int]
        self._kill = lib.softdev_kill
        self._kill.restype = ctypes.c_int
        self._kill.argtypes = [ctypes.c_char_p]
        self._astray = lib.softdev_astray
        self._astray.restype = ctypes.c_void_p
        self._astray.argtypes = [ctypes.c_void_p]
        self._left_whole = lib.softdev_left_whole
        self._left_whole.restype = ctypes.c_int
        self._left_whole.argtypes = [ctypes.c_void_p]
        self._left_note = lib.softdev_left_note
        self._left_note.restype = ctypes.c_uint64
        self._left_note.argtypes = [ctypes.c_void_p]
        for name in (*BY_ADDRESS, "softdev_reached"):  # said now, and not when the first queue pair is made
            getattr(lib, name)

    def calls(self) -> int:
        """How many ``ibv_*`` calls came through the library: proof that it is interposed."""
        return int(self._calls())

    def choose(self, word: str) -> None:
        """``soft``: ``rdma_cm`` is the device's in any case; ``none``: there is no software device."""
        self._handle.softdev_choose(word.encode())

    def rnr(self) -> int:
        """How often a message for this process found no receive posted (receiver not ready), with retries."""
        return int(self._rnr())

    def shortage(self) -> Shortage | None:
        """What a connection lacked since the last call, here or in the peer's process; None: nothing."""
        from ..errors import remedy  # not needed on the way of a connect

        if number := int(self._shortage(0)):
            return Shortage(remedy(number) or os.strerror(number), number)
        if number := int(self._shortage(1)):
            text = f"the peer's process could not get what the connection needs: {os.strerror(number)}"
            return Shortage(text, 0)
        return None

    def wire_counters(self) -> dict[str, int]:
        """This process's packets to and from other hosts (:data:`WIRE_COUNTERS`)."""
        return {name: int(self._wire_count(name.encode())) for name in WIRE_COUNTERS}

    def owns(self, context_pointer: int) -> bool:
        """Whether this ``struct ibv_context *`` is the software device's."""
        return bool(self._is(context_pointer))

    def show(self, devices: int) -> None:
        """Have the list of devices show at least so many of them. Raises OSError."""
        if devices <= self._shown:
            return
        self._shown = devices
        error = self._devices(devices)
        if error:
            raise OSError(error, f"the software device cannot be there {devices} times")

    def port(self, device: str, *, up: bool) -> None:
        """Take the port of a device down, or up again: for tests. Raises OSError."""
        error = self._port(device.encode(), up)
        if error:
            raise OSError(error, f"there is no software device {device}")

    def kill(self, device: str) -> None:
        """Let a device fail permanently; one that is opened anew works. For tests. Raises OSError."""
        error = self._kill(device.encode())
        if error:
            raise OSError(error, f"there is no software device {device}")

    def alloc(self, pd_pointer: int, length: int) -> int:
        """Address of ``length`` bytes that QP peers of this PD can map once registered. Raises OSError."""
        ctypes.set_errno(0)
        address = self._alloc(pd_pointer, length)
        if not address:
            from ..errors import remedy  # not needed on the way of a connect

            number = ctypes.get_errno()
            hint = remedy(number)
            raise OSError(
                number,
                f"the software device cannot allocate {length} bytes of shared memory: {os.strerror(number)}"
                + (f"; {hint}" if hint else ""),
            )
        return int(address)

    def free(self, pd_pointer: int, address: int, length: int) -> None:
        """Free memory of :meth:`alloc`, after it was deregistered. Raises OSError."""
        error = self._free(pd_pointer, address, length)
        if error:
            raise OSError(error, f"the software device does not take back {length} bytes at {address:#x}")

    def astray(self, qp_pointer: int) -> int:
        """Where this ``struct ibv_qp *`` counts WRITEs that posting did not carry out; 0: it is not ours."""
        return int(self._astray(qp_pointer) or 0)

    def reached(self, qp_pointer: int) -> bool:
        """Whether what is posted to this ``struct ibv_qp *`` outlives this process."""
        return bool(self._handle.softdev_reached(ctypes.c_void_p(qp_pointer)))

    def left_whole(self, qp_pointer: int) -> bool | None:
        """Whether the process at the other end of this ``struct ibv_qp *`` has ended, and left nothing undone
        of what it had accepted. None: it has not ended, and its end would show here."""
        answer = int(self._left_whole(qp_pointer))
        return None if answer < 0 else bool(answer)

    def left_note(self, qp_pointer: int) -> int:
        """The number that this process had left last (``softdev_note()``); 0: none."""
        return int(self._left_note(qp_pointer))

    def symbol(self, name: str) -> int:
        """Address of one of its functions."""
        return ctypes.cast(getattr(self._handle, name), ctypes.c_void_p).value or 0


def choice() -> str | None:
    """What AIORDMA_DEVICE says that the library must know, too: for rdma_cm, and for lists of devices."""
    word = os.environ.get("AIORDMA_DEVICE")
    return word if word in ("soft", "none") else None


def locate() -> Path | None:
    """Where the library is: in the package, or (editable installs) beside its compiled modules."""
    directories = [Path(__file__).parents[1]]
    spec = importlib.util.find_spec("aiordma._cq")
    if spec is not None and spec.origin:
        directories.append(Path(spec.origin).parent)
    for directory in directories:
        path = directory / LIBRARY
        if path.is_file():
            return path
    return None


def load() -> SoftLibrary:
    """Load the library into the process's global scope; the same object every time.

    Raises OSError when it is not installed or cannot be loaded.
    """
    global _loaded
    if _loaded is None:
        path = locate()
        if path is None:
            raise FileNotFoundError(
                f"{LIBRARY} is not installed: aiordma was built without the RDMA headers; install "
                "libibverbs-dev and librdmacm-dev, and install aiordma again"
            )
        _loaded = SoftLibrary(path)
        if word := choice():
            _loaded.choose(word)
    return _loaded


def loaded() -> SoftLibrary | None:
    """The library if this process has loaded it, without loading it."""
    return _loaded
