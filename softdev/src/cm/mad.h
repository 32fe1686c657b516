/*
 * Encoding and decoding connection manager messages: 256-byte management datagrams of class 7 (IBTA volume 1, 12.6, and
 * annex A11 for the header with IP addresses at the front of the private data). No sockets, no connections, no memory.
 */
#ifndef SOFTDEV_CM_MAD_H
#define SOFTDEV_CM_MAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	CM_MAD_BYTES = 256,
	CM_PRIVATE_MAX = 224, /* of any message */
	CM_IP_BYTES = 36,     /* at the front of a request's private data */
	CM_QPN = 1,
	CM_24 = 0xffffff,
};

enum cm_attribute {
	CM_REQ = 0x10,
	CM_MRA,
	CM_REJ,
	CM_REP,
	CM_RTU,
	CM_DREQ,
	CM_DREP,
	CM_SIDR_REQ,
	CM_SIDR_REP,
};

/* Which message a rejection or an MRA is about. */
enum cm_about { CM_ABOUT_REQ, CM_ABOUT_REP, CM_ABOUT_OTHER };

enum cm_reason {
	CM_REASON_TIMEOUT = 4,
	CM_REASON_UNSUPPORTED = 5,
	CM_REASON_INVALID_ID = 6,
	CM_REASON_INVALID_SERVICE = 8,
	CM_REASON_STALE = 10,
	CM_REASON_CONSUMER = 28,
	CM_REASON_OPTION = 35, /* vendor option not supported */
};

enum cm_sidr_status { CM_SIDR_VALID, CM_SIDR_UNSUPPORTED, CM_SIDR_REJECT };

enum cm_transport { CM_RC, CM_UC };

/* A field that the message lacks is 0. */
struct cm_mad {
	uint16_t attribute;
	uint64_t tid;
	uint32_t local_id, remote_id; /* of the sender; of the receiver. SIDR: the request id, in the field that fits */
	uint64_t service, guid;
	uint32_t qpn, psn, qkey;
	uint8_t responder_resources, initiator_depth;
	uint8_t transport, retry_count, rnr_retry_count, mtu; /* mtu: enum ibv_mtu */
	bool flow_control, srq;
	uint8_t failover;
	uint8_t response_timeout; /* REQ: of the receiver, as the sender wants it; 4.096 us << n, as all of these */
	uint8_t local_response_timeout, max_retries, ack_timeout, ack_delay, service_timeout;
	uint8_t src_gid[16], dst_gid[16];
	uint8_t traffic_class, hop_limit;
	uint8_t about;
	uint16_t reason; /* REJ; SIDR REP: its status */
	uint8_t private_length;
	uint8_t private_data[CM_PRIVATE_MAX];
};

/* Maximum private data of a message of that kind. 0: no such message. */
size_t cm_private_room(uint16_t attribute);
/* False: not a connection manager message, or a malformed one. */
bool cm_mad_parse(const uint8_t *bytes, size_t size, struct cm_mad *mad);
/* private_length must fit; the rest is zeroed. */
void cm_mad_pack(const struct cm_mad *mad, uint8_t bytes[CM_MAD_BYTES]);

/* Service numbers of the IP port spaces. */
enum cm_space { CM_SPACE_TCP = 0x0106, CM_SPACE_UDP = 0x0111 };
static inline uint64_t cm_service(uint16_t space, uint16_t port)
{
	return (uint64_t)space << 16 | port;
}

/* Addresses are in GID form: IPv4 is mapped. */
struct cm_ip {
	uint8_t src[16], dst[16];
	uint16_t src_port;
};
bool cm_ip_parse(const uint8_t bytes[CM_IP_BYTES], struct cm_ip *ip);
void cm_ip_pack(const struct cm_ip *ip, uint8_t bytes[CM_IP_BYTES]);

#endif
