/*
 * Peers in the middle of a direct access to memory that its owner takes back: they are waited for a little, and then
 * the memory is taken away from under them.
 *
 * A process can be stopped at any instruction, for any time, and go on with its copy afterwards. It must not find what
 * the owner has put there meanwhile. Where it has mapped a slab, the pages that it is inside of are cut out of the slab
 * (slab.c): it goes on in pages that only it has. It sees that when it leaves (lane_direct.c), and gives its request
 * to the owner, who decides by the key. The slab cannot be mapped any more; peers ask again, and the kernel copies.
 *
 * Where the kernel copies to the owner's address, a peer may be stopped just before that, and nothing can be put in the
 * way of its call: the memory is not free before the peer has gone on, or its process has ended (EBUSY).
 *
 * Regions may be dereferenced under lanes_lock, too: ibv_dereg_mr passes through it before it frees one.
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/lane.h"

/* How long peers may take to leave: one copy, unless the process does not run. For all peers of a call together. A
 * process that has taken longer is not waited for again for a while, however many lanes and links it has. */
enum { LEAVE_NS = 4000000, NO_PATIENCE_NS = 1000000000 };

/* Closed lanes whose peer claims to be inside: each keeps a descriptor. A process is not in the middle of more copies at
 * once, unless it lies: its further claims are not believed. */
enum { MOST_CLOSED = 64 };

/* A process that nobody has waited for yet has a number. */
static bool is_zombie(pid_t pid)
{
	char path[32], text[512];
	const char *state = NULL;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	if (fgets(text, sizeof(text), file))
		state = strrchr(text, ')');
	bool zombie = state && (state[2] == 'Z' || state[2] == 'X');
	fclose(file);
	return zombie;
}

/* The peer's process has ended: nothing of it runs any more. (What it left in the lane says nothing.) */
static bool has_ended(const struct soft_link *link)
{
	if (link->pid <= 0)
		return false;
	if (kill(link->pid, 0) && errno == ESRCH)
		return true;
	/* A thread may outlive the first one, but not the socket. */
	return link->dead && is_zombie(link->pid);
}

/* The key of what the peer is inside of; 0: outside, or its memory was cut already. */
static uint32_t inside(const struct soft_in *in)
{
	uint64_t word = atomic_load(&in->seg->inside);

	return word & SOFT_INSIDE_EVICTED && in->cut ? 0 : (uint32_t)word;
}

/* Until when the process of this peer is not waited for. */
static uint64_t impatient_until(const struct soft_in *in)
{
	uint64_t until = in->link->impatient_until;

	for (const struct soft_in *other = soft_shm.lanes; other; other = other->next)
		if (other->link->pid == in->link->pid && other->link->impatient_until > until)
			until = other->link->impatient_until;
	return until;
}

/* Waits until the peer has left. False: it has not, and its process lives. *end: of all waits of a call; 0: not yet. */
static bool has_left(const struct soft_in *in, uint32_t key, uint64_t *end)
{
	for (unsigned i = 0; inside(in) == key; i++) {
		if (i % 64 == 63) {
			uint64_t now = soft_now_ns();
			if (i == 63 && now < impatient_until(in))
				return has_ended(in->link);
			if (!*end)
				*end = now + LEAVE_NS;
			if (now > *end || has_ended(in->link)) {
				in->link->impatient_until = now + NO_PATIENCE_NS;
				return has_ended(in->link);
			}
			sched_yield();
		}
	}
	return true;
}

/* Takes the lanes off the list that have no QP and whose peer is not inside any more. */
static struct soft_in *take_left(void)
{
	struct soft_in *left = NULL, *in, *next;

	for (in = soft_shm.lanes; in; in = next) {
		next = in->next;
		if (!in->orphan || (inside(in) && !in->disbelieved && !has_ended(in->link)))
			continue;
		*in->at = next;
		if (next)
			next->at = in->at;
		in->next = left;
		left = in;
	}
	return left;
}

static void unlock_and_free(struct soft_in *left)
{
	struct soft_in *in;

	soft_unlock(&soft_shm.lanes_lock);
	while ((in = left)) {
		left = in->next;
		munmap(in->seg, sizeof(*in->seg));
		soft_link_release(in->link);
		free(in);
	}
}

/* ---- what a peer is inside of ------------------------------------------------------------------------ */

/* Whether the kernel copies it, or may. */
static bool is_by_address(const struct soft_in *in, uint32_t key, const struct soft_region *region)
{
	return atomic_load(&region->lent) & SOFT_LENT_ADDRESS &&
	       (key == SOFT_INSIDE_SOME || !atomic_load(&in->seg->inside_length));
}

/* The bytes of the slab: what the peer says, if that is in the region, or all of the region. */
static struct soft_span span_of(const struct soft_in *in, uint32_t key, const struct soft_region *region)
{
	struct soft_span span = { (size_t)(region->host - region->slab->addr), region->length };
	uint64_t at = atomic_load(&in->seg->inside_at);
	uint32_t length = atomic_load(&in->seg->inside_length);

