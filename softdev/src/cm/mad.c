/*
 * Encoding and decoding connection manager messages: the position of each field.
 */
#include <string.h>

#include "cm/mad.h"

enum {
	HEADER = 24,
	CLASS = 0x07,
	CLASS_VERSION = 2,
	METHOD_SEND = 3,
	LID_PERMISSIVE = 0xffff, /* unused with RoCE */
	PKEY = 0xffff,
	RATE_10_GBPS = 3,
};

static uint32_t get(const uint8_t *at, int bytes)
{
	uint32_t value = 0;

	while (bytes--)
		value = value << 8 | *at++;
	return value;
}

static uint64_t get64(const uint8_t *at)
{
	return (uint64_t)get(at, 4) << 32 | get(at + 4, 4);
}

static void put(uint8_t *at, int bytes, uint32_t value)
{
	while (bytes--) {
		at[bytes] = (uint8_t)value;
		value >>= 8;
	}
}

static void put64(uint8_t *at, uint64_t value)
{
	put(at, 4, (uint32_t)(value >> 32));
	put(at + 4, 4, (uint32_t)value);
}

/* Private data comes last in each message. */
static size_t private_at(uint16_t attribute)
{
	switch (attribute) {
	case CM_REQ:
		return HEADER + 140;
	case CM_MRA:
		return HEADER + 10;
	case CM_REJ:
		return HEADER + 84;
	case CM_REP:
		return HEADER + 36;
	case CM_RTU:
	case CM_DREP:
		return HEADER + 8;
	case CM_DREQ:
		return HEADER + 12;
	case CM_SIDR_REQ:
		return HEADER + 16;
	case CM_SIDR_REP:
		return HEADER + 96;
	default:
		return CM_MAD_BYTES;
	}
}

size_t cm_private_room(uint16_t attribute)
{
	return CM_MAD_BYTES - private_at(attribute);
}

/* ---- reading ---------------------------------------------------------------------------------------- */

static bool parse_req(const uint8_t *d, struct cm_mad *mad)
{
	mad->service = get64(d + 8);
	mad->guid = get64(d + 16);
	mad->qkey = get(d + 28, 4);
	mad->qpn = get(d + 32, 3);
	mad->responder_resources = d[35];
	mad->initiator_depth = d[39];
	mad->response_timeout = d[43] >> 3;
	mad->transport = d[43] >> 1 & 3;
	mad->flow_control = d[43] & 1;
	mad->psn = get(d + 44, 3);
	mad->local_response_timeout = d[47] >> 3;
	mad->retry_count = d[47] & 7;
	mad->mtu = d[50] >> 4;
	mad->rnr_retry_count = d[50] & 7;
	mad->max_retries = d[51] >> 4;
	mad->srq = d[51] >> 3 & 1;
	memcpy(mad->src_gid, d + 56, 16);
	memcpy(mad->dst_gid, d + 72, 16);
	mad->traffic_class = d[92];
	mad->hop_limit = d[93];
	mad->ack_timeout = d[95] >> 3;
	/* Reliable datagrams and the extended transports are not supported. */
	return mad->transport <= CM_UC && mad->mtu >= 1 && mad->mtu <= 5 && mad->qpn > CM_QPN;
}

static bool parse_rep(const uint8_t *d, struct cm_mad *mad)
{
	mad->qkey = get(d + 8, 4);
	mad->qpn = get(d + 12, 3);
	mad->psn = get(d + 20, 3);
	mad->responder_resources = d[24];
	mad->initiator_depth = d[25];
	mad->ack_delay = d[26] >> 3;
	mad->failover = d[26] >> 1 & 3;
	mad->flow_control = d[26] & 1;
	mad->rnr_retry_count = d[27] >> 5;
	mad->srq = d[27] >> 4 & 1;
	mad->guid = get64(d + 28);
	return mad->qpn > CM_QPN;
}

bool cm_mad_parse(const uint8_t *bytes, size_t size, struct cm_mad *mad)
{
	const uint8_t *d = bytes + HEADER;

	memset(mad, 0, sizeof(*mad));
	if (size != CM_MAD_BYTES || bytes[0] != 1 || bytes[1] != CLASS || bytes[2] != CLASS_VERSION ||
	    bytes[3] != METHOD_SEND)
		return false;
	mad->tid = get64(bytes + 8);
	mad->attribute = (uint16_t)get(bytes + 16, 2);
	const size_t room = cm_private_room(mad->attribute);
	if (!room)
		return false;
	mad->private_length = (uint8_t)room;
	memcpy(mad->private_data, bytes + CM_MAD_BYTES - room, room);
	mad->local_id = get(d, 4);
	mad->remote_id = get(d + 4, 4);
	switch (mad->attribute) {
	case CM_REQ:
		mad->remote_id = 0;
		return parse_req(d, mad);
	case CM_REP:
		return parse_rep(d, mad);
	case CM_MRA:
		mad->about = d[8] >> 6;
		mad->service_timeout = d[9] >> 3;
		return mad->about <= CM_ABOUT_OTHER;
	case CM_REJ:
		mad->about = d[8] >> 6;
		mad->reason = (uint16_t)get(d + 10, 2);
		return mad->about <= CM_ABOUT_OTHER;
	case CM_DREQ:
		mad->qpn = get(d + 8, 3);
		return true;
	case CM_SIDR_REQ:
		mad->remote_id = 0;
		mad->service = get64(d + 8);
		return true;
	case CM_SIDR_REP:
		mad->remote_id = mad->local_id;
		mad->local_id = 0;
		mad->reason = d[4];
		mad->qpn = get(d + 8, 3);
		mad->service = get64(d + 12);
		mad->qkey = get(d + 20, 4);
		return true;
	default:
		return true;
	}
}

