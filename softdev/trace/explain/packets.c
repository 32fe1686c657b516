/*
 * Stories for Wireshark: a pcapng file (draft-ietf-opsawg-pcapng) of the RoCEv2 packets that the work requests stand for
 * (IBTA volume 1, chapter 9 and annex A17). Nothing of it was on a wire: a request is a packet when it was posted, or the
 * first and the last one of its message, and its completion is the peer's acknowledgement, when it was polled. Payload is
 * not recorded: SENDs have 64 zeros instead, without which Wireshark calls them malformed, and a comment says how long
 * the message was.
 *
 * Where the sender was not recorded, a receive that was completed stands for its message. WRITEs and READs of such a
 * sender complete nothing here, so they are not there, and a comment of the file says so.
 */
#include "trace/explain/packets.h"

#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

#include "trace/explain/requests.h"

enum {
	SECTION = 0x0a0d0d0a,
	INTERFACE = 1,
	PACKET = 6,
	LINK_RAW = 101,
	OPTION_COMMENT = 1,
	OPTION_TSRESOL = 9,
	IP_UDP = 17,
	ROCE_PORT = 4791,
	PSN_BITS = 0xffffff,
	FIRST_AND_LAST = 2,
	ICRC = 4,
	STAND_IN = 64,                            /* bytes */
	LONGEST = 48 + 12 + 28 + STAND_IN + ICRC, /* IPv6 and UDP, BTH, the longest after it */
};

enum part { WHOLE, FIRST, LAST, ANSWER };

struct packet {
	uint64_t ns; /* since 1970 */
	uint64_t order;
	const struct story *story;
	const struct qp *qp;
	struct trace_wr wr;            /* of a message that has arrived: as its sender may have posted it */
	const struct trace_item *done; /* NULL: there is none */
	uint32_t psn, count, msn;      /* count: packets of the message */
	uint8_t part;                  /* enum part */
	bool arrived;                  /* the message is the peer's, and its answer ours */
};

struct packets {
	struct packet *list;
	size_t count, room;
	/* Of the queue pair that is looked at. */
	const struct story *story;
	const struct qp *qp;
	uint32_t psn, msn;
	/* The numbers of datagram queue pairs of all stories, and queue pairs whose senders are in none of them. */
	struct map datagrams;
	size_t alone;
	bool was_alone, no_memory;
};

/* ---- which packets there are -------------------------------------------------------------------------- */

static bool add(struct packets *to, struct packet one)
{
	if (to->count == to->room) {
		const size_t room = to->room ? 2 * to->room : 1024;
		struct packet *list = realloc(to->list, room * sizeof(*list));
		if (!list) {
			to->no_memory = true;
			return false;
		}
		to->list = list;
		to->room = room;
	}
	one.order = to->count;
	to->list[to->count++] = one;
	return true;
}

static uint32_t mtu_of(const struct qp *qp)
{
	const uint32_t bytes = trace_mtu_bytes(qp->is.path_mtu);

	return bytes ? bytes : 1024;
}

/* Of those that opcode_of() knows. */
static bool is_wire_operation(uint8_t opcode)
{
	return opcode <= IBV_WR_SEND_WITH_INV && opcode != IBV_WR_BIND_MW && opcode != IBV_WR_LOCAL_INV;
}

/* Whether an answer of the peer is behind this status: of the others, nothing came. */
static bool is_answer(uint8_t status)
{
	return status == IBV_WC_SUCCESS || status == IBV_WC_REM_INV_REQ_ERR || status == IBV_WC_REM_ACCESS_ERR ||
	       status == IBV_WC_REM_OP_ERR || status == IBV_WC_RNR_RETRY_EXC_ERR;
}

/* One packet, or the first and the last one. Returns what an answer to it has, too. */
static struct packet add_message(struct packets *to, struct packet one)
{
	const struct trace_wr *wr = &one.wr;
	const bool atomic = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;

	one.story = to->story;
	one.qp = to->qp;
	one.psn = to->psn & PSN_BITS;
	one.count = 1;
	if (!atomic && wr->length && to->qp->caps.type != IBV_QPT_UD)
		one.count = 1 + (wr->length - 1) / mtu_of(to->qp);
	to->psn += one.count;
	to->msn++;
	one.msn = to->msn & PSN_BITS;
	/* A READ's request is one packet, whose response has as many as the data. */
	one.part = wr->opcode == IBV_WR_RDMA_READ || one.count == 1 ? WHOLE : FIRST;
	if (add(to, one) && one.part == FIRST) {
		one.part = LAST;
		one.psn = (one.psn + one.count - 1) & PSN_BITS;
		add(to, one);
	}
	one.part = ANSWER;
	return one;
}

