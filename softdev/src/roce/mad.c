/*
 * Management datagrams: sent to and received for queue pair 1.
 */
#include <string.h>

#include "roce/internal.h"

#define MAD_QKEY UINT32_C(0x80010000)

static soft_mad_receiver *receiver;

void soft_mad_receive(soft_mad_receiver *function)
{
	receiver = function;
}

int soft_mad_open(void)
{
	int err = soft_roce_open();

	if (!err)
		atomic_fetch_add(&soft_pollers, 1);
	return err;
}

/* Replies to a process that uses one of our ports go to that port; all others go to 4791. */
static uint16_t answer_port(uint16_t port)
{
	return port >= ROCE_OWN_PORT && port < ROCE_OWN_PORT + SOFT_MAX_SLOT ? port : ROCE_PORT;
}

void soft_roce_mad_take(const struct roce_packet *packet, const struct roce_inbound *in)
{
	struct soft_mad_path path = { .answer_port = answer_port(in->path.src_port), .own_port = in->path.dst_port };

	if (!receiver || packet->opcode != (ROCE_UD | ROCE_SEND_ONLY) || packet->qkey != MAD_QKEY ||
	    packet->src_qpn != ROCE_MAD_QPN)
		return;
	memcpy(path.src, in->path.src, 16);
	memcpy(path.dst, in->path.dst, 16);
	receiver(&path, packet->payload, packet->payload_length);
}

static void send_packet(const struct roce_route *route, const uint8_t *mad)
{
	static _Atomic(uint32_t) psn;
	struct roce_batch *batch = soft_roce_batch();
	const struct roce_packet p = {
		.opcode = ROCE_UD | ROCE_SEND_ONLY,
		.pkey = ROCE_PKEY,
		.migrated = true,
		.qpn = ROCE_MAD_QPN,
		.psn = atomic_fetch_add(&psn, 1) & ROCE_24,
		.src_qpn = ROCE_MAD_QPN,
		.qkey = MAD_QKEY,
		.payload_length = SOFT_MAD_BYTES,
	};

	if (!batch)
		return;
	uint8_t *to = soft_roce_room(batch);
	const size_t size = roce_pack_headers(&p, to);
	memcpy(to + size, mad, SOFT_MAD_BYTES);
	soft_roce_add(batch, route, size + SOFT_MAD_BYTES);
	soft_roce_send(batch);
}

void soft_mad_send(struct soft_ctx *ctx, const uint8_t from[16], const uint8_t to[16], uint16_t port,
		   const uint8_t mad[SOFT_MAD_BYTES])
{
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 };
	union ibv_gid local;
	struct roce_route route;

	memcpy(local.raw, from, 16);
	const int index = soft_gid_find(ctx, &local);
	if (index < 0 || soft_roce_open())
		return;
	memcpy(ah.grh.dgid.raw, to, 16);
	ah.grh.sgid_index = (uint8_t)index;
	soft_roce_route(ctx, &ah, ROCE_MAD_QPN, &route);
	route.path.dst_port = port;
	send_packet(&route, mad);
}

void soft_mad_answer(const struct soft_mad_path *path, const uint8_t mad[SOFT_MAD_BYTES])
{
	struct roce_route route = { .traffic_class = soft_roce_class(0) };

	memcpy(route.path.src, path->dst, 16);
	memcpy(route.path.dst, path->src, 16);
	route.path.src_port = path->own_port;
	route.path.dst_port = path->answer_port;
	send_packet(&route, mad);
}