	if (key == SOFT_INSIDE_SOME || !length || !soft_region_covers(region, at, length))
		return span;
	span.offset += at - region->base;
	span.length = length;
	return span;
}

/* ---- taking it away ---------------------------------------------------------------------------------- */

/* Peers that have mapped the slab must ask again, and cannot map it. */
static void tear(struct soft_slab *slab)
{
	if (atomic_exchange(&slab->torn, true))
		return;
	for (uint32_t i = 0; i < SOFT_MAX_MR; i++) {
		struct soft_region *region = atomic_load(&soft_proc.keys[i]);
		if (region && region->slab == slab)
			soft_key_renew(i, region);
	}
}

/* The peer will see that it has to begin again. False: it has left before. */
static bool evict(struct soft_in *in, uint32_t key, const struct soft_region *region)
{
	uint64_t word = key;

	in->in = span_of(in, key, region);
	if (key != SOFT_INSIDE_SOME &&
	    !atomic_compare_exchange_strong(&in->seg->inside, &word, key | SOFT_INSIDE_EVICTED) &&
	    word != (key | SOFT_INSIDE_EVICTED)) {
		in->in.length = 0;
		return false;
	}
	return true;
}

/*
 * Takes what this peer is inside of away from it. Others must not write into the same pages meanwhile, or what they
 * write is lost: those that are inside of the slab leave, or are evicted as well. 0 or errno.
 */
static int take_away(struct soft_in *from, uint32_t key, const struct soft_region *region)
{
	struct soft_slab *slab = region->slab;
	uint64_t end = 0;
	int err = 0;

	/* (A process with an older device cannot be told: its last write is lost.) */
	if (!evict(from, key, region))
		return 0;
	tear(slab);
	for (struct soft_in *in = soft_shm.lanes; in; in = in->next) {
		uint32_t other = inside(in);
		const struct soft_region *into = other == region->key ? region : soft_key_find(other);
		if (in == from || !other || (into && into->slab != slab) || (!into && other != SOFT_INSIDE_SOME))
			continue;
		if (!has_left(in, other, &end) && into)
			evict(in, other, into);
	}
	for (struct soft_in *in = soft_shm.lanes; in; in = in->next) {
		if (!in->in.length)
			continue;
		int failed = soft_slab_cut(slab, in->in.offset, in->in.length);
		/* One whose bytes the kernel copies is still there: it names the owner's address. */
		in->cut = !failed && atomic_load(&in->seg->inside_length);
		in->in.length = 0;
		err = failed ? failed : err;
	}
	return err;
}

/* See soft_fabric_ops. */
bool soft_all_outside(struct soft_region *region)
{
	const bool lent = region && atomic_load(&region->lent);
	uint64_t end = 0;
	bool all = true;

	soft_lock(&soft_shm.lanes_lock);
	for (struct soft_in *in = soft_shm.lanes; lent && in; in = in->next) {
		const uint32_t key = inside(in);
		if ((key != atomic_load(&region->key) && key != SOFT_INSIDE_SOME) || has_left(in, key, &end))
			continue;
		if (is_by_address(in, key, region) || (region->slab && take_away(in, key, region)))
			all = false;
	}
	unlock_and_free(lent ? take_left() : NULL);
	return all;
}

/* ---- lanes ------------------------------------------------------------------------------------------- */

void soft_lane_open(struct soft_in *in)
{
	soft_lock(&soft_shm.lanes_lock);
	in->next = soft_shm.lanes;
	in->at = &soft_shm.lanes;
	if (in->next)
		in->next->at = &in->next;
	soft_shm.lanes = in;
	soft_unlock(&soft_shm.lanes_lock);
}

void soft_lane_evict(struct soft_in *in)
{
	uint64_t end = 0;

	soft_lock(&soft_shm.lanes_lock);
	const uint32_t key = inside(in);
	if (key && !has_left(in, key, &end)) {
		const struct soft_region *region = soft_key_find(key);
		if (region && region->slab && !is_by_address(in, key, region))
			(void)take_away(in, key,
					region); /* if that fails, the region is not free before the peer left */
	}
	soft_unlock(&soft_shm.lanes_lock);
}

void soft_lanes_sweep(void)
{
	soft_lock(&soft_shm.lanes_lock);
	unlock_and_free(take_left());
}

void soft_lane_close(struct soft_in *in)
{
	unsigned closed = 0;

	soft_lock(&soft_shm.lanes_lock);
	in->orphan = true;
	for (const struct soft_in *other = soft_shm.lanes; other; other = other->next)
		closed += other->orphan && other->link->pid == in->link->pid;
	in->disbelieved = closed > MOST_CLOSED;
	unlock_and_free(take_left());
}
