"""From a pyverbs object to the verbs object behind it.

pyverbs makes and modifies devices, PDs, MRs, CQs and QPs; the data path polls and posts on their C pointers,
which pyverbs does not give away (and two of its properties that seem to crash the interpreter). pvlayout.h
declares where they are.

Importing this module imports pyverbs. Only aiordma.verbs.backend may do so, after it has decided about the
software device: a pyverbs that is imported earlier stays bound to the real libibverbs.
"""
from libc.errno cimport errno
from libc.stdint cimport uintptr_t
from posix.unistd cimport close, pipe, read, write

from ._structs cimport IBV_TRANSPORT_IWARP, ibv_comp_channel, ibv_mr, ibv_pd, source_of

from ..errors import VerbsError


cdef object _closed(str what):
    return ValueError(f"this pyverbs {what} is closed: there is no verbs object behind it any more")


def context_pointer(Context context not None) -> int:
    """``struct ibv_context *`` as an integer. Raises ValueError when closed, like all functions here."""
    if context.context == NULL:
        raise _closed("Context")
    return <uintptr_t>context.context


def pd_pointer(PD pd not None) -> int:
    """``struct ibv_pd *`` as an integer."""
    if pd.pd == NULL:
        raise _closed("PD")
    return <uintptr_t>pd.pd


def pd_context(PD pd not None) -> int:
    """``struct ibv_context *`` of a protection domain as an integer."""
    if pd.pd == NULL:
        raise _closed("PD")
    return <uintptr_t>pd.pd.context


def comp_channel_pointer(CompChannel channel not None) -> int:
    """``struct ibv_comp_channel *`` as an integer."""
    if channel.channel == NULL:
        raise _closed("CompChannel")
    return <uintptr_t>channel.channel


def cq_pointer(CQ cq not None) -> int:
    """``struct ibv_cq *`` as an integer."""
    if cq.cq == NULL:
        raise _closed("CQ")
    return <uintptr_t>cq.cq


def qp_pointer(QP qp not None) -> int:
    """``struct ibv_qp *`` as an integer."""
    if qp.qp == NULL:
        raise _closed("QP")
    return <uintptr_t>qp.qp


def mr_pointer(MR mr not None) -> int:
    """``struct ibv_mr *`` as an integer."""
    if mr.mr == NULL:
        raise _closed("MR")
    return <uintptr_t>mr.mr


def mr_span(MR mr not None) -> tuple[int, int]:
    """Address and length of the memory of a region."""
    if mr.mr == NULL:
        raise _closed("MR")
    return <uintptr_t>mr.mr.addr, mr.mr.length


cdef bint _ah_proved = False


def ah_pointer(AH ah not None, PD pd not None) -> int:
    """``struct ibv_ah *`` as an integer, of an address handle made in ``pd``. The first time, it is proved that the
    pointer is where it is taken from. Raises RuntimeError where it is not."""
    global _ah_proved
    cdef int[2] fds
    cdef bint readable
    if ah.ah == NULL:
        raise _closed("AH")
    if not _ah_proved:
        if pipe(fds) != 0:
            raise VerbsError(errno, "pipe", "to check the layout of pyverbs' AH")
        readable = _readable(ah.ah, sizeof(void *) * 2, fds)
        close(fds[0])
        close(fds[1])
        if not readable or ah.ah.context != pd.pd.context or ah.ah.pd != pd.pd:
            raise RuntimeError("the C layout of pyverbs' AH is not the one aiordma was written for (rdma-core 39 to 65)")
        _ah_proved = True
    return <uintptr_t>ah.ah


def comp_channel_fd(CompChannel channel not None) -> int:
    """File descriptor on which completion events arrive (pyverbs has it only since rdma-core 57)."""
    if channel.channel == NULL:
        raise _closed("CompChannel")
    return channel.channel.fd


def async_fd(Context context not None) -> int:
    """File descriptor on which the device's asynchronous events arrive."""
    if context.context == NULL:
        raise _closed("Context")
    return context.context.async_fd


def is_iwarp(Context context not None) -> bool:
    """Whether the device speaks iWARP, which has no immediate data."""
    if context.context == NULL:
        raise _closed("Context")
    return context.context.device.transport_type == IBV_TRANSPORT_IWARP


def cq_depth(CQ cq not None) -> int:
    """Number of entries the device granted, at least what was asked for."""
    if cq.cq == NULL:
        raise _closed("CQ")
    return cq.cq.cqe


def async_event_source(AsyncEvent event not None) -> tuple[str, int]:
    """What an asynchronous event is about: ``("qp", QP number)``, ``("port", port number)``, ``("cq", pointer)``,
    ``("srq", pointer)`` or ``("device", 0)``. To be called before the event is acknowledged, while its object surely exists."""
    return source_of(&event.event)


cdef bint _readable(const void *address, size_t length, int[2] fds):
    # The kernel answers EFAULT where a plain load would end the process.
    cdef char sink[256]
    if write(fds[1], address, length) != <ssize_t>length:
        return False
    return read(fds[0], sink, length) == <ssize_t>length


def check(Context context not None, PD pd not None, CompChannel channel not None, CQ cq not None,
          QP qp not None, MR mr not None, *, qp_num: int, lkey: int, address: int) -> None:
    """Proves on live objects that pvlayout.h describes this pyverbs.

    All objects must be open and belong to one context: ``qp`` made with ``pd`` and ``cq`` for both directions,
    ``cq`` with ``channel``, ``mr`` with ``pd``. ``qp_num``, ``lkey`` and ``address`` are what pyverbs' own
    properties (and the caller's mapping) say. No unproven pointer is followed. Raises RuntimeError.
    """
    cdef int[2] fds
    cdef const void *pointers[6]
    cdef size_t sizes[6]
    cdef list names = ["Context", "PD", "CompChannel", "CQ", "QP", "MR"]
    cdef list wrong = []
    cdef int i
    pointers[:] = [context.context, pd.pd, channel.channel, cq.cq, qp.qp, mr.mr]
    # Enough of each struct to hold the fields compared below.
    sizes[:] = [sizeof(void *), sizeof(ibv_pd), sizeof(ibv_comp_channel), sizeof(void *) * 2,
                sizeof(void *) * 7, sizeof(ibv_mr)]
    if pipe(fds) != 0:
        raise VerbsError(errno, "pipe", "to check the layout of pyverbs' objects")
    try:
        for i in range(6):
            if pointers[i] == NULL or not _readable(pointers[i], sizes[i], fds):
                wrong.append(names[i])
    finally:
        close(fds[0])
        close(fds[1])
    if not wrong:
        if pd.pd.context != context.context:
            wrong.append("PD")
        if channel.channel.context != context.context:
            wrong.append("CompChannel")
        if cq.cq.context != context.context or cq.cq.channel != channel.channel:
            wrong.append("CQ")
        if (qp.qp.context != context.context or qp.qp.pd != pd.pd or qp.qp.send_cq != cq.cq
                or qp.qp.recv_cq != cq.cq or qp.qp.qp_num != qp_num):
            wrong.append("QP")
        if (mr.mr.context != context.context or mr.mr.pd != pd.pd or mr.mr.lkey != lkey
                or <uintptr_t>mr.mr.addr != address):
            wrong.append("MR")
    if wrong:
        raise RuntimeError(
            f"the C layout of pyverbs' {', '.join(wrong)} is not the one aiordma was written for (rdma-core 39 to "
            "65): RDMA stays off; install the distribution's python3-pyverbs, or report the pyverbs version")
