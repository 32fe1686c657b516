/*
 * A thread that answers on links to Linux kernels while the event loop does not poll (_stand_in.pyx).
 *
 * The completion queue has one owner at a time, by the lock: who has it may poll. The loop takes it for each of its
 * polls, as long as there are such links. The thread looks now and then whether the loop has polled since. If not,
 * it polls itself. It answers the requests that Linux wants answered within two seconds, and keeps everything that
 * has come, in order, for the loop's next poll. Of the messages on these links it keeps copies, and posts their
 * receives again, so that the peer can go on. It never waits for the loop, or for Python.
 *
 * The event loop learns by a descriptor that something is kept: the device's event may have come and gone.
 */
#pragma once
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define AIO_STAND_IN_BATCH 32
#define AIO_STAND_IN_BYTES 44  /* of CDC, of most of LLC, and of every answer */
#define AIO_STAND_IN_ANSWERS 8 /* under way on a link */
#ifndef AIO_STAND_IN_COPIES
#define AIO_STAND_IN_COPIES 4096 /* messages kept; beyond these, receives are not posted again */
#endif
#ifndef AIO_STAND_IN_BUSY_MS
#define AIO_STAND_IN_BUSY_MS 20
#endif
#define AIO_STAND_IN_MERGED 0x4000 /* sequence numbers: a jump by half of their range would look like a step back */

/* Kinds of wr_id beside those of _qp.pxd. */
#define AIO_KIND_RECEIVE 0
#define AIO_KIND_ANSWER 3 /* an answer of the thread has been sent */
#define AIO_KIND_COPY 4   /* a message whose receive is posted again; its copy is in `handed` */
#define AIO_KIND_COPY_ANSWERED 5
#define AIO_KIND_RECEIVE_ANSWERED 6

/* One link: its queue pair, its receives, and room for the thread's answers. */
struct aio_stood_for {
	uint64_t tag;
	struct ibv_qp *qp;
	uint64_t receives, answers;
	uint32_t receive_count, receive_bytes, lkey, max_inline;
	uint32_t under_way; /* a bit for each answer */
	bool failed;
};

struct aio_kept {
	struct ibv_wc wc;
	unsigned char message[AIO_STAND_IN_BYTES];
	uint16_t first; /* sequence number of the first of the messages that this one stands for */
};

struct aio_stand_in {
	pthread_mutex_t lock;
	struct ibv_cq *cq;
	struct aio_stood_for **links; /* by the index in their tag */
	uint32_t link_room, link_count;
	struct aio_kept *kept;
	uint32_t kept_first, kept_end, kept_room, copies;
	unsigned char handed[AIO_STAND_IN_BATCH][AIO_STAND_IN_BYTES]; /* the loop's, of the batch that it took last */
	uint64_t polls, seen;                                         /* of the loop */
	uint64_t answered, taken;
	int event, control; /* descriptors: for the loop, for the thread */
	int period_ms;
	bool ending, runs;
	pthread_t thread;
	pid_t pid;
};

static inline uint32_t aio_stand_in_kind(const struct ibv_wc *wc)
{
	return (wc->wr_id >> 28) & 0xf;
}

static inline uint64_t aio_stand_in_id(uint64_t tag, uint32_t kind, uint32_t number)
{
	return tag | (uint64_t)kind << 28 | number;
}

static inline struct aio_stood_for *aio_stood_for(const struct aio_stand_in *s, const struct ibv_wc *wc)
{
	uint64_t index = wc->wr_id >> 48;
	struct aio_stood_for *link = index < s->link_room ? s->links[index] : NULL;

	return link && link->tag == (wc->wr_id & ~(uint64_t)0xffffffff) ? link : NULL;
}

