/*
 * The format of a recording: what the recorder writes into a file that it has mapped, and what the reader checks.
 *
 * A file has a header, a header for each ring, and the rings, all of fixed size and in fixed places. Ring 0 has the
 * calls that make, change and end objects, ring 1 those for memory and address handles; both have a lock, which only
 * writers take. The others belong to one thread each. A ring keeps the newest records; its head counts all that were
 * ever written, and is stored after the record: so what a reader finds below the head is whole, also when the process
 * was killed in the middle of the next one.
 *
 * Objects are named by their addresses in the recorded process. An address may be used again after the object has
 * gone.
 */
#ifndef SOFTDEV_TRACE_RECORD_H
#define SOFTDEV_TRACE_RECORD_H

#include <stdint.h>

#define TRACE_MAGIC "SOFTREC1"

enum {
	TRACE_RING_CONTROL,
	TRACE_RING_MEMORY,
	TRACE_RING_THREADS, /* the first ring of a thread */
	TRACE_RINGS = 64,
	TRACE_LOCKED_RECORDS = 1 << 16, /* of ring 0, of ring 1 */
	TRACE_THREAD_RECORDS = 1 << 14,
	TRACE_HEADER_BYTES =
		60 << 10, /* with the headers of rings: where pages have 64 KiB, rings begin with one, too */
};

enum trace_kind {
	TRACE_NOTHING,
	/* ring 0 */
	TRACE_DEVICE,
	TRACE_LIMITS,
	TRACE_DEVICE_GONE,
	TRACE_PD,
	TRACE_PD_GONE,
	TRACE_CHANNEL,
	TRACE_CHANNEL_GONE,
	TRACE_CQ,
	TRACE_CQ_RESIZED,
	TRACE_CQ_GONE,
	TRACE_SRQ,
	TRACE_SRQ_GONE,
	TRACE_QP,
	TRACE_QP_ASKED, /* before TRACE_QP, of the same call */
	TRACE_QP_GONE,
	TRACE_MODIFY,
	TRACE_ADDRESS, /* after the TRACE_MODIFY or TRACE_AH of the same call */
	TRACE_ENTERED, /* a call that may not return */
	TRACE_ASYNC,
	TRACE_CM_CALL,
	TRACE_CM_EVENT,
	TRACE_CM_ACK,
	/* ring 1 */
	TRACE_MR,
	TRACE_MR_GONE,
	TRACE_MW,
	TRACE_AH,
	TRACE_AH_GONE,
	/* rings of threads */
	TRACE_SEND,
	TRACE_RECV,
	TRACE_DONE,
	TRACE_EMPTY,
	TRACE_POLL_FAILED,
	TRACE_ARM,
	TRACE_WAIT,
	TRACE_EVENT,
	TRACE_ACK,
	TRACE_KINDS,
};

/* What a TRACE_CM_CALL was. */
enum trace_cm {
	TRACE_CM_CREATE,
	TRACE_CM_DESTROY,
	TRACE_CM_BIND,
	TRACE_CM_RESOLVE_ADDR,
	TRACE_CM_RESOLVE_ROUTE,
	TRACE_CM_LISTEN,
	TRACE_CM_CONNECT,
	TRACE_CM_ACCEPT,
	TRACE_CM_REJECT,
	TRACE_CM_DISCONNECT,
	TRACE_CM_CREATE_QP,
	TRACE_CM_CALLS,
};

enum trace_gid_type { TRACE_GID_UNKNOWN, TRACE_GID_IB, TRACE_GID_ROCE_V1, TRACE_GID_ROCE_V2 };

