"""An open RDMA device: what it can do, and the port and GID that are used."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from dataclasses import dataclass, field
from errno import EOPNOTSUPP
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import Code, NegotiationError, VerbsError
from . import rdmacm
from .abi import IBV_LINK_LAYER_ETHERNET, AtomicCap, GidType, Mtu, PortState
from .lifetime import protect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .binding import Binding
    from .softlib import SoftLibrary


_ACTIVE = (PortState.ACTIVE, PortState.ACTIVE_DEFER)


@dataclass(slots=True)
class DeviceLimits:
    """What the device grants at most. ``max_inline_bytes`` is found by trying, at the first QP."""

    max_qp_wr: int
    max_sge: int
    max_cqe: int
    max_qp: int
    max_mr: int
    max_mr_bytes: int
    max_qp_rd_atom: int
    max_qp_init_rd_atom: int
    max_msg_bytes: int
    atomics: AtomicCap = AtomicCap.NONE
    max_inline_bytes: int = 0


class Gid(NamedTuple):
    """One entry of a port's GID table."""

    slot: int
    raw: bytes
    type: GidType


@dataclass(eq=False)
class Backend:
    """An open device with the port, GID and path MTU that aiordma uses on it.

    Each engine opens its own (:func:`aiordma.verbs.backend.open_backend`) and closes it at its end, after
    everything that was made on it.
    """

    name: str
    is_soft: bool
    is_iwarp: bool
    context: Any = field(repr=False)
    binding: Binding = field(repr=False)
    soft: SoftLibrary | None = field(repr=False)
    port: int
    gid: Gid
    #: Local identifier of the port on InfiniBand, 0 on Ethernet.
    lid: int
    mtu: Mtu
    limits: DeviceLimits
    pid: int = field(default_factory=os.getpid)
    #: Of a device that the program opened (:mod:`aiordma.verbs.adopted`): its PD, what must be held, and what
    #: is closed last.
    make_pd: Callable[[], Any] | None = field(default=None, repr=False)
    kept: Any = field(default=None, repr=False)
    after_close: Callable[[], object] | None = field(default=None, repr=False)

    @property
    def by_cm(self) -> bool:
        """Whether queue pairs are connected through rdma_cm, and only so."""
        return self.is_iwarp and (self.soft is None or self.soft.by_cm)

    def rdma_cm(self) -> ctypes.CDLL:
        """The rdma_cm of this device. :raises NegotiationError: there is none."""
        return rdmacm.load(None if self.soft is None else str(self.soft.path))

    @property
    def in_forked_child(self) -> bool:
        """Whether this process is not the one that opened the device."""
        return os.getpid() != self.pid

    def check_process(self) -> None:
        """Raises RuntimeError in a forked child: a device belongs to the process that opened it."""
        if self.in_forked_child:
            raise RuntimeError(
                f"RDMA device {self.name} was opened by process {self.pid} and cannot be used in its forked "
                f"child {os.getpid()}: open connections after the fork, or spawn processes"
            )

    def alloc_pd(self) -> Any:
        """A new protection domain (a PD of the binding). Raises VerbsError."""
        self.check_process()
        with translated(self.binding, "ibv_alloc_pd", f"device {self.name}"):
            return self.make_pd() if self.make_pd is not None else protect(self.binding.PD(self.context))

    def symbol(self, name: str) -> int:
        """Address of a libibverbs function as this device needs it (of the software device's own, if it is
        that).

        Raises NegotiationError when there is none.
        """
        try:
            if self.soft is not None:
                return self.soft.symbol(name)
            library = ctypes.CDLL("libibverbs.so.1")
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except (OSError, AttributeError) as error:
            raise NegotiationError(
                Code.NO_SMCR_DEVICE, f"no function {name} in libibverbs: {error}"
            ) from error

    def check_port(self) -> None:
        """:raises NegotiationError: the port is not active. :raises VerbsError: the query failed."""
        with translated(self.binding, "ibv_query_port", f"{self.name} port {self.port}"):
            state = self.context.query_port(self.port).state
        if state not in _ACTIVE:
            raise NegotiationError(Code.NO_SMCR_DEVICE, f"{self.name}: port {self.port} is not active")

    def close(self) -> None:
        """Close the device and what is still open on it. Idempotent; does nothing in a forked child."""
        if not self.in_forked_child:
            with translated(self.binding, "ibv_close_device", self.name):
                self.context.close()
                if self.after_close is not None:
                    self.after_close()


@contextlib.contextmanager
def translated(binding: Binding, operation: str, detail: str = "") -> Iterator[None]:
    """Turn the binding's errors into VerbsError with the errno, the call and what it was about."""
    try:
        yield
    except binding.error as error:
        raise VerbsError(_errno_of(error), operation, detail) from error


