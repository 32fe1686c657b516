/* Building and posting short chains of work requests: one doorbell a chain. */
#pragma once
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <string.h>

/* Of a stream: WRITE up to the wrap, WRITE after it, the message. A user's own READs and WRITEs make longer ones. */
#define AIO_CHAIN_MAX 32

struct aio_chain {
	struct ibv_send_wr wr[AIO_CHAIN_MAX];
	struct ibv_sge sge[AIO_CHAIN_MAX];
	int length;
};

static inline struct ibv_send_wr *aio_chain_next(struct aio_chain *chain, uint64_t wr_id, uint64_t addr,
						 uint32_t length, uint32_t lkey, unsigned int flags)
{
	int at = chain->length++;
	struct ibv_send_wr *wr = &chain->wr[at];
	struct ibv_sge *sge = &chain->sge[at];

	if (at)
		chain->wr[at - 1].next = wr;
	sge->addr = addr;
	sge->length = length;
	sge->lkey = lkey;
	wr->wr_id = wr_id;
	wr->next = NULL;
	wr->sg_list = sge;
	wr->num_sge = length ? 1 : 0; /* a zero-byte WRITE or SEND carries no SGE at all */
	wr->send_flags = flags;
	return wr;
}

static inline void aio_chain_write(struct aio_chain *chain, uint64_t wr_id, uint64_t addr, uint32_t length,
				   uint32_t lkey, unsigned int flags, uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_send_wr *wr = aio_chain_next(chain, wr_id, addr, length, lkey, flags);

	wr->opcode = IBV_WR_RDMA_WRITE;
	wr->wr.rdma.remote_addr = remote_addr;
	wr->wr.rdma.rkey = rkey;
}

/* The immediate data takes a receive of the peer, and tells it of the WRITE. */
static inline void aio_chain_write_imm(struct aio_chain *chain, uint64_t wr_id, uint64_t addr, uint32_t length,
				       uint32_t lkey, unsigned int flags, uint64_t remote_addr, uint32_t rkey,
				       uint32_t imm)
{
	aio_chain_write(chain, wr_id, addr, length, lkey, flags, remote_addr, rkey);
	chain->wr[chain->length - 1].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	chain->wr[chain->length - 1].imm_data = htonl(imm);
}

static inline void aio_chain_read(struct aio_chain *chain, uint64_t wr_id, uint64_t addr, uint32_t length,
				  uint32_t lkey, unsigned int flags, uint64_t remote_addr, uint32_t rkey)
{
	aio_chain_write(chain, wr_id, addr, length, lkey, flags, remote_addr, rkey);
	chain->wr[chain->length - 1].opcode = IBV_WR_RDMA_READ;
}

/* 8 bytes at `addr` get what was in the remote word. A swap of `value` for `compare`, or the addition of `value`. */
static inline void aio_chain_atomic(struct aio_chain *chain, uint64_t wr_id, uint64_t addr, uint32_t lkey, int swaps,
				    uint64_t value, uint64_t compare, uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_send_wr *wr = aio_chain_next(chain, wr_id, addr, 8, lkey, IBV_SEND_SIGNALED);

	wr->opcode = swaps ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
	wr->wr.atomic.remote_addr = remote_addr;
	wr->wr.atomic.rkey = rkey;
	wr->wr.atomic.compare_add = swaps ? compare : value;
	wr->wr.atomic.swap = value;
}

static inline int aio_wr_is_atomic(const struct aio_chain *single)
{
	return single->wr[0].opcode == IBV_WR_ATOMIC_CMP_AND_SWP || single->wr[0].opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* with_imm = 0 is for iWARP, which has no immediate data: there the same 32 bits lead the message itself. */
static inline void aio_chain_send(struct aio_chain *chain, uint64_t wr_id, uint64_t addr, uint32_t length,
				  uint32_t lkey, unsigned int flags, int with_imm, uint32_t imm)
{
	struct ibv_send_wr *wr = aio_chain_next(chain, wr_id, addr, length, lkey, flags);

	if (with_imm) {
		wr->opcode = IBV_WR_SEND_WITH_IMM;
		wr->imm_data = htonl(imm);
	} else {
		wr->opcode = IBV_WR_SEND;
	}
}

/* One request of a chain as a chain of its own, which must stay where it is: it points into itself. */
static inline void aio_chain_take(const struct aio_chain *chain, int at, struct aio_chain *single)
{
	single->length = 1;
	single->wr[0] = chain->wr[at];
	single->sge[0] = chain->sge[at];
	single->wr[0].next = NULL;
	single->wr[0].sg_list = &single->sge[0];
}

static inline uint64_t aio_wr_remote_addr(const struct aio_chain *single)
{
	return single->wr[0].wr.rdma.remote_addr;
}

static inline uint32_t aio_chain_bytes(const struct aio_chain *chain)
{
	uint32_t bytes = 0;

	for (int i = 0; i < chain->length; i++)
		bytes += chain->sge[i].length;
	return bytes;
}

static inline int aio_chain_is_read(const struct aio_chain *chain)
{
	return chain->wr[chain->length - 1].opcode == IBV_WR_RDMA_READ;
}

static inline void aio_chain_signal_last(struct aio_chain *chain)
{
	chain->wr[chain->length - 1].send_flags |= IBV_SEND_SIGNALED;
}

/* 0, or the errno of ibv_post_send; *posted tells how many of the chain were taken before the failure. */
static inline int aio_chain_post(struct ibv_qp *qp, struct aio_chain *chain, int *posted)
{
	struct ibv_send_wr *bad = NULL;
	int rc = ibv_post_send(qp, chain->wr, &bad);

	*posted = rc && bad ? (int)(bad - chain->wr) : chain->length;
	return rc;
}

static inline int aio_post_recv(struct ibv_qp *qp, uint64_t wr_id, uint64_t addr, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(qp, &wr, &bad);
}
