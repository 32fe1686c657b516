/*
 * Packets from the network: checks them and passes them to their queue pair. The thread that looks handles all of them:
 * a poll of any CQ, or the progress thread, which the kernel wakes only while no thread polls.
 */
#include <string.h>
#include <unistd.h>

#include "roce/port.h"
#include "roce/watch.h"

enum {
	TOUCHED = 64,
	RUN = 8,           /* packets since it woke: a sign of heavy traffic */
	MORE_LOOKS = 40,   /* by the progress thread for more packets before it sleeps: about 20 us */
	OWED_NS = 1000000, /* for a program that was woken and has always answered so far */
	EXIT_MS = 200,     /* for a thread that has a lock and waits for a CPU */
};

static pthread_mutex_t receive_lock = PTHREAD_MUTEX_INITIALIZER;

/*
 * Deferred acknowledgements. A program that polls all the time and has answered the last messages either answers what it
 * receives or polls again: behind its answer, the acknowledgement needs no system call of its own, and no sender waits for
 * it. If the program does neither, the timer by which the progress thread checks for polls is running, and sends them.
 */
static struct {
	uint32_t to[TOUCHED]; /* QP numbers; receive_lock */
	unsigned count;
	bool patient; /* until the timer: the program was woken, and polls before it answers */
	atomic_bool any;
} owed;

struct round {
	struct soft_after after;
	struct soft_qp *touched[TOUCHED];
	unsigned count;
};

static void touch(struct round *round, struct soft_qp *qp)
{
	for (unsigned i = 0; i < round->count; i++)
		if (round->touched[i] == qp)
			return;
	if (round->count == TOUCHED) {
		soft_roce_go_on(qp, false, &round->after);
		return;
	}
	round->touched[round->count++] = qp;
}

/*
 * Adapters and rxe number their IPv4 packets, so the checksum must be right for some identification. softdev devices
 * number theirs by place in the sent run. That can differ from the place in what arrived as one, because runs are split
 * and merged on the way.
 */
static bool icrc_ok(const struct roce_inbound *in)
{
	static bool by_place; /* whether this held lately; receive_lock */
	struct roce_ipv4 ip;

	if (!roce_icrc_check(&in->path, in->bytes, in->size, by_place ? in->place : 0, &ip))
		return false;
	if (in->place)
		by_place = ip.id == in->place;
	return !soft_roce_is_ours(in->path.src_port) || (ip.id < ROCE_BATCH && !ip.may_fragment);
}