struct trace_device {
	char name[32];
	uint32_t link_layer; /* enum ibv_port_attr's link_layer */
	uint8_t port_state, active_mtu, pad[2];
};
struct trace_limits {
	uint32_t max_qp_wr, max_sge, max_cqe, max_qp_rd_atom, max_qp_init_rd_atom, max_srq_wr, max_mr, max_qp;
	uint64_t max_mr_size;
};
struct trace_cq {
	uint64_t channel;
	uint32_t asked, cqe, vector, pad[5];
};
struct trace_srq {
	uint64_t pd;
	uint32_t max_wr, max_sge, limit, pad[5];
};
struct trace_qp {
	uint64_t send_cq, recv_cq, srq;
	uint32_t send_wr, recv_wr, inline_bytes;
	uint8_t type, sig_all, send_sge, recv_sge; /* 255: or more */
};
struct trace_qp_asked {
	uint64_t pd, cm_id;
	uint32_t send_wr, recv_wr, inline_bytes;
	uint8_t send_sge, recv_sge, pad[10];
};
enum trace_origin {
	TRACE_BY_PROGRAM,
	TRACE_BY_CM, /* what rdma_cm has made of the queue pair */
	TRACE_FOUND, /* what the queue pair was when the recording began */
};
struct trace_modify {
	uint32_t mask; /* enum ibv_qp_attr_mask */
	uint8_t state, path_mtu, timeout, retry_cnt, rnr_retry, min_rnr_timer, max_rd_atomic, max_dest_rd_atomic;
	uint32_t qkey, rq_psn, sq_psn, dest_qpn, access;
	uint16_t pkey_index;
	uint8_t port;
	uint8_t origin; /* enum trace_origin */
	uint8_t from, pad[3];
};
struct trace_address {
	uint8_t dgid[16], sgid[16]; /* sgid: the GID at that index then */
	uint8_t sgid_index, gid_type, global, port_state, active_mtu, sl, hop_limit, sgid_known;
};
struct trace_call {
	uint32_t what;    /* TRACE_ENTERED: enum trace_kind, of the record that the call ends with */
	uint32_t pending; /* of a completion queue: events taken and not acknowledged */
	uint64_t pad[4];
};
struct trace_async {
	uint32_t type; /* enum ibv_event_type */
	uint32_t pad;
	uint64_t pads[4];
};
struct trace_cm_call {
	uint8_t what, family, pad[2];
	uint16_t port, backlog;
	uint8_t address[16]; /* IPv4: the first four */
	uint8_t responder, initiator, retry_count, rnr_retry;
	uint32_t private_bytes;
	uint64_t qp;
};
struct trace_cm_event {
	uint32_t event; /* enum rdma_cm_event_type */
	int32_t status;
	uint64_t listen, qp;
	uint8_t responder, initiator, retry_count, rnr_retry;
	uint32_t private_bytes;
	uint64_t pad;
};
struct trace_mr {
	uint64_t pd, address, length, iova;
	uint32_t lkey, rkey;
};
struct trace_wr {
	uint64_t wr_id;
	uint64_t address; /* of the first entry; of a datagram, its qkey */
	uint64_t remote;  /* address there; of a datagram, its address handle */
	uint32_t length, lkey;
	uint32_t rkey;                         /* of a datagram, the queue pair's number there */
	uint8_t opcode, flags, num_sge, place; /* place: in the list that one call posted, or 255 */
};
struct trace_done {
	uint64_t wr_id;
	uint32_t byte_len, vendor_err, src_qp;
	uint8_t opcode, status, flags, place; /* place: in the answer to one poll */
	uint32_t asked, pad[3];
};
struct trace_empty {
	uint32_t count, pad;
	uint64_t pads[4];
};
struct trace_event {
	uint64_t cq;
	uint32_t count; /* TRACE_ACK: how many; TRACE_ARM: solicited only */
	uint32_t pad;
	uint64_t pads[3];
};

struct trace_record {
	uint64_t stamp; /* ticks */
	uint8_t kind;   /* enum trace_kind */
	uint8_t device; /* number of the context in this recording */
	uint16_t error; /* errno of the call; 0: it succeeded */
	uint32_t qpn;   /* or access flags of a memory region */
	uint64_t object;
	union {
		struct trace_device opened;
		struct trace_limits limits;
		struct trace_cq cq;
		struct trace_srq srq;
		struct trace_qp qp;
		struct trace_qp_asked asked;
		struct trace_modify modify;
		struct trace_address address;
		struct trace_call call;
		struct trace_async async;
		struct trace_cm_call cm_call;
		struct trace_cm_event cm_event;
		struct trace_mr mr;
		struct trace_wr wr;
		struct trace_done done;
		struct trace_empty empty;
		struct trace_event event;
		uint8_t bytes[40];
	};
};
_Static_assert(sizeof(struct trace_record) == 64, "a record is a cache line");

struct trace_header {
	char magic[8];
	uint32_t record_bytes, rings, locked_records, thread_records;
	uint32_t pid, parent;
	/* The same instant by both clocks, when the recording began and, as well as is known, when it ended. */
	uint64_t begin_ns, begin_ticks, late_ns, late_ticks;
	uint64_t begin_unix_ns;
	uint64_t lost;     /* records of threads that got no ring */
	uint32_t ended;    /* the process has left by exit() */
	uint32_t attached; /* it ran before the recording began: what it had done is not known */
	char program[128], host[64];
};
_Static_assert(sizeof(struct trace_header) <= TRACE_HEADER_BYTES, "the header has room");

struct trace_ring {
	uint64_t head; /* records ever written */
	uint32_t thread, lock;
	uint64_t pad[6];
};
_Static_assert(sizeof(struct trace_ring) == 64, "rings share no cache line");

static inline uint64_t trace_ring_records(unsigned ring)
{
	return ring < TRACE_RING_THREADS ? TRACE_LOCKED_RECORDS : TRACE_THREAD_RECORDS;
}

/* Where a ring's records begin in the file; of TRACE_RINGS, the length of the file. */
static inline uint64_t trace_ring_offset(unsigned ring)
{
	const unsigned locked = ring < TRACE_RING_THREADS ? ring : TRACE_RING_THREADS;
	const uint64_t records =
		(uint64_t)locked * TRACE_LOCKED_RECORDS + (uint64_t)(ring - locked) * TRACE_THREAD_RECORDS;

	return TRACE_HEADER_BYTES + TRACE_RINGS * sizeof(struct trace_ring) + records * sizeof(struct trace_record);
}

#endif
