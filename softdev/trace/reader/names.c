/*
 * What numbers are called, as programs write it.
 */
#include <arpa/inet.h>
#include <string.h>

#include "trace/reader/reader.h"

#define NAME(table, n) ((n) < sizeof(table) / sizeof(*(table)) && (table)[n] ? (table)[n] : "?")

const char *trace_kind_name(unsigned kind)
{
	static const char *const names[TRACE_KINDS] = {
		[TRACE_DEVICE] = "device",
		[TRACE_LIMITS] = "limits",
		[TRACE_DEVICE_GONE] = "close_device",
		[TRACE_PD] = "alloc_pd",
		[TRACE_PD_GONE] = "dealloc_pd",
		[TRACE_CHANNEL] = "create_comp_channel",
		[TRACE_CHANNEL_GONE] = "destroy_comp_channel",
		[TRACE_CQ] = "create_cq",
		[TRACE_CQ_RESIZED] = "resize_cq",
		[TRACE_CQ_GONE] = "destroy_cq",
		[TRACE_SRQ] = "create_srq",
		[TRACE_SRQ_GONE] = "destroy_srq",
		[TRACE_QP] = "create_qp",
		[TRACE_QP_ASKED] = "create_qp asked",
		[TRACE_QP_GONE] = "destroy_qp",
		[TRACE_MODIFY] = "modify_qp",
		[TRACE_ADDRESS] = "address",
		[TRACE_ENTERED] = "entered",
		[TRACE_ASYNC] = "async_event",
		[TRACE_CM_CALL] = "rdma_cm",
		[TRACE_CM_EVENT] = "cm_event",
		[TRACE_CM_ACK] = "ack_cm_event",
		[TRACE_MR] = "reg_mr",
		[TRACE_MR_GONE] = "dereg_mr",
		[TRACE_MW] = "alloc_mw",
		[TRACE_AH] = "create_ah",
		[TRACE_AH_GONE] = "destroy_ah",
		[TRACE_SEND] = "post_send",
		[TRACE_RECV] = "post_recv",
		[TRACE_DONE] = "completion",
		[TRACE_EMPTY] = "empty polls",
		[TRACE_POLL_FAILED] = "poll_cq",
		[TRACE_ARM] = "req_notify_cq",
		[TRACE_WAIT] = "get_cq_event entered",
		[TRACE_EVENT] = "get_cq_event",
		[TRACE_ACK] = "ack_cq_events",
	};

	return NAME(names, kind);
}

const char *trace_opcode_name(unsigned opcode)
{
	static const char *const names[] = {
		"RDMA_WRITE",
		"RDMA_WRITE_WITH_IMM",
		"SEND",
		"SEND_WITH_IMM",
		"RDMA_READ",
		"ATOMIC_CMP_AND_SWP",
		"ATOMIC_FETCH_AND_ADD",
		"LOCAL_INV",
		"BIND_MW",
		"SEND_WITH_INV",
		"TSO",
	};

	return NAME(names, opcode);
}

const char *trace_an_opcode(unsigned opcode)
{
	static const char *const names[] = {
		"an RDMA_WRITE",
		"an RDMA_WRITE_WITH_IMM",
		"a SEND",
		"a SEND_WITH_IMM",
		"an RDMA_READ",
		"an ATOMIC_CMP_AND_SWP",
		"an ATOMIC_FETCH_AND_ADD",
		"a LOCAL_INV",
		"a BIND_MW",
		"a SEND_WITH_INV",
		"a TSO",
	};

	return NAME(names, opcode);
}

const char *trace_completed_name(unsigned opcode)
{
	static const char *const names[] = { "SEND",      "RDMA_WRITE", "RDMA_READ", "COMP_SWAP",
					     "FETCH_ADD", "BIND_MW",    "LOCAL_INV", "TSO" };

	if (opcode == 128)
		return "RECV";
	if (opcode == 129)
		return "RECV_RDMA_WITH_IMM";
	return NAME(names, opcode);
}

const char *trace_status_name(unsigned status)
{
	static const char *const names[] = {
		"SUCCESS",          "LOC_LEN_ERR",       "LOC_QP_OP_ERR",     "LOC_EEC_OP_ERR",
		"LOC_PROT_ERR",     "WR_FLUSH_ERR",      "MW_BIND_ERR",       "BAD_RESP_ERR",
		"LOC_ACCESS_ERR",   "REM_INV_REQ_ERR",   "REM_ACCESS_ERR",    "REM_OP_ERR",
		"RETRY_EXC_ERR",    "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR",  "REM_INV_RD_REQ_ERR",
		"REM_ABORT_ERR",    "INV_EECN_ERR",      "INV_EEC_STATE_ERR", "FATAL_ERR",
		"RESP_TIMEOUT_ERR", "GENERAL_ERR",
	};

	return NAME(names, status);
}

const char *trace_state_name(unsigned state)
{
	static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };

	return NAME(names, state);
}

const char *trace_async_name(unsigned type)
{
	static const char *const names[] = {
		"CQ_ERR",
		"QP_FATAL",
		"QP_REQ_ERR",
		"QP_ACCESS_ERR",
		"COMM_EST",
		"SQ_DRAINED",
		"PATH_MIG",
		"PATH_MIG_ERR",
		"DEVICE_FATAL",
		"PORT_ACTIVE",
		"PORT_ERR",
		"LID_CHANGE",
		"PKEY_CHANGE",
		"SM_CHANGE",
		"SRQ_ERR",
		"SRQ_LIMIT_REACHED",
		"QP_LAST_WQE_REACHED",
		"CLIENT_REREGISTER",
		"GID_CHANGE",
	};

	return NAME(names, type);
}