/* ---- writing ---------------------------------------------------------------------------------------- */

static void pack_req(const struct cm_mad *mad, uint8_t *d)
{
	put(d + 4, 4, 0);
	put64(d + 8, mad->service);
	put64(d + 16, mad->guid);
	put(d + 28, 4, mad->qkey);
	put(d + 32, 3, mad->qpn);
	d[35] = mad->responder_resources;
	d[39] = mad->initiator_depth;
	d[43] = (uint8_t)(mad->response_timeout << 3 | mad->transport << 1 | mad->flow_control);
	put(d + 44, 3, mad->psn);
	d[47] = (uint8_t)(mad->local_response_timeout << 3 | mad->retry_count);
	put(d + 48, 2, PKEY);
	d[50] = (uint8_t)(mad->mtu << 4 | mad->rnr_retry_count);
	d[51] = (uint8_t)(mad->max_retries << 4 | mad->srq << 3);
	put(d + 52, 2, LID_PERMISSIVE);
	put(d + 54, 2, LID_PERMISSIVE);
	memcpy(d + 56, mad->src_gid, 16);
	memcpy(d + 72, mad->dst_gid, 16);
	d[91] = RATE_10_GBPS;
	d[92] = mad->traffic_class;
	d[93] = mad->hop_limit;
	d[95] = (uint8_t)(mad->ack_timeout << 3);
}

static void pack_rep(const struct cm_mad *mad, uint8_t *d)
{
	put(d + 8, 4, mad->qkey);
	put(d + 12, 3, mad->qpn);
	put(d + 20, 3, mad->psn);
	d[24] = mad->responder_resources;
	d[25] = mad->initiator_depth;
	d[26] = (uint8_t)(mad->ack_delay << 3 | mad->failover << 1 | mad->flow_control);
	d[27] = (uint8_t)(mad->rnr_retry_count << 5 | mad->srq << 4);
	put64(d + 28, mad->guid);
}

void cm_mad_pack(const struct cm_mad *mad, uint8_t bytes[CM_MAD_BYTES])
{
	uint8_t *d = bytes + HEADER;

	memset(bytes, 0, CM_MAD_BYTES);
	bytes[0] = 1;
	bytes[1] = CLASS;
	bytes[2] = CLASS_VERSION;
	bytes[3] = METHOD_SEND;
	put64(bytes + 8, mad->tid);
	put(bytes + 16, 2, mad->attribute);
	memcpy(bytes + private_at(mad->attribute), mad->private_data, mad->private_length);
	put(d, 4, mad->local_id);
	put(d + 4, 4, mad->remote_id);
	switch (mad->attribute) {
	case CM_REQ:
		pack_req(mad, d);
		break;
	case CM_REP:
		pack_rep(mad, d);
		break;
	case CM_MRA:
		d[8] = (uint8_t)(mad->about << 6);
		d[9] = (uint8_t)(mad->service_timeout << 3);
		break;
	case CM_REJ:
		d[8] = (uint8_t)(mad->about << 6);
		put(d + 10, 2, mad->reason);
		break;
	case CM_DREQ:
		put(d + 8, 3, mad->qpn);
		break;
	case CM_SIDR_REQ:
		put(d + 4, 2, PKEY);
		put(d + 6, 2, 0);
		put64(d + 8, mad->service);
		break;
	case CM_SIDR_REP:
		put(d, 4, mad->remote_id);
		put(d + 4, 4, 0);
		d[4] = (uint8_t)mad->reason;
		put(d + 8, 3, mad->qpn);
		put64(d + 12, mad->service);
		put(d + 20, 4, mad->qkey);
		break;
	default:
		break;
	}
}

/* ---- addresses -------------------------------------------------------------------------------------- */

static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

static void read_address(const uint8_t at[16], bool ipv4, uint8_t gid[16])
{
	memcpy(gid, at, 16);
	if (ipv4)
		memcpy(gid, mapped, sizeof(mapped));
}

bool cm_ip_parse(const uint8_t bytes[CM_IP_BYTES], struct cm_ip *ip)
{
	const uint8_t version = bytes[1] >> 4;

	if (bytes[0] != 0 || (version != 4 && version != 6))
		return false;
	ip->src_port = (uint16_t)get(bytes + 2, 2);
	read_address(bytes + 4, version == 4, ip->src);
	read_address(bytes + 20, version == 4, ip->dst);
	return true;
}

static void write_address(const uint8_t gid[16], bool ipv4, uint8_t at[16])
{
	memcpy(at, gid, 16);
	if (ipv4)
		memset(at, 0, sizeof(mapped));
}

void cm_ip_pack(const struct cm_ip *ip, uint8_t bytes[CM_IP_BYTES])
{
	const bool ipv4 = !memcmp(ip->dst, mapped, sizeof(mapped));

	memset(bytes, 0, CM_IP_BYTES);
	bytes[1] = (uint8_t)((ipv4 ? 4 : 6) << 4);
	put(bytes + 2, 2, ip->src_port);
	write_address(ip->src, ipv4, bytes + 4);
	write_address(ip->dst, ipv4, bytes + 20);
}
