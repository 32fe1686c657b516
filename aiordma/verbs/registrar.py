"""Registered memory of a device, for the pool in memory.py."""

from __future__ import annotations

import ctypes
import mmap
from errno import ENOMEM
from typing import Any, NamedTuple

from ..errors import VerbsError
from .abi import Access
from .device import Backend, translated
from .lifetime import protect
from .memory import Region

_LOCAL = Access.LOCAL_WRITE
_REMOTE = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ


class DeviceRegistrar:
    """Registers memory in one protection domain.

    :param remote: give peers READ and WRITE access. Everyone with a QP in the same protection domain and
        knowledge of the rkey has it: use one protection domain per link group.

    On the software device the memory is shareable, so that a peer process can map it; on others it is
    anonymous memory kept out of forked children, whose copy-on-write would otherwise move pages away from
    under the device.
    """

    def __init__(self, backend: Backend, pd: Any, *, remote: bool) -> None:
        from .. import _accessors

        self.remote = remote
        self._backend = backend
        self._pd = pd
        self._pd_pointer: int = _accessors.pd_pointer(pd)

    def register(self, length: int) -> Region:
        """See Registrar. Raises VerbsError (an OSError)."""
        backend = self._backend
        backend.check_process()
        memory = _Shared(backend, self._pd_pointer, length) if backend.soft else _Anonymous(length)
        try:
            access = _REMOTE if self.remote else _LOCAL
            with translated(backend.pyverbs, "ibv_reg_mr", f"{length} bytes on {backend.name}"):
                region = protect(backend.pyverbs.MR(self._pd, length, int(access), memory.address))
        except BaseException:
            memory.free()
            raise
        return Region(memory.address, length, region.lkey, region.rkey, _Registered(region, memory))

    def release(self, region: Region) -> None:
        """See Registrar. Raises VerbsError; the memory is then kept, for the device may still use it."""
        if self._backend.in_forked_child:
            return
        assert isinstance(region.handle, _Registered)
        mr, memory = region.handle
        with translated(
            self._backend.pyverbs, "ibv_dereg_mr", f"{region.length} bytes on {self._backend.name}"
        ):
            mr.close()
        memory.free()


class _Registered(NamedTuple):
    mr: Any
    memory: _Shared | _Anonymous


class _Shared:
    """A slab of the software device."""

    def __init__(self, backend: Backend, pd_pointer: int, length: int) -> None:
        assert backend.soft is not None
        self._soft, self._pd_pointer, self._length = backend.soft, pd_pointer, length
        self.address = backend.soft.alloc(pd_pointer, length)

    def free(self) -> None:
        self._soft.free(self._pd_pointer, self.address, self._length)


class _Anonymous:
    """Private anonymous memory."""

    def __init__(self, length: int) -> None:
        try:
            self._map = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise VerbsError(getattr(error, "errno", ENOMEM), "mmap", f"{length} bytes") from error
        self._map.madvise(mmap.MADV_DONTFORK)
        # Holding the buffer keeps the mapping from being closed under the device.
        self._buffer: Any = (ctypes.c_char * length).from_buffer(self._map)
        self.address = ctypes.addressof(self._buffer)

    def free(self) -> None:
        self._buffer = None
        self._map.close()