/* The message of a successful receive as such peers send it; NULL: it is something else. */
static inline const unsigned char *aio_stand_in_message(const struct aio_stood_for *link, const struct ibv_wc *wc)
{
	uint32_t slot = wc->wr_id & 0xfffffff;

	if (wc->status != IBV_WC_SUCCESS || aio_stand_in_kind(wc) != AIO_KIND_RECEIVE || wc->opcode != IBV_WC_RECV ||
	    wc->wc_flags & IBV_WC_WITH_IMM || slot >= link->receive_count || wc->byte_len > link->receive_bytes ||
	    wc->byte_len < AIO_STAND_IN_BYTES)
		return NULL;
	return (const unsigned char *)(uintptr_t)(link->receives + (uint64_t)slot * link->receive_bytes);
}

/*
 * Write the answer to a request that needs no decision, as proto/smcr_link.py does; false: it is none. Version 1 has
 * types 0x01 to 0x09 and the length in byte 1, version 2 has 0x2n and the length in the sender's byte order.
 */
static inline bool aio_stand_in_answer(const unsigned char *message, uint32_t length, unsigned char *answer)
{
	bool old = message[0] < 0x20;
	uint32_t type = old ? message[0] : message[0] & 0xf;
	uint32_t little = message[1] | (uint32_t)message[2] << 8, big = (uint32_t)message[1] << 8 | message[2];

	if (message[0] >= 0x30 || message[0] == 0x20 || (message[0] & 0xf0) == 0x10 || message[3] & 0x80)
		return false;
	if (old ? message[1] != AIO_STAND_IN_BYTES || length != AIO_STAND_IN_BYTES : little != length && big != length)
		return false;
	memcpy(answer, message, AIO_STAND_IN_BYTES);
	answer[3] |= 0x80;
	if (!old) {
		answer[1] = little == length ? AIO_STAND_IN_BYTES : 0;
		answer[2] = little == length ? 0 : AIO_STAND_IN_BYTES;
	}
	switch (type) {
	case 0x02: /* Add Link: there is no second one */
		answer[3] |= 0x40;
		if (old)
			answer[2] = 1;
		return true;
	case 0x05: /* Request Add Link */
		memset(answer + 4, 0, AIO_STAND_IN_BYTES - 4);
		return !old;
	case 0x09: /* Delete RKey; the answer has room for eight */
		if (length > AIO_STAND_IN_BYTES && answer[4] > 8)
			answer[4] = 8;
		return true;
	case 0x06: /* Confirm RKey */
	case 0x07: /* Test Link */
		return true;
	default:
		return false;
	}
}

/* ---- the thread, under the lock */

/* Send the answer to a request; false: it is no such request, or it cannot be sent now. */
static inline bool aio_stand_in_reply(struct aio_stand_in *s, struct aio_stood_for *link, const unsigned char *message,
				      uint32_t length)
{
	uint32_t slot = 0;

	while (slot < AIO_STAND_IN_ANSWERS && link->under_way >> slot & 1)
		slot++;
	if (slot == AIO_STAND_IN_ANSWERS)
		return false;
	unsigned char *answer = (unsigned char *)(uintptr_t)(link->answers + slot * 64);
	if (!aio_stand_in_answer(message, length, answer))
		return false;
	struct ibv_sge sge = { .addr = (uintptr_t)answer, .length = AIO_STAND_IN_BYTES, .lkey = link->lkey };
	struct ibv_send_wr wr = { .wr_id = aio_stand_in_id(link->tag, AIO_KIND_ANSWER, slot),
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED },
			   *bad;
	if (link->max_inline >= AIO_STAND_IN_BYTES)
		wr.send_flags |= IBV_SEND_INLINE;
	if (ibv_post_send(link->qp, &wr, &bad))
		return false;
	link->under_way |= 1u << slot;
	s->answered++;
	return true;
}

/* Room for a whole batch behind what is kept. */
static inline bool aio_stand_in_room(struct aio_stand_in *s)
{
	uint32_t length = s->kept_end - s->kept_first;

	if (s->kept_first) {
		memmove(s->kept, s->kept + s->kept_first, length * sizeof(*s->kept));
		s->kept_first = 0;
		s->kept_end = length;
	}
	if (s->kept_room - length >= AIO_STAND_IN_BATCH)
		return true;
	uint32_t room = (s->kept_room + AIO_STAND_IN_BATCH) * 2;
	struct aio_kept *kept = (struct aio_kept *)realloc(s->kept, room * sizeof(*kept));
	if (!kept)
		return false;
	s->kept = kept;
	s->kept_room = room;
	return true;
}

