/*
 * The peer of a connected queue pair: where packets go to it, and which packets are from it.
 */
#ifndef SOFTDEV_ROCE_PEER_H
#define SOFTDEV_ROCE_PEER_H

#include <string.h>

#include "roce/port.h"

static inline enum roce_peer roce_peer_of(const struct soft_roce *w)
{
	return atomic_load_explicit(&w->peer, memory_order_relaxed);
}

static inline const struct roce_route *roce_route_of(struct soft_roce *w, struct roce_route *copy)
{
	*copy = w->route;
	copy->path.dst_port = atomic_load_explicit(&w->port, memory_order_relaxed);
	if (w->source && roce_peer_of(w) == ROCE_OTHERS) {
		copy->source = w->source;
		copy->path.src_port = w->source->number;
	}
	return copy;
}

/*
 * Addresses prove nothing: every user of the peer's host sends with the same ones. What proves a sender is a packet that
 * only the peer can make, and what it shows is the port. A softdev device sends from two ports only, 4791 and the one
 * that belongs to the process of its queue pair number; from then on nothing is accepted from any other port.
 */
static inline uint32_t roce_source_of(const struct roce_inbound *in)
{
	return in->path.src_port + in->forwarded;
}

/* Not from where the packets that proved to be the peer's came from. Later packets may, if they prove it. */
static inline bool roce_may_be_peer(struct soft_roce *w, const struct roce_inbound *in)
{
	const uint32_t proven = atomic_load_explicit(&w->proven, memory_order_relaxed);
	const uint16_t port = in->path.src_port;

	/* There is no need to hand on what peers can send, or already send, to this process itself. */
	if (in->forwarded && (w->route.here || (proven && !(proven & ROCE_FORWARDED))))
		return false;
	return roce_peer_of(w) != ROCE_OURS || port == soft_roce_own_port(w->ask.qpn) ||
	       port == atomic_load_explicit(&w->port, memory_order_relaxed);
}

static inline enum roce_sender roce_sender_of(struct soft_roce *w, const struct roce_inbound *in)
{
	if (soft_likely(!memcmp(in->path.src, w->route.path.dst, 16) && !memcmp(in->path.dst, w->route.path.src, 16))) {
		if (soft_likely(roce_source_of(in) == atomic_load_explicit(&w->proven, memory_order_relaxed)))
			return ROCE_PROVEN;
		if (roce_may_be_peer(w, in))
			return ROCE_UNPROVEN;
	}
	atomic_fetch_add_explicit(&soft_roce_counters.wrong_peer, 1, memory_order_relaxed);
	return ROCE_STRANGER;
}

static inline void roce_learn(struct soft_roce *w, const struct roce_inbound *in)
{
	const uint16_t port = in->path.src_port;
	const bool ours = port == ROCE_PORT || port == soft_roce_own_port(w->ask.qpn);

	atomic_store_explicit(&w->peer, ours ? ROCE_OURS : ROCE_OTHERS, memory_order_relaxed);
	atomic_store_explicit(&w->proven, roce_source_of(in), memory_order_relaxed);
	if (ours) /* other devices may change theirs, and are answered at 4791 */
		atomic_store_explicit(&w->port, port, memory_order_relaxed);
}

#endif
