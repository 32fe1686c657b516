/*
 * The global routing header in front of a received datagram.
 */
#include <netinet/in.h>
#include <netinet/ip.h>
#include <string.h>

#include "core/core.h"

/* Between the IP header and a UD payload: UDP 8, BTH 12, DETH 8; after it the ICRC 4. */
#define HEADERS_AFTER_IP 32

/* What mlx5 puts into a UD completion's service level (bits 0 to 2: kind of L3 header; bit 3: UDP). */
enum { L3_IPV6 = 1, L3_IPV4 = 2, UDP = 8 };

static bool is_ipv4(const union ibv_gid *gid)
{
	return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)(const void *)gid->raw);
}

static uint16_t ipv4_checksum(const struct iphdr *header)
{
	uint16_t words[sizeof *header / 2];
	uint32_t sum = 0;

	memcpy(words, header, sizeof words);
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

static uint32_t version_word(const struct ibv_global_route *route)
{
	return 6U << 28 | (uint32_t)route->traffic_class << 20 | (route->flow_label & 0xfffff);
}

void soft_grh_write(uint8_t grh[SOFT_GRH_BYTES], const union ibv_gid *sgid, const struct ibv_global_route *route,
		    uint32_t payload)
{
	if (is_ipv4(sgid) && is_ipv4(&route->dgid)) {
		struct iphdr header = {
			.version = 4,
			.ihl = 5,
			.tos = route->traffic_class,
			.tot_len = htons((uint16_t)(sizeof header + HEADERS_AFTER_IP + payload)),
			.frag_off = htons(0x4000), /* don't fragment */
			.ttl = route->hop_limit ? route->hop_limit : 64,
			.protocol = IPPROTO_UDP,
		};

		memcpy(&header.saddr, sgid->raw + 12, 4);
		memcpy(&header.daddr, route->dgid.raw + 12, 4);
		header.check = ipv4_checksum(&header);
		memset(grh, 0, SOFT_GRH_BYTES - sizeof header);
		memcpy(grh + SOFT_GRH_BYTES - sizeof header, &header, sizeof header);
	} else {
		struct ibv_grh header = {
			.version_tclass_flow = htobe32(version_word(route)),
			.paylen = htobe16((uint16_t)(HEADERS_AFTER_IP + payload)),
			.next_hdr = IPPROTO_UDP,
			.hop_limit = route->hop_limit ? route->hop_limit : 64,
			.sgid = *sgid,
			.dgid = route->dgid,
		};

		memcpy(grh, &header, sizeof header);
	}
}

static void map_ipv4(union ibv_gid *gid, uint32_t address)
{
	memset(gid, 0, sizeof *gid);
	gid->raw[10] = gid->raw[11] = 0xff;
	memcpy(gid->raw + 12, &address, sizeof address);
}

/* The two kinds of header share the 40 bytes; a valid checksum identifies an IPv4 header. */
static bool holds_ipv4(const struct ibv_grh *grh, struct iphdr *header)
{
	uint16_t check;

	memcpy(header, (const uint8_t *)grh + SOFT_GRH_BYTES - sizeof *header, sizeof *header);
	if (header->version != 4 || header->ihl != 5)
		return false;
	check = header->check;
	header->check = 0;
	return ipv4_checksum(header) == check;
}

uint8_t soft_grh_kind(const uint8_t grh[SOFT_GRH_BYTES])
{
	struct ibv_grh header;
	struct iphdr ipv4;

	memcpy(&header, grh, sizeof header);
	return UDP | (holds_ipv4(&header, &ipv4) ? L3_IPV4 : L3_IPV6);
}

bool soft_grh_read(const struct ibv_grh *grh, struct ibv_global_route *route, union ibv_gid *here)
{
	struct ibv_grh header;
	struct iphdr ipv4;

	if (holds_ipv4(grh, &ipv4)) {
		map_ipv4(here, ipv4.daddr);
		map_ipv4(&route->dgid, ipv4.saddr);
		route->hop_limit = ipv4.ttl;
		route->traffic_class = ipv4.tos;
		return true;
	}
	memcpy(&header, grh, sizeof header);
	const uint32_t word = be32toh(header.version_tclass_flow);
	if (word >> 28 != 6 || header.next_hdr != IPPROTO_UDP)
		return false;
	*here = header.dgid;
	route->dgid = header.sgid;
	route->flow_label = word & 0xfffff;
	route->hop_limit = header.hop_limit;
	route->traffic_class = (word >> 20) & 0xff;
	return true;
}