static void add_request(void *packets, const struct trace_item *posted, const struct trace_item *done, bool own)
{
	struct packets *to = packets;
	const bool flushed = done && own && done->record.done.status == IBV_WC_WR_FLUSH_ERR;
	struct packet one = { .ns = world_time(to->story, posted->ns), .wr = posted->record.wr, .done = done };

	if (!is_wire_operation(one.wr.opcode) || flushed)
		return;
	one = add_message(to, one);
	if (!done || !own || to->qp->caps.type != IBV_QPT_RC || !is_answer(done->record.done.status))
		return;
	one.ns = world_time(to->story, done->ns);
	add(to, one);
}

/* ---- and of those that were not recorded -------------------------------------------------------------- */

/* What their requests would complete with; NONE: nothing has arrived. */
static int answer_to(uint8_t status)
{
	switch (status) {
	case IBV_WC_SUCCESS:
		return IBV_WC_SUCCESS;
	case IBV_WC_LOC_LEN_ERR:
		return IBV_WC_REM_INV_REQ_ERR;
	case IBV_WC_LOC_ACCESS_ERR:
		return IBV_WC_REM_ACCESS_ERR;
	case IBV_WC_LOC_QP_OP_ERR:
	case IBV_WC_LOC_PROT_ERR:
		return IBV_WC_REM_OP_ERR;
	default:
		return NONE;
	}
}