const char *trace_cm_event_name(unsigned event)
{
	static const char *const names[] = {
		"ADDR_RESOLVED",   "ADDR_ERROR",       "ROUTE_RESOLVED", "ROUTE_ERROR",
		"CONNECT_REQUEST", "CONNECT_RESPONSE", "CONNECT_ERROR",  "UNREACHABLE",
		"REJECTED",        "ESTABLISHED",      "DISCONNECTED",   "DEVICE_REMOVAL",
		"MULTICAST_JOIN",  "MULTICAST_ERROR",  "ADDR_CHANGE",    "TIMEWAIT_EXIT",
	};

	return NAME(names, event);
}

const char *trace_cm_call_name(unsigned call)
{
	static const char *const names[TRACE_CM_CALLS] = {
		"rdma_create_id",     "rdma_destroy_id", "rdma_bind_addr", "rdma_resolve_addr",
		"rdma_resolve_route", "rdma_listen",     "rdma_connect",   "rdma_accept",
		"rdma_reject",        "rdma_disconnect", "rdma_create_qp",
	};

	return NAME(names, call);
}

const char *trace_qp_type_name(unsigned type)
{
	static const char *const names[] = { [2] = "RC", [3] = "UC", [4] = "UD", [8] = "RAW_PACKET" };

	return NAME(names, type);
}

const char *trace_gid_type_name(unsigned type)
{
	static const char *const names[] = { "of unknown type", "InfiniBand", "RoCE v1", "RoCE v2" };

	return NAME(names, type);
}

const char *trace_errno_name(unsigned error)
{
	static const struct {
		unsigned error;
		const char *name;
	} names[] = { { 1, "EPERM" },       { 2, "ENOENT" },         { 4, "EINTR" },         { 5, "EIO" },
		      { 11, "EAGAIN" },     { 12, "ENOMEM" },        { 13, "EACCES" },       { 14, "EFAULT" },
		      { 16, "EBUSY" },      { 19, "ENODEV" },        { 22, "EINVAL" },       { 28, "ENOSPC" },
		      { 38, "ENOSYS" },     { 95, "EOPNOTSUPP" },    { 98, "EADDRINUSE" },   { 99, "EADDRNOTAVAIL" },
		      { 100, "ENETDOWN" },  { 101, "ENETUNREACH" },  { 105, "ENOBUFS" },     { 107, "ENOTCONN" },
		      { 110, "ETIMEDOUT" }, { 111, "ECONNREFUSED" }, { 113, "EHOSTUNREACH" } };

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (names[i].error == error)
			return names[i].name;
	}
	return error ? "an error" : "0";
}

unsigned trace_mtu_bytes(unsigned mtu)
{
	return mtu >= 1 && mtu <= 5 ? 128u << mtu : 0;
}

const char *trace_gid_text(const uint8_t gid[16], char text[TRACE_ADDRESS_BYTES])
{
	static const uint8_t v4[12] = { [10] = 0xff, [11] = 0xff };

	if (!memcmp(gid, v4, sizeof(v4)))
		inet_ntop(AF_INET, gid + 12, text, TRACE_ADDRESS_BYTES);
	else
		inet_ntop(AF_INET6, gid, text, TRACE_ADDRESS_BYTES);
	return text;
}

static const char *flags_text(uint32_t flags, const char *const *names, unsigned count, char text[TRACE_FLAGS_BYTES])
{
	size_t at = 0;

	text[0] = '\0';
	for (unsigned i = 0; i < count; i++) {
		if (!(flags >> i & 1) || !names[i])
			continue;
		const int n = snprintf(text + at, TRACE_FLAGS_BYTES - at, "%s%s", at ? " | " : "", names[i]);
		if (n < 0 || (size_t)n >= TRACE_FLAGS_BYTES - at)
			break;
		at += (size_t)n;
	}
	if (!at)
		snprintf(text, TRACE_FLAGS_BYTES, "none");
	return text;
}

const char *trace_access_text(uint32_t access, char text[TRACE_FLAGS_BYTES])
{
	static const char *const names[] = { "LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC",
					     "MW_BIND",     "ZERO_BASED",   "ON_DEMAND" };

	return flags_text(access, names, sizeof(names) / sizeof(*names), text);
}

const char *trace_mask_text(uint32_t mask, char text[TRACE_FLAGS_BYTES])
{
	static const char *const names[] = {
		"STATE",
		"CUR_STATE",
		"EN_SQD_ASYNC_NOTIFY",
		"ACCESS_FLAGS",
		"PKEY_INDEX",
		"PORT",
		"QKEY",
		"AV",
		"PATH_MTU",
		"TIMEOUT",
		"RETRY_CNT",
		"RNR_RETRY",
		"RQ_PSN",
		"MAX_QP_RD_ATOMIC",
		"ALT_PATH",
		"MIN_RNR_TIMER",
		"SQ_PSN",
		"MAX_DEST_RD_ATOMIC",
		"PATH_MIG_STATE",
		"CAP",
		"DEST_QPN",
		NULL,
		NULL,
		NULL,
		NULL,
		"RATE_LIMIT",
	};

	return flags_text(mask, names, sizeof(names) / sizeof(*names), text);
}
