/* Posting on UD queue pairs. */
#pragma once
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <string.h>

#define AIO_RECV_BATCH 32 /* receives posted with one doorbell */
#define AIO_GRH_BYTES 40  /* in front of every received datagram */

static inline int aio_post_datagram(struct ibv_qp *qp, uint64_t wr_id, uint64_t addr, uint32_t length, uint32_t lkey,
				    unsigned int flags, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint32_t imm)
{
	struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id,
		.sg_list = &sge,
		.num_sge = length ? 1 : 0,
		.opcode = IBV_WR_SEND_WITH_IMM,
		.send_flags = flags,
		.imm_data = htonl(imm),
		.wr.ud = { .ah = ah, .remote_qpn = qpn, .remote_qkey = qkey },
	};
	struct ibv_send_wr *bad;

	return ibv_post_send(qp, &wr, &bad);
}

/* Posts receives for the slots in list, at most AIO_RECV_BATCH; *posted: how many were taken. */
static inline int aio_post_slots(struct ibv_qp *qp, uint64_t tag, uint64_t base, uint32_t slot_bytes, uint32_t lkey,
				 const uint32_t *slots, int count, int *posted)
{
	struct ibv_sge sge[AIO_RECV_BATCH];
	struct ibv_recv_wr wr[AIO_RECV_BATCH], *bad = NULL;

	for (int i = 0; i < count; i++) {
		sge[i] = (struct ibv_sge){
			.addr = base + (uint64_t)slots[i] * slot_bytes,
			.length = slot_bytes,
			.lkey = lkey,
		};
		wr[i] = (struct ibv_recv_wr){
			.wr_id = tag | slots[i],
			.next = i + 1 < count ? &wr[i + 1] : NULL,
			.sg_list = &sge[i],
			.num_sge = 1,
		};
	}
	int rc = ibv_post_recv(qp, wr, &bad);
	*posted = rc && bad ? (int)(bad - wr) : count;
	return rc;
}

static inline int aio_ipv4_checksum_is_right(const unsigned char *header)
{
	uint32_t sum = 0;

	for (int i = 0; i < 20; i += 2)
		sum += (uint32_t)header[i] << 8 | header[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

/* The sender's GID, from the 40 bytes before a datagram: a GRH, or with RoCEv2 an IPv6 header, or an IPv4 header in the
 * last 20 of them. The distinction is libibverbs' (ibv_init_ah_from_wc): what does not begin like IPv6 is IPv4, also
 * without a checksum, because rxe computes none for packets that stay on the host. The bytes before an IPv4 header are
 * undefined; where they look like IPv6, the checksum decides. 0 when it is neither. */
static inline int aio_source_gid(const unsigned char *grh, unsigned char gid[16])
{
	const unsigned char *ipv4 = grh + 20;

	if (ipv4[0] == 0x45 && (grh[0] >> 4 != 6 || aio_ipv4_checksum_is_right(ipv4))) {
		memset(gid, 0, 10);
		memset(gid + 10, 0xff, 2);
		memcpy(gid + 12, ipv4 + 12, 4);
		return 1;
	}
	if (grh[0] >> 4 != 6)
		return 0;
	memcpy(gid, grh + 8, 16);
	return 1;
}