static uint8_t posted_as(const struct trace_done *done)
{
	if (done->status)
		return IBV_WR_SEND; /* a failure does not say */
	if (done->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
		return IBV_WR_RDMA_WRITE_WITH_IMM;
	if (done->flags & IBV_WC_WITH_INV)
		return IBV_WR_SEND_WITH_INV;
	return done->flags & IBV_WC_WITH_IMM ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
}

static void add_arrival(void *packets, const struct trace_item *done)
{
	enum { GRH = 40 }; /* which a receive has before a datagram */
	struct packets *to = packets;
	const struct trace_done *is = &done->record.done;
	const bool datagram = to->qp->caps.type == IBV_QPT_UD;
	struct packet one = { .ns = world_time(to->story, done->ns), .done = done, .arrived = true };

	if (answer_to(is->status) == NONE || (datagram && map_get(&to->datagrams, is->src_qp) >= 0))
		return;
	to->was_alone = true;
	one.wr = (struct trace_wr){ .wr_id = is->wr_id,
				    .opcode = posted_as(is),
				    .length = is->status ? 0 : is->byte_len };
	if (datagram) {
		one.wr.length -= one.wr.length < GRH ? one.wr.length : GRH;
		one.wr.address = to->qp->is.qkey;
	}
	one = add_message(to, one);
	if (to->qp->caps.type == IBV_QPT_RC)
		add(to, one);
}

static void add_arrivals(struct packets *to, const struct findings *in)
{
	struct peer peer;
	const bool datagram = to->qp->caps.type == IBV_QPT_UD;

	if (!to->qp->rtr || (!datagram && peer_find(in, to->story, to->qp, &peer) && peer.mutual))
		return;
	to->psn = to->qp->is.rq_psn;
	to->msn = 0;
	to->was_alone = !datagram;
	arrivals_of(to->story, to->qp, add_arrival, to);
	to->alone += to->was_alone;
}

static int by_time(const void *a, const void *b)
{
	const struct packet *x = a, *y = b;

	if (x->ns != y->ns)
		return x->ns < y->ns ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order;
}

/* ---- what they are ------------------------------------------------------------------------------------ */

static uint8_t *put(uint8_t *to, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		to[i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
	return to + bytes;
}

/* Of an answer, at the end that asked. */
static int status_of(const struct packet *p)
{
	const uint8_t status = p->done->record.done.status;

	return p->arrived ? answer_to(status) : status;
}

static bool is_to_peer(const struct packet *p)
{
	return (p->part == ANSWER) == p->arrived;
}

/* IBTA volume 1, table 38, without the transport's three bits. */
static uint8_t opcode_of(const struct packet *p)
{
	static const uint8_t opcodes[][3] = {
		/*                              whole first last */
		[IBV_WR_RDMA_WRITE] = { 0x0a, 0x06, 0x08 },
		[IBV_WR_RDMA_WRITE_WITH_IMM] = { 0x0b, 0x06, 0x09 },
		[IBV_WR_SEND] = { 0x04, 0x00, 0x02 },
		[IBV_WR_SEND_WITH_IMM] = { 0x05, 0x00, 0x03 },
		[IBV_WR_RDMA_READ] = { 0x0c, 0x0c, 0x0c },
		[IBV_WR_ATOMIC_CMP_AND_SWP] = { 0x13, 0x13, 0x13 },
		[IBV_WR_ATOMIC_FETCH_AND_ADD] = { 0x14, 0x14, 0x14 },
		[IBV_WR_SEND_WITH_INV] = { 0x17, 0x00, 0x16 },
	};
	const uint8_t request = p->wr.opcode;
	const uint8_t type = p->qp->caps.type;
	const uint8_t transport = type == IBV_QPT_UC ? 0x20 : type == IBV_QPT_UD ? 0x60 : 0;

	if (p->part == ANSWER) {
		const bool good = status_of(p) == IBV_WC_SUCCESS;
		if (good && request == IBV_WR_RDMA_READ)
			return p->count == 1 ? 0x10 : 0x0d; /* READ response only, or first */
		return good && opcodes[request][0] >= 0x13 && opcodes[request][0] <= 0x14 ? 0x12 : 0x11;
	}
	return (uint8_t)(transport | opcodes[request][p->part]);
}

static uint8_t syndrome_of(const struct packet *p)
{
	switch (status_of(p)) {
	case IBV_WC_REM_INV_REQ_ERR:
		return 0x61;
	case IBV_WC_REM_ACCESS_ERR:
		return 0x62;
	case IBV_WC_REM_OP_ERR:
		return 0x63;
	case IBV_WC_RNR_RETRY_EXC_ERR:
		return 0x20 | 1;
	default:
		return 0x1f; /* acknowledged; credits are not used */
	}
}

static const struct trace_address *address_of(const struct packet *p)
{
	const struct story *s = p->story;

	if (p->qp->caps.type != IBV_QPT_UD)
		return p->qp->addressed ? &p->qp->address : NULL;
	const long ah = p->arrived ? NONE : map_get(&s->by_ah, p->wr.remote);
	return ah >= 0 && s->ahs[ah].addressed ? &s->ahs[ah].address : NULL;
}

/* What follows the BTH. Returns where it ends. */
static uint8_t *extended(const struct packet *p, uint8_t opcode, uint8_t *at)
{
	const struct trace_wr *wr = &p->wr;

	if (p->part == ANSWER) {
		at = put(at, syndrome_of(p), 1);
		at = put(at, p->msn, 3);
		return opcode == 0x12 ? put(at, 0, 8) : at; /* what was there is not recorded */
	}
	if (p->qp->caps.type == IBV_QPT_UD) {
		at = put(at, (uint32_t)wr->address, 4);
		at = put(at, p->arrived ? p->done->record.done.src_qp : p->qp->number, 4);
	}
	switch (opcode & 0x1f) {
	case 0x06:
	case 0x0a:
	case 0x0b:
	case 0x0c:
		at = put(at, wr->remote, 8);
		at = put(at, wr->rkey, 4);
		at = put(at, wr->length, 4);
		break;
	case 0x13:
	case 0x14:
		at = put(at, wr->remote, 8);
		at = put(at, wr->rkey, 4);
		at = put(at, 0, 8); /* its operands are not recorded */
		at = put(at, 0, 8);
		break;
	case 0x16:
	case 0x17:
		at = put(at, wr->rkey, 4);
		break;
	default:
		break;
	}
	switch (opcode & 0x1f) {
	case 0x03:
	case 0x05:
	case 0x09:
	case 0x0b:
		return put(at, 0, 4); /* the immediate is not recorded */
	default:
		return at;
	}
}

static bool is_ipv4(const uint8_t gid[16])
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	return !memcmp(gid, mapped, sizeof(mapped));
}

static uint16_t checksum(const uint8_t *header, size_t bytes)
{
	uint32_t sum = 0;

	for (size_t i = 0; i < bytes; i += 2)
		sum += (uint32_t)header[i] << 8 | header[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t) ~((sum & 0xffff) + (sum >> 16));
}

/* IP and UDP in front of so many bytes. Returns where they end. */
static uint8_t *carried(const struct packet *p, uint32_t bytes, uint8_t *at)
{
	static const uint8_t nowhere[16] = { [10] = 0xff, [11] = 0xff };
	const struct trace_address *address = address_of(p);
	const uint8_t *here = address && address->sgid_known ? address->sgid : nowhere;
	const uint8_t *there = address && address->global ? address->dgid : nowhere;
	const bool out = is_to_peer(p);
	const uint8_t *from = out ? here : there, *to = out ? there : here;
	uint8_t *const header = at;

	bytes += 8;
	if (is_ipv4(from) && is_ipv4(to)) {
		at = put(at, 0x4500, 2);
		at = put(at, 20 + bytes, 2);
		at = put(at, 0x4000, 4); /* not to be fragmented */
		at = put(at, 64 << 8 | IP_UDP, 2);
		at = put(at, 0, 2);
		memcpy(at, from + 12, 4);
		memcpy(at + 4, to + 12, 4);
		at += 8;
		put(header + 10, checksum(header, 20), 2);
	} else {
		at = put(at, 0x60000000, 4);
		at = put(at, bytes, 2);
		at = put(at, IP_UDP << 8 | 64, 2);
		memcpy(at, from, 16);
		memcpy(at + 16, to, 16);
		at += 32;
	}
	at = put(at, 0xc000 | (p->qp->number & 0x3fff), 2);
	at = put(at, ROCE_PORT, 2);
	at = put(at, bytes, 2);
	return put(at, 0, 2); /* no checksum: allowed over IPv4, and what RoCEv2 does over IPv6 */
}

/* The zeros in place of payload: how many. */
static uint32_t stand_in(uint8_t opcode)
{
	static const uint32_t sends = 1 << 0x00 | 1 << 0x02 | 1 << 0x03 | 1 << 0x04 | 1 << 0x05 | 1 << 0x16 | 1 << 0x17;

	return sends >> (opcode & 0x1f) & 1 ? STAND_IN : 0;
}

/* The packet, with an ICRC of zeros. Returns its length. */
static uint32_t build(const struct packet *p, uint8_t bytes[LONGEST])
{
	const uint8_t opcode = opcode_of(p);
	const uint32_t there = p->qp->caps.type == IBV_QPT_UD ? p->wr.rkey : p->qp->is.dest_qpn;
	uint8_t after[LONGEST], *at = after;

	at = put(at, opcode, 1);
	at = put(at, 0, 1);
	at = put(at, 0xffff, 2); /* the default partition */
	at = put(at, (is_to_peer(p) ? there : p->qp->number) & PSN_BITS, 4);
	at = put(at, p->part == ANSWER || p->part == FIRST ? 0 : 0x80, 1); /* asks for an acknowledgement */
	at = put(at, p->psn, 3);
	at = extended(p, opcode, at);
	const uint32_t zeros = stand_in(opcode) + ICRC;
	memset(at, 0, zeros);
	at += zeros;
	const uint32_t length = (uint32_t)(at - after);
	uint8_t *const end = carried(p, length, bytes);
	memcpy(end, after, length);
	return (uint32_t)(end - bytes) + length;
}

/* ---- the file ----------------------------------------------------------------------------------------- */

static void describe_arrival(const struct packet *p, char *text, size_t size)
{
	const uint8_t status = p->done->record.done.status;
	const unsigned long long id = p->wr.wr_id;

	if (p->part == ANSWER)
		snprintf(text, size, "QP 0x%x: what answers the message that completed the receive of wr_id 0x%llx",
			 p->qp->number, id);
	else if (status)
		snprintf(text, size, "QP 0x%x: the receive of wr_id 0x%llx failed, %s; the length is not recorded",
			 p->qp->number, id, trace_status_name(status));
	else
		snprintf(text, size, "QP 0x%x: %s of %u bytes completed the receive of wr_id 0x%llx%s", p->qp->number,
			 trace_opcode_name(p->wr.opcode), p->wr.length, id,
			 p->part == FIRST && p->count > FIRST_AND_LAST ? "; the packets between are left out" : "");
}

static void describe(const struct packet *p, char *text, size_t size)
{
	const struct trace_wr *wr = &p->wr;

	if (p->arrived)
		describe_arrival(p, text, size);
	else if (p->part == ANSWER)
		snprintf(text, size, "QP 0x%x: completion of wr_id 0x%llx polled, %s", p->qp->number,
			 (unsigned long long)wr->wr_id, trace_status_name(p->done->record.done.status));
	else
		snprintf(text, size, "QP 0x%x: %s of %u bytes posted, wr_id 0x%llx%s%s", p->qp->number,
			 trace_opcode_name(wr->opcode), wr->length, (unsigned long long)wr->wr_id,
			 p->part == FIRST && p->count > FIRST_AND_LAST ? "; the packets between are left out" : "",
			 p->done ? "" : "; no completion");
}

static void pad(FILE *to, size_t length)
{
	static const uint8_t zeros[4];

	fwrite(zeros, -length & 3, 1, to);
}

/* An option and the end of options: 8 bytes, and the text with its padding. */
static void write_comment(FILE *to, const char *text)
{
	const uint32_t said = (uint32_t)strlen(text), option = OPTION_COMMENT | said << 16, end = 0;

	fwrite(&option, sizeof(option), 1, to);
	fwrite(text, said, 1, to);
	pad(to, said);
	fwrite(&end, sizeof(end), 1, to);
}

static uint32_t padded(size_t length)
{
	return (uint32_t)(length + 3) & ~3U;
}

static void write_packet(FILE *to, const struct packet *p)
{
	uint8_t bytes[LONGEST];
	char text[200];
	const uint32_t kept = build(p, bytes);

	describe(p, text, sizeof(text));
	const uint32_t total = 28 + padded(kept) + 8 + padded(strlen(text)) + 4;
	const uint32_t head[] = { PACKET, total, 0, (uint32_t)(p->ns >> 32), (uint32_t)p->ns, kept, kept };
	fwrite(head, sizeof(head), 1, to);
	fwrite(bytes, kept, 1, to);
	pad(to, kept);
	write_comment(to, text);
	fwrite(&total, sizeof(total), 1, to);
}

static void write_beginning(FILE *to, size_t alone)
{
	const uint32_t interface[] = { INTERFACE, 32, LINK_RAW, 0, OPTION_TSRESOL | 1 << 16, 9, 0, 32 };
	char text[300] = "Packets that recorded work requests stand for (softdev trace)";

	if (alone)
		snprintf(
			text, sizeof(text),
			"%s. The senders to %zu queue pairs were not recorded: of theirs, there are only messages that "
			"completed a receive, numbered as if they were all, and none of their WRITEs, READs and "
			"atomics.",
			"Packets that recorded work requests stand for (softdev trace)", alone);
	const uint32_t total = 24 + 8 + padded(strlen(text)) + 4;
	const uint32_t section[] = { SECTION, total, 0x1a2b3c4d, 1, 0xffffffff, 0xffffffff };
	fwrite(section, sizeof(section), 1, to);
	write_comment(to, text);
	fwrite(&total, sizeof(total), 1, to);
	fwrite(interface, sizeof(interface), 1, to);
}

static bool list_datagrams(struct packets *to, const struct story *stories, size_t count)
{
	for (size_t n = 0; n < count; n++) {
		for (size_t k = 0; k < stories[n].qp_count; k++) {
			const struct qp *qp = &stories[n].qps[k];
			if (qp->caps.type == IBV_QPT_UD && !map_put(&to->datagrams, qp->number, 0))
				return false;
		}
	}
	return true;
}

bool packets(FILE *to, const struct story *stories, size_t count, size_t *alone)
{
	const struct findings in = { .stories = stories, .story_count = count, .shown = count };
	struct packets all = { 0 };

	all.no_memory = !list_datagrams(&all, stories, count);
	for (size_t n = 0; n < count; n++) {
		all.story = &stories[n];
		for (size_t k = 0; k < stories[n].qp_count; k++) {
			all.qp = &stories[n].qps[k];
			all.psn = all.qp->is.sq_psn;
			all.msn = 0;
			all.no_memory |= !requests_of(all.story, all.qp, add_request, &all);
			add_arrivals(&all, &in);
		}
	}
	if (all.count)
		qsort(all.list, all.count, sizeof(*all.list), by_time);
	write_beginning(to, all.alone);
	for (size_t i = 0; i < all.count; i++)
		write_packet(to, &all.list[i]);
	free(all.list);
	map_free(&all.datagrams);
	*alone = all.alone;
	return !all.no_memory;
}
