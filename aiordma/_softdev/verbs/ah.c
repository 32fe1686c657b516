/* Address handles and the GRH of received datagrams. */
#include "core/engine.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <stdlib.h>
#include <string.h>

/* Between the IP header and a UD payload: UDP 8, BTH 12, DETH 8; after it the ICRC 4. */
#define HEADERS_AFTER_IP 32

bool soft_route_is_valid(struct soft_ctx *ctx, const struct ibv_ah_attr *attr)
{
	union ibv_gid sgid;

	return attr->port_num == 1 && soft_port_is_up(&ctx->v.context) && attr->is_global &&
	       soft_gid_get(ctx, attr->grh.sgid_index, &sgid);
}

struct ibv_ah *soft_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct soft_ctx *ctx = to_ctx(pd->context);
	bool valid = soft_route_is_valid(ctx, attr);
	struct soft_ah *soft = valid ? calloc(1, sizeof *soft) : NULL;

	if (!soft) {
		errno = valid ? ENOMEM : EINVAL;
		return NULL;
	}
	soft->ah = (struct ibv_ah){ .context = pd->context, .pd = pd };
	soft->attr = *attr;
	soft_gid_get(ctx, attr->grh.sgid_index, &soft->sgid);
	soft->here = soft_gid_is_local(ctx, &attr->grh.dgid);
	soft->max = SOFT_UD_MTU;
	const int error = soft_wire_wanted(ctx, attr) ? soft_wire_ah(ctx, soft) : 0;
	if (error) {
		free(soft);
		errno = error;
		return NULL;
	}
	atomic_fetch_add(&to_pd(pd)->refs, 1);
	return &soft->ah;
}

int soft_destroy_ah(struct ibv_ah *ah)
{
	atomic_fetch_sub(&to_pd(ah->pd)->refs, 1);
	if (to_ah(ah)->route)
		soft_wire_ah_free(to_ah(ah));
	free(to_ah(ah));
	return 0;
}

static bool is_ipv4(const union ibv_gid *gid)
{
	return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)(const void *)gid->raw);
}

static void map_ipv4(union ibv_gid *gid, uint32_t address)
{
	memset(gid, 0, sizeof *gid);
	gid->raw[10] = gid->raw[11] = 0xff;
	memcpy(gid->raw + 12, &address, sizeof address);
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

/* The two kinds of header share the 40 bytes; an IPv4 header is known by its checksum. */
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

int soft_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc, struct ibv_grh *grh,
			 struct ibv_ah_attr *attr)
{
	union ibv_gid here;
	struct iphdr ipv4;
	int index;

	memset(attr, 0, sizeof *attr);
	attr->dlid = wc->slid;
	attr->sl = wc->sl;
	attr->src_path_bits = wc->dlid_path_bits;
	attr->port_num = port_num;
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	attr->is_global = 1;
	if (holds_ipv4(grh, &ipv4)) {
		map_ipv4(&here, ipv4.daddr);
		map_ipv4(&attr->grh.dgid, ipv4.saddr);
		attr->grh.hop_limit = ipv4.ttl;
		attr->grh.traffic_class = ipv4.tos;
	} else {
		struct ibv_grh header;
		uint32_t word;

		memcpy(&header, grh, sizeof header);
		word = be32toh(header.version_tclass_flow);
		if (word >> 28 != 6 || header.next_hdr != IPPROTO_UDP) {
			errno = EPROTONOSUPPORT;
			return -1;
		}
		here = header.dgid;
		attr->grh.dgid = header.sgid;
		attr->grh.flow_label = word & 0xfffff;
		attr->grh.hop_limit = header.hop_limit;
		attr->grh.traffic_class = (word >> 20) & 0xff;
	}
	index = soft_gid_find(to_ctx(context), &here);
	if (index < 0) {
		errno = EINVAL;
		return -1;
	}
	attr->grh.sgid_index = (uint8_t)index;
	return 0;
}
