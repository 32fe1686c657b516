/*
 * datapath/_stand_in.h between three threads: a device with two links that sends messages, the loop, and the thread
 * that stands in for it. The loop polls, works, is blocked, and sleeps, in an order drawn from the seed.
 *
 * Checked: each request is answered once, by one of the two; everything comes to the loop once and in order; cursors
 * arrive up to the last; no wake-up is lost (the program hangs then); the device always finds a receive again.
 */
#include "aiordma/datapath/_stand_in.h"

#include <stdio.h>

#define CHECK(that)                                                                                                    \
	do {                                                                                                           \
		if (!(that)) {                                                                                         \
			fprintf(stderr, "line %d: %s\n", __LINE__, #that);                                             \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define LINKS 2
#define SLOTS 16
#define ROUNDS 3000
#define SLOT_BYTES 128

struct link {
	struct ibv_qp qp;
	struct aio_stood_for stood_for;
	unsigned char memory[SLOTS][SLOT_BYTES], answers[AIO_STAND_IN_ANSWERS][64];
	uint32_t posted[SLOTS], posts, taken;            /* receives that are posted, oldest first */
	uint32_t requests, cursor;                       /* sent by the device */
	uint32_t answered;                               /* by the peer's account */
	uint32_t seen_requests, seen_cursor, seen_flags; /* of the loop */
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t room;
	struct ibv_context context;
	struct ibv_cq cq;
	struct ibv_wc ring[4096];
	uint32_t head, tail;
	bool armed, over;
	int channel;
} device;
static struct link links[LINKS];
static struct aio_stand_in stand_in;
static uint32_t others, seen_others; /* completions that are no link's */

/* ---- the device, as verbs see it */

static void push(struct ibv_wc wc)
{
	CHECK(device.tail - device.head < 4096);
	device.ring[device.tail++ % 4096] = wc;
	if (device.armed) {
		device.armed = false;
		eventfd_write(device.channel, 1);
	}
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int got = 0;

	(void)cq;
	pthread_mutex_lock(&device.lock);
	while (got < n && device.head != device.tail)
		wc[got++] = device.ring[device.head++ % 4096];
	pthread_mutex_unlock(&device.lock);
	return got;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct link *link = (struct link *)qp;

	(void)bad;
	pthread_mutex_lock(&device.lock);
	CHECK(link->posts - link->taken < SLOTS);
	link->posted[link->posts++ % SLOTS] = (uint32_t)(wr->wr_id & 0xfffffff);
	pthread_cond_broadcast(&device.room);
	pthread_mutex_unlock(&device.lock);
	return 0;
}

static uint32_t number_in(const unsigned char *at)
{
	return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void put_number(unsigned char *at, uint32_t number)
{
	for (int i = 0; i < 4; i++)
		at[i] = (unsigned char)(number >> (24 - 8 * i));
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct link *link = (struct link *)qp;
	const unsigned char *answer = (const unsigned char *)(uintptr_t)wr->sg_list->addr;

	(void)bad;
	pthread_mutex_lock(&device.lock);
	CHECK(wr->sg_list->length == 44 && wr->send_flags & IBV_SEND_SOLICITED && wr->send_flags & IBV_SEND_SIGNALED);
	CHECK(answer[0] == 0x27 && answer[3] == 0x80 && answer[1] == 44 && answer[2] == 0);
	/* Two may be answered in another order, by the loop and by the thread; none is answered twice. */
	CHECK(number_in(answer + 8) < link->requests);
	link->answered++;
	push((struct ibv_wc){ .wr_id = wr->wr_id, .opcode = IBV_WC_SEND });
	pthread_mutex_unlock(&device.lock);
	return 0;
}

static void send_to(struct link *link, bool request)
{
	while (link->posts == link->taken && !device.over)
		pthread_cond_wait(&device.room, &device.lock);
	uint32_t slot = link->posted[link->taken++ % SLOTS];
	unsigned char *message = link->memory[slot];
	memset(message, 0, 44);
	if (request) {
		message[0] = 0x27;
		message[1] = 44;
		put_number(message + 8, link->requests++);
	} else {
		link->cursor++;
		message[0] = 0xfe;
		message[1] = 44;
		message[2] = (unsigned char)(link->cursor >> 8);
		message[3] = (unsigned char)link->cursor;
		put_number(message + 4, 7);
		put_number(message + 8, link->cursor);
		message[24] = link->cursor == 1 ? 0x10 : 0;
		message[25] = link->cursor == 2 ? 0x80 : 0;
	}
	push((struct ibv_wc){ .wr_id = link->stood_for.tag | slot, .opcode = IBV_WC_RECV, .byte_len = 44 });
}

static void *send_all(void *seed)
{
	unsigned int state = *(unsigned int *)seed;

	for (int round = 0; round < ROUNDS; round++) {
		pthread_mutex_lock(&device.lock);
		struct link *link = &links[rand_r(&state) % LINKS];
		int kind = rand_r(&state) % 8;
		if (kind == 0)
			push((struct ibv_wc){ .wr_id = 0x0009000000000000 | others++, .opcode = IBV_WC_SEND });
		else
			send_to(link, kind == 1);
		pthread_mutex_unlock(&device.lock);
		if (rand_r(&state) % 64 == 0)
			usleep(1000);
	}
	return NULL;
}

/* ---- the loop */

static void on_message(struct link *link, const unsigned char *message, bool answered)
{
	if (message[0] == 0xfe) {
		uint32_t cursor = number_in(message + 8);
		CHECK(cursor > link->seen_cursor && !answered);
		CHECK((uint16_t)(message[2] << 8 | message[3]) == (uint16_t)cursor);
		link->seen_cursor = cursor;
		link->seen_flags |= (uint32_t)message[24] << 8 | message[25];
		return;
	}
	CHECK(number_in(message + 8) == link->seen_requests);
	link->seen_requests++;
	if (!answered) {
		unsigned char answer[44];
		CHECK(aio_stand_in_answer(message, 44, answer));
		struct ibv_sge sge = { .addr = (uintptr_t)answer, .length = 44 };
		struct ibv_send_wr wr = { .wr_id = aio_stand_in_id(link->stood_for.tag, 1, 0),
					  .sg_list = &sge,
					  .send_flags = IBV_SEND_SOLICITED | IBV_SEND_SIGNALED },
				   *bad;
		CHECK(ibv_post_send(&link->qp, &wr, &bad) == 0);
	}
}

static void on_completion(const struct ibv_wc *wc, unsigned int *state)
{
	uint32_t kind = aio_stand_in_kind(wc), number = (uint32_t)(wc->wr_id & 0xfffffff);

	if (wc->wr_id >> 48 == 9) {
		CHECK(number == seen_others);
		seen_others++;
		return;
	}
	struct link *link = &links[(wc->wr_id >> 48) - 1];
	if (kind == AIO_KIND_COPY || kind == AIO_KIND_COPY_ANSWERED)
		on_message(link, aio_stand_in_handed(&stand_in, number), kind == AIO_KIND_COPY_ANSWERED);
	else if (kind == AIO_KIND_ANSWER)
		aio_stand_in_answer_sent(&stand_in, wc);
	else if (kind == AIO_KIND_RECEIVE || kind == AIO_KIND_RECEIVE_ANSWERED) {
		on_message(link, link->memory[number], kind == AIO_KIND_RECEIVE_ANSWERED);
		struct ibv_recv_wr wr = { .wr_id = link->stood_for.tag | number }, *bad;
		CHECK(ibv_post_recv(&link->qp, &wr, &bad) == 0);
	}
	if (rand_r(state) % 512 == 0)
		usleep(5000); /* what a completion called blocks the loop */
}

static bool all_seen(void)
{
	pthread_mutex_lock(&device.lock);
	bool all = device.over && seen_others == others;
	for (int i = 0; i < LINKS; i++)
		all = all && links[i].seen_cursor == links[i].cursor && links[i].seen_requests == links[i].requests;
	pthread_mutex_unlock(&device.lock);
	return all;
}

static int poll_batch(struct ibv_wc *wc, unsigned int *state)
{
	int n = aio_stand_in_poll(&stand_in, &device.cq, AIO_STAND_IN_BATCH, wc);

	for (int i = 0; i < n; i++)
		on_completion(&wc[i], state);
	return n;
}

static void sleep_on(void)
{
	struct pollfd fds[] = { { .fd = device.channel, .events = POLLIN },
				{ .fd = stand_in.event, .events = POLLIN } };
	eventfd_t number;

	poll(fds, 2, -1);
	if (fds[0].revents)
		eventfd_read(device.channel, &number);
	if (fds[1].revents)
		aio_stand_in_heard(&stand_in);
}

static void run_loop(unsigned int *state)
{
	struct ibv_wc wc[AIO_STAND_IN_BATCH];

	while (!all_seen()) {
		if (rand_r(state) % 32 == 0)
			usleep(rand_r(state) % 20000); /* blocked */
		pthread_mutex_lock(&stand_in.lock);
		CHECK(stand_in.copies <= AIO_STAND_IN_COPIES);
		pthread_mutex_unlock(&stand_in.lock);
		if (poll_batch(wc, state) == AIO_STAND_IN_BATCH)
			continue;
		pthread_mutex_lock(&device.lock);
		device.armed = true;
		pthread_mutex_unlock(&device.lock);
		if (poll_batch(wc, state) == 0 && !all_seen())
			sleep_on();
	}
}

static void *end_device(void *thread)
{
	pthread_join(*(pthread_t *)thread, NULL);
	pthread_mutex_lock(&device.lock);
	device.over = true;
	eventfd_write(device.channel, 1);
	pthread_mutex_unlock(&device.lock);
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned int seed = argc > 1 ? (unsigned int)atoi(argv[1]) : 1, state = seed + 1000;
	pthread_t sender, ender;

	pthread_mutex_init(&device.lock, NULL);
	pthread_cond_init(&device.room, NULL);
	device.channel = eventfd(0, EFD_NONBLOCK);
	device.context.ops.poll_cq = poll_cq;
	device.context.ops.post_recv = post_recv;
	device.context.ops.post_send = post_send;
	device.cq.context = &device.context;
	CHECK(aio_stand_in_open(&stand_in, &device.cq, 2) == 0);
	CHECK(aio_stand_in_begin(&stand_in) == 0 && aio_stand_in_begin(&stand_in) == 0);
	for (uint32_t i = 0; i < LINKS; i++) {
		struct link *link = &links[i];
		link->qp.context = &device.context;
		link->stood_for = (struct aio_stood_for){ .tag = (uint64_t)(i + 1) << 48 | (uint64_t)(i + 77) << 32,
							  .qp = &link->qp,
							  .receives = (uintptr_t)link->memory,
							  .answers = (uintptr_t)link->answers,
							  .receive_count = SLOTS,
							  .receive_bytes = SLOT_BYTES };
		for (uint32_t slot = 0; slot < SLOTS; slot++) {
			struct ibv_recv_wr wr = { .wr_id = link->stood_for.tag | slot }, *bad;
			CHECK(ibv_post_recv(&link->qp, &wr, &bad) == 0);
		}
		CHECK(aio_stand_in_add(&stand_in, &link->stood_for) == 0);
	}
	CHECK(pthread_create(&sender, NULL, send_all, &seed) == 0);
	CHECK(pthread_create(&ender, NULL, end_device, &sender) == 0);
	run_loop(&state);
	pthread_join(ender, NULL);
	for (int i = 0; i < LINKS; i++) {
		CHECK(links[i].answered == links[i].requests);
		CHECK(links[i].seen_flags == 0x1080);
		aio_stand_in_remove(&stand_in, &links[i].stood_for);
	}
	printf("%llu of %d taken, %llu answered\n", (unsigned long long)aio_stand_in_taken(&stand_in), ROUNDS,
	       (unsigned long long)aio_stand_in_answered(&stand_in));
	aio_stand_in_close(&stand_in);
	return 0;
}