def register_dmabuf(backend: Backend, pd: Any, fd: int, offset: int, length: int, access: int) -> Any:
    """An MR of the binding for bytes of a dma-buf; work requests name them by their offset in it.

    :raises VerbsError: the device cannot (EOPNOTSUPP), or the system refuses.
    """
    what = f"{length} bytes of a dma-buf on {backend.name}"
    if backend.binding.DmaBufMR is None:
        raise VerbsError(EOPNOTSUPP, "ibv_reg_dmabuf_mr", f"{what}: this pyverbs has no DmaBufMR")
    with translated(backend.binding, "ibv_reg_dmabuf_mr", what):
        return protect(backend.binding.DmaBufMR(pd, length, int(access), fd, offset=offset))


def _errno_of(error: Exception) -> int:
    # pyverbs uses -1 for "unknown", and hands some calls' negative results on as they are.
    code = getattr(error, "error_code", -1)
    return 0 if not isinstance(code, int) or code == -1 else abs(code)


def inspect(
    name: str, context: Any, binding: Binding, soft: SoftLibrary | None, is_iwarp: bool, only_port: int = 0
) -> Backend:
    """A :class:`Backend` for an open context: finds an active port, its best GID and the limits.

    :param only_port: the port to be used; 0: any.
    Raises NegotiationError when no port is usable.
    """
    with translated(binding, "ibv_query_device", name):
        device = context.query_device()
    seen = []
    if only_port > device.phys_port_cnt:
        seen.append(f"it has {device.phys_port_cnt} port(s), not a port {only_port}")
    for port in range(1, device.phys_port_cnt + 1):
        if only_port not in (0, port):
            continue
        with translated(binding, "ibv_query_port", f"{name} port {port}"):
            attr = context.query_port(port)
        if attr.state not in _ACTIVE:
            seen.append(f"port {port} is not active")
            continue
        ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET
        slots = attr.gid_tbl_len * device.phys_port_cnt
        gid = best_gid(_gids(context, binding, port, slots, ethernet))
        if gid is None and is_iwarp:
            gid = Gid(0, bytes(16), GidType.IB)  # an Ethernet address or nothing; no peer is found by it
        if gid is None:
            seen.append(f"port {port} has no GID (has its interface an IP address?)")
            continue
        limits = DeviceLimits(
            max_qp_wr=device.max_qp_wr,
            max_sge=device.max_sge,
            max_cqe=device.max_cqe,
            max_qp=device.max_qp,
            max_mr=device.max_mr,
            max_mr_bytes=device.max_mr_size,
            max_qp_rd_atom=device.max_qp_rd_atom,
            max_qp_init_rd_atom=device.max_qp_init_rd_atom,
            max_msg_bytes=attr.max_msg_sz,
            atomics=AtomicCap(device.atomic_caps),
        )
        return Backend(
            name=name,
            is_soft=soft is not None,
            is_iwarp=is_iwarp,
            context=context,
            binding=binding,
            soft=soft,
            port=port,
            gid=gid,
            lid=attr.lid,
            mtu=Mtu(attr.active_mtu),
            limits=limits,
        )
    raise NegotiationError(Code.NO_SMCR_DEVICE, f"{name}: {'; '.join(seen) or 'it has no port'}")


def _gids(context: Any, binding: Binding, port: int, slots: int, ethernet: bool) -> list[Gid]:
    # In one call: a NIC's table has hundreds of slots, rxe's 1024, and nearly all of them are empty.
    with translated(binding, "ibv_query_gid_table", f"port {port}"):
        entries = context.query_gid_table(slots)
    gids = []
    for entry in entries:
        raw = b"".join(
            half.to_bytes(8, sys.byteorder) for half in (entry.gid_subnet_prefix, entry.gid_interface_id)
        )
        if entry.port_num == port and any(raw[8:]):
            gids.append(Gid(entry.gid_index, raw, GidType(entry.gid_type) if ethernet else GidType.IB))
    return gids


def best_gid(gids: list[Gid]) -> Gid | None:
    """The GID to use: RoCEv2 on an IPv4 address, on a routable IPv6 one, on a link-local one; then others."""

    def rank(gid: Gid) -> tuple[bool, bool, bool, int]:
        ipv4 = gid.raw[:12] == bytes(10) + b"\xff\xff"
        link_local = gid.raw[:2] == b"\xfe\x80"
        loopback = ipv4 and gid.raw[12] == 127
        return gid.type != GidType.ROCE_V2, loopback, link_local, 0 if ipv4 else 1

    return min(gids, key=lambda gid: (rank(gid), gid.slot), default=None)


def format_gid(raw: bytes) -> str:
    """The eight-word notation that a binding reads: ``0000:0000:0000:0000:0000:ffff:7f00:0001``."""
    if len(raw) != 16:
        raise ValueError(f"a GID has 16 bytes, not {len(raw)}")
    return raw.hex(":", 2)
