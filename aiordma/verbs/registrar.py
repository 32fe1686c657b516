"""Registered memory of a device, for the pool in memory.py."""

from __future__ import annotations

import ctypes
import mmap
import resource
from dataclasses import dataclass
from errno import ENOMEM
from pathlib import Path
from typing import Any

from ..errors import VerbsError
from .abi import Access
from .device import Backend, translated
from .lifetime import protect
from .memory.region import Region

_MADV_REMOVE = 9
_MAP_NORESERVE = 0x4000
#: Address space that is left to everything else, streams on TCP among it, where it is limited (ulimit -v).
_LEFT_BYTES = 64 * 1024 * 1024
_madvise = ctypes.CDLL(None).madvise

_LOCAL = Access.LOCAL_WRITE
_REMOTE = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ


class DeviceRegistrar:
    """Registers memory in one protection domain.

    :param remote: give peers READ and WRITE access. Everyone with a QP in the same protection domain and
        knowledge of the rkey has it: use one protection domain per link group.

    :param access: the access rights, instead of those that ``remote`` stands for.
    :param private: memory that is never shared with another process, and outlives its registration.

    On the software device the memory is shareable, so that a peer process can map it; on others it is
    anonymous memory kept out of forked children, whose copy-on-write would otherwise move pages away from
    under the device.
    """

    def __init__(
        self, backend: Backend, pd: Any, *, remote: bool, access: Access | None = None, private: bool = False
    ) -> None:
        self.remote = remote
        self._access = (_REMOTE if remote else _LOCAL) if access is None else access
        self._private = private
        self._backend = backend
        self._pd = pd
        self._pd_pointer: int = backend.binding.pointers.pd_pointer(pd)

    def register(self, length: int) -> Region:
        """See Registrar. Raises VerbsError (an OSError)."""
        backend = self._backend
        backend.check_process()
        _check_address_space(length)
        memory: _Shared | _Anonymous
        if backend.soft and not self._private:
            memory = _Shared(backend, self._pd_pointer, length)
        else:
            memory = _Anonymous(length, in_children=backend.is_soft)
        try:
            with translated(backend.binding, "ibv_reg_mr", f"{length} bytes on {backend.name}"):
                region = protect(backend.binding.MR(self._pd, length, int(self._access), memory.address))
        except BaseException:
            memory.free()
            raise
        return Region(memory.address, length, region.lkey, region.rkey, _Registered(region, memory))

    def release(self, region: Region) -> None:
        """See Registrar. Raises VerbsError; the memory is then kept, for the device may still use it."""
        if self._backend.in_forked_child:
            return
        self.withdraw(region)
        assert isinstance(region.handle, _Registered)
        region.handle.memory.free()

    def withdraw(self, region: Region) -> None:
        """Deregister, and keep the memory until ``release``. Raises VerbsError. Idempotent."""
        assert isinstance(region.handle, _Registered)
        mr, region.handle.mr = region.handle.mr, None
        if mr is not None and not self._backend.in_forked_child:
            with translated(
                self._backend.binding, "ibv_dereg_mr", f"{region.length} bytes on {self._backend.name}"
            ):
                mr.close()

    def empty(self, address: int, length: int) -> bool:
        """See Registrar. Only for shared memory of the software device: a card would use the old pages."""
        if self._backend.soft is None or self._private or _MEMORY_IS_COUNTED:
            return False
        result: int = _madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), _MADV_REMOVE)
        return result == 0


def _check_address_space(length: int) -> None:
    """:raises VerbsError: ``length`` bytes more would leave too little of the process's limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        mmap.mmap(-1, length + _LEFT_BYTES, flags=flags, prot=0).close()
    except (OSError, OverflowError) as error:
        text = f"{length} bytes, and {_LEFT_BYTES} that are left to others, of {limit} (ulimit -v)"
        raise VerbsError(ENOMEM, "mmap", text) from error


def _is_memory_counted() -> bool:
    """Whether the kernel may have no page left to put in the place of one that was given back, and would send
    SIGBUS to who touches it (``soft_memfd_strict()`` in ``softdev/src/base``)."""
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_bytes()[:1] == b"2"
    except OSError:
        return False


#: Read when this is imported: event loops use it, and must not wait for files.
_MEMORY_IS_COUNTED = _is_memory_counted()


@dataclass(slots=True, eq=False)
class _Registered:
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
    """Private anonymous memory.

    :param in_children: forked children have it, too. (A device would go on using the pages of one of both.)
    """

    def __init__(self, length: int, *, in_children: bool) -> None:
        try:
            self._map = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise VerbsError(getattr(error, "errno", ENOMEM), "mmap", f"{length} bytes") from error
        if not in_children:
            self._map.madvise(mmap.MADV_DONTFORK)
        # Holding the buffer keeps the mapping from being closed under the device.
        self._buffer: Any = (ctypes.c_char * length).from_buffer(self._map)
        self.address = ctypes.addressof(self._buffer)

    def free(self) -> None:
        self._buffer = None
        self._map.close()