/* Cursors are absolute: the newest message stands for those before it, with their flags. */
static inline bool aio_stand_in_merge(struct aio_stand_in *s, const struct ibv_wc *wc, const unsigned char *message)
{
	uint16_t number = (uint16_t)(message[2] << 8 | message[3]);

	for (uint32_t at = s->kept_end; at > s->kept_first; at--) {
		struct aio_kept *kept = &s->kept[at - 1];
		if (aio_stand_in_kind(&kept->wc) != AIO_KIND_COPY || (kept->wc.wr_id ^ wc->wr_id) >> 32 ||
		    kept->message[0] != 0xfe || memcmp(kept->message + 4, message + 4, 4) != 0)
			continue;
		if ((uint16_t)(number - kept->first) >= AIO_STAND_IN_MERGED)
			return false;
		unsigned char produced = kept->message[24], state = kept->message[25];
		memcpy(kept->message, message, AIO_STAND_IN_BYTES);
		kept->message[24] |= produced;
		kept->message[25] |= state;
		return true;
	}
	return false;
}

/* Keep a copy of a message, and post its receive again. */
static inline bool aio_stand_in_copy(struct aio_stand_in *s, struct aio_stood_for *link, const struct ibv_wc *wc,
				     const unsigned char *message, bool answered)
{
	struct aio_kept *kept = &s->kept[s->kept_end];

	kept->wc = *wc;
	kept->wc.wr_id = aio_stand_in_id(link->tag, answered ? AIO_KIND_COPY_ANSWERED : AIO_KIND_COPY, 0);
	memcpy(kept->message, message, AIO_STAND_IN_BYTES);
	kept->first = (uint16_t)(message[2] << 8 | message[3]);
	struct ibv_sge sge = { .addr = (uintptr_t)message, .length = link->receive_bytes, .lkey = link->lkey };
	struct ibv_recv_wr wr = { .wr_id = wc->wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	if (ibv_post_recv(link->qp, &wr, &bad))
		return false;
	/* From here on the device may write to `message`. */
	if (answered || !aio_stand_in_merge(s, wc, kept->message)) {
		s->kept_end++;
		s->copies++;
	}
	return true;
}

static inline void aio_stand_in_keep(struct aio_stand_in *s, const struct ibv_wc *wc)
{
	struct aio_stood_for *link = aio_stood_for(s, wc);
	uint64_t wr_id = wc->wr_id;

	if (link && wc->status != IBV_WC_SUCCESS)
		link->failed = true;
	if (link && !link->failed) {
		if (aio_stand_in_kind(wc) == AIO_KIND_ANSWER) {
			link->under_way &= ~(1u << (wc->wr_id & 0xf));
			return;
		}
		const unsigned char *message = aio_stand_in_message(link, wc);
		if (message) {
			bool answered = message[0] != 0xfe && aio_stand_in_reply(s, link, message, wc->byte_len);
			if ((answered || message[0] == 0xfe) && wc->byte_len == AIO_STAND_IN_BYTES &&
			    s->copies < AIO_STAND_IN_COPIES && aio_stand_in_copy(s, link, wc, message, answered))
				return;
			if (answered)
				wr_id |= (uint64_t)AIO_KIND_RECEIVE_ANSWERED << 28;
		}
	}
	s->kept[s->kept_end].wc = *wc;
	s->kept[s->kept_end++].wc.wr_id = wr_id;
}

/* One batch; how many completions there were. */
static inline int aio_stand_in_take(struct aio_stand_in *s)
{
	struct ibv_wc wc[AIO_STAND_IN_BATCH];
	bool tells = s->kept_first == s->kept_end;

	if (!aio_stand_in_room(s))
		return 0;
	int n = ibv_poll_cq(s->cq, AIO_STAND_IN_BATCH, wc);
	if (n <= 0)
		return 0;
	s->taken += (uint64_t)n;
	for (int i = 0; i < n; i++)
		aio_stand_in_keep(s, &wc[i]);
	if (tells && s->kept_first != s->kept_end)
		eventfd_write(s->event, 1);
	return n;
}

/* What the thread does each time that it wakes; whether there was much to do. */
static inline bool aio_stand_in_look(struct aio_stand_in *s)
{
	bool busy = false;

	pthread_mutex_lock(&s->lock);
	if (s->polls != s->seen)
		s->seen = s->polls; /* the loop is there */
	else
		busy = aio_stand_in_take(s) > 0;
	pthread_mutex_unlock(&s->lock);
	return busy;
}

static inline void *aio_stand_in_run(void *context)
{
	struct aio_stand_in *s = (struct aio_stand_in *)context;
	struct pollfd asked = { .fd = s->control, .events = POLLIN };
	bool busy = false;

	/* The descriptor is readable when the thread shall end. */
	while (poll(&asked, 1, busy ? AIO_STAND_IN_BUSY_MS : s->period_ms) == 0 || errno == EINTR) {
		if (asked.revents)
			break;
		busy = aio_stand_in_look(s);
	}
	return NULL;
}

/* ---- the loop */

/* Whether it is a request that aiordma answers, or has answered, without a decision. */
static inline bool aio_stand_in_is_request(const struct aio_stand_in *s, const struct ibv_wc *wc)
{
	unsigned char answer[AIO_STAND_IN_BYTES];
	struct aio_stood_for *link = aio_stood_for(s, wc);
	uint32_t kind = aio_stand_in_kind(wc);

	if (!link || kind == AIO_KIND_COPY_ANSWERED || kind == AIO_KIND_RECEIVE_ANSWERED)
		return link;
	const unsigned char *message = aio_stand_in_message(link, wc);
	return message && message[0] != 0xfe && aio_stand_in_answer(message, wc->byte_len, answer);
}

/* Requests come before everything else of a batch, in their order: what a completion calls may take long. */
static inline void aio_stand_in_requests_first(const struct aio_stand_in *s, struct ibv_wc *wc, int n)
{
	int first = 0;

	for (int i = 0; i < n; i++) {
		if (!aio_stand_in_is_request(s, &wc[i]))
			continue;
		struct ibv_wc request = wc[i];
		memmove(&wc[first + 1], &wc[first], (size_t)(i - first) * sizeof(*wc));
		wc[first++] = request;
	}
}

/* As ibv_poll_cq(), and first what the thread has kept. */
static inline int aio_stand_in_poll(struct aio_stand_in *s, struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	int n = 0, more = 0;

	pthread_mutex_lock(&s->lock);
	s->polls++;
	for (; n < most && s->kept_first != s->kept_end; n++) {
		struct aio_kept *kept = &s->kept[s->kept_first++];
		uint32_t kind = aio_stand_in_kind(&kept->wc);
		wc[n] = kept->wc;
		if (kind == AIO_KIND_COPY || kind == AIO_KIND_COPY_ANSWERED) {
			wc[n].wr_id |= (uint64_t)n;
			memcpy(s->handed[n], kept->message, AIO_STAND_IN_BYTES);
			s->copies--;
		}
	}
	/* Always both: a caller that finds less than it has room for arms the queue, and takes it to be empty. */
	if (n < most)
		more = ibv_poll_cq(cq, most - n, wc + n);
	if (more > 0)
		n += more;
	if (n > 1)
		aio_stand_in_requests_first(s, wc, n);
	pthread_mutex_unlock(&s->lock);
	return n ? n : more;
}

static inline const unsigned char *aio_stand_in_handed(const struct aio_stand_in *s, uint32_t number)
{
	return s->handed[number % AIO_STAND_IN_BATCH];
}

/* The loop has come: the descriptor is quiet until something more is kept. */
static inline void aio_stand_in_heard(struct aio_stand_in *s)
{
	eventfd_t number;

	eventfd_read(s->event, &number);
}

/* How many completions wait for the loop. */
static inline uint32_t aio_stand_in_kept(struct aio_stand_in *s)
{
	pthread_mutex_lock(&s->lock);
	uint32_t kept = s->kept_end - s->kept_first;
	pthread_mutex_unlock(&s->lock);
	return kept;
}

static inline uint64_t aio_stand_in_answered(struct aio_stand_in *s)
{
	pthread_mutex_lock(&s->lock);
	uint64_t answered = s->answered;
	pthread_mutex_unlock(&s->lock);
	return answered;
}

static inline uint64_t aio_stand_in_taken(struct aio_stand_in *s)
{
	pthread_mutex_lock(&s->lock);
	uint64_t taken = s->taken;
	pthread_mutex_unlock(&s->lock);
	return taken;
}

static inline void aio_stand_in_answer_sent(struct aio_stand_in *s, const struct ibv_wc *wc)
{
	pthread_mutex_lock(&s->lock);
	struct aio_stood_for *link = aio_stood_for(s, wc);
	if (link)
		link->under_way &= ~(1u << (wc->wr_id & 0xf));
	pthread_mutex_unlock(&s->lock);
}

/* Have a link answered for; `link` stays the caller's. 0, or ENOMEM. */
static inline int aio_stand_in_add(struct aio_stand_in *s, struct aio_stood_for *link)
{
	uint32_t index = (uint32_t)(link->tag >> 48);
	int rc = 0;

	pthread_mutex_lock(&s->lock);
	if (index >= s->link_room) {
		uint32_t room = index + 64;
		void *links = realloc(s->links, room * sizeof(*s->links));
		if (links) {
			s->links = (struct aio_stood_for **)links;
			memset(s->links + s->link_room, 0, (room - s->link_room) * sizeof(*s->links));
			s->link_room = room;
		} else {
			rc = ENOMEM;
		}
	}
	if (!rc) {
		s->links[index] = link;
		s->link_count++;
	}
	pthread_mutex_unlock(&s->lock);
	return rc;
}

/* Afterwards the thread uses neither the queue pair nor its memory. */
static inline void aio_stand_in_remove(struct aio_stand_in *s, const struct aio_stood_for *link)
{
	uint32_t index = (uint32_t)(link->tag >> 48);

	pthread_mutex_lock(&s->lock);
	if (index < s->link_room && s->links[index] == link) {
		s->links[index] = NULL;
		s->link_count--;
	}
	pthread_mutex_unlock(&s->lock);
}

/* 0, or an errno. */
static inline int aio_stand_in_open(struct aio_stand_in *s, struct ibv_cq *cq, int period_ms)
{
	memset(s, 0, sizeof(*s));
	s->cq = cq;
	s->period_ms = period_ms;
	s->pid = getpid();
	s->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->control = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->event < 0 || s->control < 0)
		return errno;
	return pthread_mutex_init(&s->lock, NULL);
}

/* Begin with the thread, which takes no signals; 0, or an errno. */
static inline int aio_stand_in_begin(struct aio_stand_in *s)
{
	sigset_t all, before;

	if (s->runs)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int rc = pthread_create(&s->thread, NULL, aio_stand_in_run, s);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	s->runs = !rc;
	return rc;
}

/* End the thread. A forked child has none. */
static inline void aio_stand_in_end(struct aio_stand_in *s)
{
	eventfd_t number;

	if (!s->runs || s->pid != getpid())
		return;
	eventfd_write(s->control, 1);
	pthread_join(s->thread, NULL);
	eventfd_read(s->control, &number);
	s->runs = false;
}

static inline void aio_stand_in_close(struct aio_stand_in *s)
{
	aio_stand_in_end(s);
	if (s->event >= 0)
		close(s->event);
	if (s->control >= 0)
		close(s->control);
	free(s->links);
	free(s->kept);
	s->event = s->control = -1;
	s->links = NULL;
	s->kept = NULL;
	s->link_room = s->kept_room = s->kept_first = s->kept_end = 0;
}
