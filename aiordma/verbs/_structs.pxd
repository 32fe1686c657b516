"""The part of <infiniband/verbs.h> that the control path uses: structs only, so nothing here links with libibverbs."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t


cdef extern from "<infiniband/verbs.h>" nogil:
    struct ibv_device:
        int transport_type
    struct ibv_context:
        ibv_device *device
        int async_fd
        int num_comp_vectors
    struct ibv_pd:
        ibv_context *context
    struct ibv_comp_channel:
        ibv_context *context
        int fd
    struct ibv_cq:
        ibv_context *context
        ibv_comp_channel *channel
        int cqe
    struct ibv_srq:
        ibv_context *context
    struct ibv_ah:
        ibv_context *context
        ibv_pd *pd
    struct ibv_mr:
        ibv_context *context
        ibv_pd *pd
        void *addr
        size_t length
        uint32_t lkey
        uint32_t rkey
    struct ibv_qp:
        ibv_context *context
        ibv_pd *pd
        ibv_cq *send_cq
        ibv_cq *recv_cq
        uint32_t qp_num
    union ibv_gid:
        uint8_t raw[16]
    struct ibv_device_attr:
        uint64_t max_mr_size
        int max_qp
        int max_qp_wr
        int max_sge
        int max_cqe
        int max_mr
        int max_qp_rd_atom
        int max_qp_init_rd_atom
        int atomic_cap
        uint8_t phys_port_cnt
    struct ibv_port_attr:
        int state
        int active_mtu
        int gid_tbl_len
        uint32_t max_msg_sz
        uint16_t lid
        uint8_t link_layer
    struct ibv_gid_entry:
        ibv_gid gid
        uint32_t gid_index
        uint32_t port_num
        uint32_t gid_type
    struct ibv_global_route:
        ibv_gid dgid
        uint32_t flow_label
        uint8_t sgid_index
        uint8_t hop_limit
        uint8_t traffic_class
    struct ibv_ah_attr:
        ibv_global_route grh
        uint16_t dlid
        uint8_t sl
        uint8_t is_global
        uint8_t port_num
    struct ibv_qp_cap:
        uint32_t max_send_wr
        uint32_t max_recv_wr
        uint32_t max_send_sge
        uint32_t max_recv_sge
        uint32_t max_inline_data
    struct ibv_qp_init_attr:
        ibv_cq *send_cq
        ibv_cq *recv_cq
        ibv_qp_cap cap
        int qp_type
        int sq_sig_all
    struct ibv_qp_attr:
        int qp_state
        int cur_qp_state
        int path_mtu
        uint32_t qkey
        uint32_t rq_psn
        uint32_t sq_psn
        uint32_t dest_qp_num
        unsigned int qp_access_flags
        ibv_ah_attr ah_attr
        uint16_t pkey_index
        uint8_t max_rd_atomic
        uint8_t max_dest_rd_atomic
        uint8_t min_rnr_timer
        uint8_t port_num
        uint8_t timeout
        uint8_t retry_cnt
        uint8_t rnr_retry
    union ibv_async_element "element":
        ibv_cq *cq
        ibv_qp *qp
        ibv_srq *srq
        int port_num
    struct ibv_async_event:
        ibv_async_element element
        int event_type
    enum:
        IBV_ACCESS_OPTIONAL_RANGE
        IBV_TRANSPORT_IWARP
        IBV_EVENT_CQ_ERR
        IBV_EVENT_QP_FATAL
        IBV_EVENT_QP_REQ_ERR
        IBV_EVENT_QP_ACCESS_ERR
        IBV_EVENT_COMM_EST
        IBV_EVENT_SQ_DRAINED
        IBV_EVENT_PATH_MIG
        IBV_EVENT_PATH_MIG_ERR
        IBV_EVENT_PORT_ACTIVE
        IBV_EVENT_PORT_ERR
        IBV_EVENT_LID_CHANGE
        IBV_EVENT_PKEY_CHANGE
        IBV_EVENT_SM_CHANGE
        IBV_EVENT_QP_LAST_WQE_REACHED
        IBV_EVENT_SRQ_ERR
        IBV_EVENT_SRQ_LIMIT_REACHED
        IBV_EVENT_CLIENT_REREGISTER
        IBV_EVENT_GID_CHANGE


cdef inline tuple source_of(const ibv_async_event *event):
    """What an event is about: the name of the kind of object, and its number or address."""
    cdef int kind = event.event_type
    if kind in (IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_COMM_EST,
                IBV_EVENT_SQ_DRAINED, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR, IBV_EVENT_QP_LAST_WQE_REACHED):
        return "qp", event.element.qp.qp_num
    if kind in (IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE,
                IBV_EVENT_SM_CHANGE, IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_GID_CHANGE):
        return "port", event.element.port_num
    if kind in (IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED):
        return "srq", <uintptr_t>event.element.srq
    if kind == IBV_EVENT_CQ_ERR:
        return "cq", <uintptr_t>event.element.cq
    return "device", 0
