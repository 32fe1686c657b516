"""Numbers of the verbs ABI that the control path needs (from rdma-core's libibverbs/verbs.h).

pyverbs has them too, but moved them between releases; these never change.
"""

from __future__ import annotations

import enum


class QpState(enum.IntEnum):
    """``enum ibv_qp_state``."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    SQE = 5
    ERR = 6


class Access(enum.IntFlag):
    """``enum ibv_access_flags``: what a memory region, or the peer of a QP, may do."""

    NONE = 0
    LOCAL_WRITE = 1
    REMOTE_WRITE = 1 << 1
    REMOTE_READ = 1 << 2
    REMOTE_ATOMIC = 1 << 3


class AtomicCap(enum.IntEnum):
    """``enum ibv_atomic_cap``: what a device's atomic operations are atomic with."""

    NONE = 0
    #: Each other, on the same device.
    HCA = 1
    #: CPUs and other devices as well.
    GLOB = 2


class QpMask(enum.IntFlag):
    """``enum ibv_qp_attr_mask``: which fields ibv_modify_qp and ibv_query_qp look at."""

    STATE = 1 << 0
    CUR_STATE = 1 << 1
    ACCESS_FLAGS = 1 << 3
    PKEY_INDEX = 1 << 4
    PORT = 1 << 5
    QKEY = 1 << 6
    AV = 1 << 7
    PATH_MTU = 1 << 8
    TIMEOUT = 1 << 9
    RETRY_CNT = 1 << 10
    RNR_RETRY = 1 << 11
    RQ_PSN = 1 << 12
    MAX_QP_RD_ATOMIC = 1 << 13
    MIN_RNR_TIMER = 1 << 15
    SQ_PSN = 1 << 16
    MAX_DEST_RD_ATOMIC = 1 << 17
    DEST_QPN = 1 << 20


class Mtu(enum.IntEnum):
    """``enum ibv_mtu``; :attr:`size` in bytes."""

    MTU_256 = 1
    MTU_512 = 2
    MTU_1024 = 3
    MTU_2048 = 4
    MTU_4096 = 5

    @property
    def size(self) -> int:
        return 128 << self.value


class PortState(enum.IntEnum):
    """``enum ibv_port_state``."""

    NOP = 0
    DOWN = 1
    INIT = 2
    ARMED = 3
    ACTIVE = 4
    ACTIVE_DEFER = 5


class GidType(enum.IntEnum):
    """``enum ibv_gid_type``."""

    IB = 0
    ROCE_V1 = 1
    ROCE_V2 = 2


class EventType(enum.IntEnum):
    """``enum ibv_event_type``: asynchronous events of a device."""

    CQ_ERR = 0
    QP_FATAL = 1
    QP_REQ_ERR = 2
    QP_ACCESS_ERR = 3
    COMM_EST = 4
    SQ_DRAINED = 5
    PATH_MIG = 6
    PATH_MIG_ERR = 7
    DEVICE_FATAL = 8
    PORT_ACTIVE = 9
    PORT_ERR = 10
    LID_CHANGE = 11
    PKEY_CHANGE = 12
    SM_CHANGE = 13
    SRQ_ERR = 14
    SRQ_LIMIT_REACHED = 15
    QP_LAST_WQE_REACHED = 16
    CLIENT_REREGISTER = 17
    GID_CHANGE = 18
    WQ_FATAL = 19


IBV_QPT_RC = 2
IBV_QPT_UD = 4
IBV_LINK_LAYER_ETHERNET = 2