static void count(_Atomic(uint64_t) *counter)
{
	atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

static void one_packet(void *context, const struct roce_inbound *in)
{
	struct round *round = context;
	struct roce_packet packet;

	count(&soft_roce_counters.received);
	if (roce_parse(in->bytes, in->size, &packet) != ROCE_OK) {
		count(&soft_roce_counters.malformed);
		return;
	}
	if (soft_unlikely(packet.qpn == ROCE_MAD_QPN)) {
		if (icrc_ok(in))
			soft_roce_mad_take(&packet, in);
		else
			count(&soft_roce_counters.bad_icrc);
		return;
	}
	struct soft_qp *qp = soft_qp_find(packet.qpn);
	if (!qp && packet.qpn >> SOFT_QPN_INDEX_BITS != soft_proc.slot) {
		soft_roce_forward(packet.qpn >> SOFT_QPN_INDEX_BITS, in);
		return;
	}
	if (!icrc_ok(in)) {
		count(&soft_roce_counters.bad_icrc);
		return;
	}
	if (!qp) {
		count(&soft_roce_counters.no_qp);
		return;
	}
	if (soft_unlikely(atomic_load_explicit(&soft_faults_on, memory_order_relaxed)) && soft_fault_is_cut(qp))
		return;
	if (packet.opcode == ROCE_CNP_OPCODE) {
		soft_roce_notified(qp, &packet, in);
		return;
	}
	soft_roce_take(qp, &packet, in, &round->after);
	touch(round, qp);
}

static void any_packet(void *context, const struct roce_inbound *in)
{
	if (soft_unlikely(atomic_load_explicit(&soft_faults_on, memory_order_relaxed)))
		soft_roce_disturb(in, one_packet, context);
	else
		one_packet(context, in);
}

/* The caller holds receive_lock. wait: for the locks of queue pairs; without it, acknowledgements of locked ones
 * stay due. */
static void pay(bool wait, struct soft_after *after)
{
	unsigned left = 0;

	for (unsigned i = 0; i < owed.count; i++) {
		struct soft_qp *qp = soft_qp_find(owed.to[i]);
		if (qp && !soft_roce_answer(qp, wait, after))
			owed.to[left++] = owed.to[i];
	}
	owed.count = left;
	owed.patient = false;
	atomic_store_explicit(&owed.any, left, memory_order_relaxed);
}

static void owe(uint32_t qpn)
{
	unsigned i = 0;

	while (i < owed.count && owed.to[i] != qpn)
		i++;
	owed.to[i] = qpn;
	owed.count += i == owed.count;
	atomic_store_explicit(&owed.any, true, memory_order_relaxed);
}

/* The caller holds receive_lock; this function releases it. port: as for soft_roce_receive(). polled: not by the
 * progress thread. */
static unsigned look(void *port, bool polled)
{
	/* Read under the lock: a thread that restarts the watch afterwards pays for it, and takes the lock. */
	const bool stopped = polled && roce_watch_stopped();
	const unsigned wakes = soft_chan_wakes;
	struct round round;

	round.after = (struct soft_after){ 0 };
	round.count = 0; /* a poll that finds nothing should not clear all of it */
	if (owed.count && !owed.patient)
		pay(true, &round.after);
	unsigned n = soft_roce_receive(port, any_packet, &round);

	soft_roce_release(one_packet, &round);

	const bool woken = !polled && soft_chan_wakes != wakes;
	for (unsigned i = 0; i < round.count; i++)
		if (soft_roce_go_on(round.touched[i], (stopped || woken) && owed.count < TOUCHED, &round.after))
			owe(round.touched[i]->qp.qp_num);
	if (woken && owed.count && !owed.patient) {
		owed.patient = true;
		soft_timer_want(soft_now_ns() + OWED_NS);
	}
	pthread_mutex_unlock(&receive_lock);
	/* NAKs have left by now, so the queue pairs that sent them may fail. */
	soft_after_run(&round.after);
	return n;
}

static void pay_all(void)
{
	struct soft_after after = { 0 };

	pthread_mutex_lock(&receive_lock);
	pay(true, &after);
	pthread_mutex_unlock(&receive_lock);
	soft_after_run(&after);
}

/*
 * exit(), or the end of main(): the timer will not go off again, and the sender of a received message would get no
 * acknowledgement and wait until it gives up. Another thread may hold a lock and never release it; so may this thread
 * if it came here from a signal handler. So every wait here has a limit.
 */
__attribute__((destructor)) static void pay_at_exit(void)
{
	const uint64_t until = soft_now_ns() + EXIT_MS * UINT64_C(1000000);
	struct soft_after after = { 0 }; /* not run: that takes locks, and no thread will use its results */

	while (atomic_load(&owed.any)) {
		if (!pthread_mutex_trylock(&receive_lock)) {
			pay(false, &after);
			pthread_mutex_unlock(&receive_lock);
		}
		if (!atomic_load(&owed.any) || soft_now_ns() >= until)
			return;
		usleep(50);
	}
}

void soft_roce_poll(void)
{
	roce_watch_poll();
	if (soft_unlikely(pthread_mutex_trylock(&receive_lock)))
		roce_watch_kept_out();
	else
		roce_watch_looked(look(NULL, true));
}

static void look_often(void *port)
{
	const unsigned wakes = soft_chan_wakes;
	unsigned more = 0, packets = 0;

	for (int rounds = 0; rounds < 16;) {
		if (pthread_mutex_trylock(&receive_lock)) {
			/* On a CPU that both share, each wait for the other costs two switches. */
			if (port != ROCE_EVERY_PORT && roce_watch_leave())
				break;
			pthread_mutex_lock(&receive_lock);
		}
		const unsigned n = look(port, false);
		rounds += n != 0;
		packets += n;
		if (port != ROCE_EVERY_PORT && roce_watch_hand_over()) {
			if (!roce_watch_stopped()) /* it was stopped for a moment */
				pay_all();
			break;
		}
		/*
		 * More packets follow a long run: a wake-up for them would cost the sender more than looking here. But
		 * a program that was woken looks itself, and on a CPU that both share it waits meanwhile.
		 */
		if (soft_chan_wakes != wakes || roce_watch_program_awake())
			more = 0;
		else if (n && packets >= RUN && port != ROCE_EVERY_PORT)
			more = MORE_LOOKS;
		if (!n && !more--)
			break;
	}
}

void soft_roce_catch_up(void)
{
	if (atomic_load(&soft_pollers))
		look_often(ROCE_EVERY_PORT);
}

void soft_roce_progress(void *port)
{
	if (soft_roce_front_is(port)) {
		soft_roce_front_ended(port);
		return;
	}
	look_often(port);
}

void soft_roce_rx_after_fork(void)
{
	pthread_mutex_init(&receive_lock, NULL);
	roce_watch_after_fork();
	atomic_store(&soft_pollers, 0);
	owed.count = 0;
	owed.patient = false;
	atomic_store(&owed.any, false);
}

void soft_roce_rewatch(void)
{
	if (!roce_watch_sleeps())
		return;
	/* Regardless of owed.any: a poll that began earlier may be about to defer one, and be the last poll. */
	pay_all();
	/* The kernel had no memory for it: until it has, the progress thread looks from time to time. */
	if (soft_unlikely(roce_watch_stopped())) {
		pthread_mutex_lock(&receive_lock);
		look(NULL, false);
		roce_watch_ask_later();
	}
}

void soft_roce_tick(void)
{
	soft_roce_front_tick();
	if (atomic_load(&owed.any))
		pay_all();
	if (!atomic_load(&soft_pollers)) {
		/* From here on the polls are no longer checked: the next queue pair's owner may never poll. */
		soft_roce_rewatch();
		return;
	}
	if (!roce_watch_stopped()) {
		if (atomic_load(&soft_faults_on)) { /* some packets may be held back */
			pthread_mutex_lock(&receive_lock);
			look(NULL, false);
		}
		return;
	}
	if (roce_watch_ask())
		soft_roce_rewatch();
}
