"""The C pointers behind the objects of this binding, as the data path wants them.

The same functions as those of ``_accessors`` for pyverbs' objects. All raise ValueError when the object is closed.
"""
from libc.stdint cimport uintptr_t

from ._memory cimport MR
from ._objects cimport AH, CQ, PD, QP, AsyncEvent, CompChannel, Context
from .._structs cimport IBV_TRANSPORT_IWARP, ibv_comp_channel, ibv_context, ibv_cq, source_of


def context_pointer(Context context not None) -> int:
    """``struct ibv_context *`` as an integer."""
    return <uintptr_t>context.opened()


def pd_pointer(PD pd not None) -> int:
    """``struct ibv_pd *`` as an integer."""
    return <uintptr_t>pd.opened()


def comp_channel_pointer(CompChannel channel not None) -> int:
    """``struct ibv_comp_channel *`` as an integer."""
    return <uintptr_t>channel.opened()


def cq_pointer(CQ cq not None) -> int:
    """``struct ibv_cq *`` as an integer."""
    return <uintptr_t>cq.opened()


def qp_pointer(QP qp not None) -> int:
    """``struct ibv_qp *`` as an integer."""
    return <uintptr_t>qp.opened()


def mr_pointer(MR mr not None) -> int:
    """``struct ibv_mr *`` as an integer."""
    return <uintptr_t>mr.opened()


def ah_pointer(AH ah not None, PD pd not None) -> int:
    """``struct ibv_ah *`` as an integer, of an address handle made in ``pd``."""
    return <uintptr_t>ah.opened()


def comp_channel_fd(CompChannel channel not None) -> int:
    """File descriptor on which completion events arrive."""
    return (<ibv_comp_channel *>channel.opened()).fd


def async_fd(Context context not None) -> int:
    """File descriptor on which the device's asynchronous events arrive."""
    return (<ibv_context *>context.opened()).async_fd


def is_iwarp(Context context not None) -> bool:
    """Whether the device speaks iWARP, which has no immediate data."""
    return (<ibv_context *>context.opened()).device.transport_type == IBV_TRANSPORT_IWARP


def cq_depth(CQ cq not None) -> int:
    """Number of entries the device granted, at least what was asked for."""
    return (<ibv_cq *>cq.opened()).cqe


def async_event_source(AsyncEvent event not None) -> tuple[str, int]:
    """What an asynchronous event is about: ``("qp", QP number)``, ``("port", port number)``, ``("cq", pointer)``,
    ``("srq", pointer)`` or ``("device", 0)``. To be called before the event is acknowledged."""
    return source_of(&event.event)
