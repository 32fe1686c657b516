"""What queue pairs and address handles are made of. A number that does not fit its field raises OverflowError."""
from libc.string cimport memcpy, memset


cdef class GID:
    """The address of a port, from its eight words: ``0000:0000:0000:0000:0000:ffff:7f00:0001``.

    :raises ValueError: it is none.
    """

    def __init__(self, str words):
        raw = bytes.fromhex(words.replace(":", ""))
        if len(raw) != 16:
            raise ValueError(f"{words!r} is no GID: eight words of four digits are needed")
        memcpy(self.gid.raw, <const char *>raw, 16)


cdef class GlobalRoute:
    """The routing header of packets to ``dgid``."""

    def __init__(self, GID dgid not None, sgid_index=0, hop_limit=1, traffic_class=0):
        self.dgid = dgid
        self.sgid_index = sgid_index
        self.hop_limit = hop_limit
        self.traffic_class = traffic_class


cdef class AHAttr:
    """The path to a port."""

    def __init__(self, dlid=0, sl=0, is_global=0, port_num=1, GlobalRoute gr=None):
        self.dlid = dlid
        self.sl = sl
        self.is_global = is_global
        self.port_num = port_num
        self.gr = gr

    cdef void write(self, ibv_ah_attr *to) noexcept:
        memset(to, 0, sizeof(to[0]))
        to.dlid = self.dlid
        to.sl = self.sl
        to.is_global = self.is_global
        to.port_num = self.port_num
        if self.gr is not None:
            to.grh.dgid = self.gr.dgid.gid
            to.grh.sgid_index = self.gr.sgid_index
            to.grh.hop_limit = self.gr.hop_limit
            to.grh.traffic_class = self.gr.traffic_class


cdef class QPCap:
    """The capacity of a queue pair: asked for, and after its creation, granted."""

    def __init__(self, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data):
        self.max_send_wr = max_send_wr
        self.max_recv_wr = max_recv_wr
        self.max_send_sge = max_send_sge
        self.max_recv_sge = max_recv_sge
        self.max_inline_data = max_inline_data

    cdef void write(self, ibv_qp_cap *to) noexcept:
        to.max_send_wr = self.max_send_wr
        to.max_recv_wr = self.max_recv_wr
        to.max_send_sge = self.max_send_sge
        to.max_recv_sge = self.max_recv_sge
        to.max_inline_data = self.max_inline_data

    cdef void read(self, const ibv_qp_cap *granted) noexcept:
        self.max_send_wr = granted.max_send_wr
        self.max_recv_wr = granted.max_recv_wr
        self.max_send_sge = granted.max_send_sge
        self.max_recv_sge = granted.max_recv_sge
        self.max_inline_data = granted.max_inline_data


cdef class QPAttr:
    """Fields of ``struct ibv_qp_attr``; a mask says which of them count."""

    def __init__(self, qp_state=0, cur_qp_state=0):
        self.qp_state = qp_state
        self.cur_qp_state = cur_qp_state

    cdef void write(self, ibv_qp_attr *to) noexcept:
        memset(to, 0, sizeof(to[0]))
        to.qp_state = self.qp_state
        to.cur_qp_state = self.cur_qp_state
        to.path_mtu = self.path_mtu
        to.qkey = self.qkey
        to.rq_psn = self.rq_psn
        to.sq_psn = self.sq_psn
        to.dest_qp_num = self.dest_qp_num
        to.qp_access_flags = self.qp_access_flags
        if self.ah_attr is not None:
            self.ah_attr.write(&to.ah_attr)
        to.pkey_index = self.pkey_index
        to.max_rd_atomic = self.max_rd_atomic
        to.max_dest_rd_atomic = self.max_dest_rd_atomic
        to.min_rnr_timer = self.min_rnr_timer
        to.port_num = self.port_num
        to.timeout = self.timeout
        to.retry_cnt = self.retry_cnt
        to.rnr_retry = self.rnr_retry
