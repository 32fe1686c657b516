/*
 * Completion queues that are destroyed while another thread takes their events.
 *
 * The C library's functions that such threads wait in are replaced here by some that first say so: what a thread does
 * between two of them cannot be stopped otherwise.
 */
#include "tests/harness.h"

#include "softdev.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/epoll.h>

static struct end a, b;
/* The taker stands before a lock; the destroyer waits, for whatever; for an acknowledgement; is done. */
static atomic_bool before_lock, waits, waits_for_ack, destroyed;
static _Thread_local bool takes, destroys;

#define NEXT(name) ((__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    static int (*_Atomic real)(pthread_mutex_t *);

    if (!atomic_load(&real))
        atomic_store(&real, NEXT(pthread_mutex_lock));
    if (takes) {
        takes = false;
        atomic_store(&before_lock, true);
        while (!atomic_load(&waits))
            ;
    }
    return atomic_load(&real)(mutex);
}

int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    static int (*_Atomic real)(pthread_cond_t *, pthread_mutex_t *);

    if (!atomic_load(&real))
        atomic_store(&real, NEXT(pthread_cond_wait));
    if (destroys) {
        atomic_store(&waits_for_ack, true);
        atomic_store(&waits, true);
    }
    return atomic_load(&real)(condition, mutex);
}

int sched_yield(void)
{
    if (destroys)
        atomic_store(&waits, true);
    return NEXT(sched_yield)();
}

static atomic_bool taken;

static void *take_one(void *argument)
{
    struct ibv_cq *cq;
    void *context;

    (void)argument;
    takes = true;
    OK(ibv_get_cq_event(b.channel, &cq, &context));
    takes = false;
    atomic_store(&taken, true);
    CHECK(cq == b.recv_cq);
    while (!atomic_load(&waits_for_ack))
        CHECK(!atomic_load(&destroyed));
    ibv_ack_cq_events(cq, 1);
    return NULL;
}

/* What a thread has taken from the channel has to be acknowledged, also where it has not returned yet. */
static void event_on_its_way(void)
{
    pthread_t thread;

    pair_open(&a, &b, &(struct end_options){.channel = true});
    pair_connect(&a, &b, NULL);
    post_recv(&b, 1, 0, 8);
    OK(ibv_req_notify_cq(b.recv_cq, 0));
    end_to_error(&b);
    OK(ibv_destroy_qp(b.qp));
    b.qp = NULL;
    CHECK(!pthread_create(&thread, NULL, take_one, NULL));
    while (!atomic_load(&before_lock) && !atomic_load(&taken))
        sched_yield();
    destroys = true;
    OK(ibv_destroy_cq(b.recv_cq));
    destroys = false;
    atomic_store(&destroyed, true);
    CHECK(!pthread_join(thread, NULL));
    b.recv_cq = b.send_cq;
    pair_close(&a, &b);
}

static atomic_bool stop, woken;
static _Thread_local bool looks;

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout)
{
    const int n = NEXT(epoll_wait)(fd, events, most, timeout);

    if (n > 0 && looks)
        atomic_store(&woken, true);
    return n;
}

static void *take_all(void *argument)
{
    struct ibv_cq *cq;
    void *context;

    (void)argument;
    looks = true;
    while (!atomic_load(&stop)) {
        if (ibv_get_cq_event(b.channel, &cq, &context))
            continue;
        CHECK(context == &b);
        ibv_ack_cq_events(cq, 1);
    }
    return NULL;
}

/*
 * A look without a completion behind it gives an event for a queue that is armed: none for one that goes. How the
 * threads meet is left to chance.
 */
static void event_without_completion(void)
{
    pthread_t threads[2];
    uint32_t seed = 3;

    OK(softdev_faults("spurious=1"));
    end_open(&b, &(struct end_options){.channel = true});
    set_nonblocking(b.channel->fd);
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&threads[i], NULL, take_all, NULL));
    for (int i = 0; i < TIMES(1000) && !test_takes_long(); i++) {
        struct ibv_cq *cq = ibv_create_cq(b.context, 1, &b, b.channel, 0);

        CHECK(cq);
        atomic_store(&woken, false);
        OK(ibv_req_notify_cq(cq, 0));
        while (!atomic_load(&woken))
            sched_yield();
        for (uint32_t delay = test_random(&seed) % 1000; delay; delay--)
            atomic_signal_fence(memory_order_seq_cst);
        OK(ibv_destroy_cq(cq));
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_join(threads[i], NULL));
    OK(softdev_faults(""));
    end_close(&b);
}

TEST_MAIN(TEST(event_on_its_way), TEST(event_without_completion))
