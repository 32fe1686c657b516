# The part of <infiniband/verbs.h> that the data path uses. Everything here is inline in the header and goes
# through the context's operation table, so no extension links against libibverbs.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "infiniband/verbs.h" nogil:
    cdef struct ibv_context:
        pass
    cdef struct ibv_comp_channel:
        int fd
    cdef struct ibv_cq:
        ibv_comp_channel *channel
        int cqe
    cdef struct ibv_qp:
        uint32_t qp_num

    cdef enum ibv_wc_status:
        IBV_WC_SUCCESS
        IBV_WC_WR_FLUSH_ERR
    cdef enum ibv_wc_opcode:
        IBV_WC_SEND
        IBV_WC_RDMA_READ
        IBV_WC_RECV
        IBV_WC_RECV_RDMA_WITH_IMM
    cdef enum ibv_wc_flags:
        IBV_WC_WITH_IMM

    cdef struct ibv_wc:
        uint64_t wr_id
        ibv_wc_status status
        ibv_wc_opcode opcode
        uint32_t vendor_err
        uint32_t byte_len
        uint32_t imm_data
        uint32_t qp_num
        unsigned int wc_flags

    int ibv_poll_cq(ibv_cq *cq, int num_entries, ibv_wc *wc)
    int ibv_req_notify_cq(ibv_cq *cq, int solicited_only)

cdef extern from "infiniband/verbs.h" nogil:
    cdef enum ibv_send_flags:
        IBV_SEND_SIGNALED
        IBV_SEND_INLINE
        IBV_SEND_SOLICITED
    cdef enum ibv_wr_opcode:
        IBV_WR_RDMA_WRITE
        IBV_WR_RDMA_READ
        IBV_WR_SEND_WITH_IMM
    cdef struct ibv_sge:
        uint64_t addr
        uint32_t length
        uint32_t lkey
    cdef struct ibv_send_wr:
        uint64_t wr_id
        int num_sge
        ibv_wr_opcode opcode
        unsigned int send_flags
        uint32_t imm_data

cdef extern from "datapath/_post.h" nogil:
    cdef enum:
        AIO_CHAIN_MAX
    cdef struct aio_chain:
        int length
        ibv_send_wr *wr         # arrays
        ibv_sge *sge
    void aio_chain_write(aio_chain *chain, uint64_t wr_id, uint64_t addr, uint32_t length, uint32_t lkey,
                         unsigned int flags, uint64_t remote_addr, uint32_t rkey)
    void aio_chain_write_imm(aio_chain *chain, uint64_t wr_id, uint64_t addr, uint32_t length, uint32_t lkey,
                             unsigned int flags, uint64_t remote_addr, uint32_t rkey, uint32_t imm)
    void aio_chain_read(aio_chain *chain, uint64_t wr_id, uint64_t addr, uint32_t length, uint32_t lkey,
                        unsigned int flags, uint64_t remote_addr, uint32_t rkey)
    void aio_chain_atomic(aio_chain *chain, uint64_t wr_id, uint64_t addr, uint32_t lkey, bint swaps, uint64_t value,
                          uint64_t compare, uint64_t remote_addr, uint32_t rkey)
    bint aio_wr_is_atomic(const aio_chain *single)
    void aio_chain_send(aio_chain *chain, uint64_t wr_id, uint64_t addr, uint32_t length, uint32_t lkey,
                        unsigned int flags, int with_imm, uint32_t imm)
    void aio_chain_take(const aio_chain *chain, int at, aio_chain *single)
    uint64_t aio_wr_remote_addr(const aio_chain *single)
    uint32_t aio_chain_bytes(const aio_chain *chain)
    bint aio_chain_is_read(const aio_chain *chain)
    void aio_chain_signal_last(aio_chain *chain)
    int aio_chain_post(ibv_qp *qp, aio_chain *chain, int *posted)
    int aio_post_recv(ibv_qp *qp, uint64_t wr_id, uint64_t addr, uint32_t length, uint32_t lkey)
