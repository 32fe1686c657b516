/* A message that comes while a thread of the program is inside of the queue pair, and has lost its processor there: the
 * device's thread sleeps until that is over, and does not keep the processor from it. */
#include "tests/harness.h"
#include "tests/shm/raw_peer.h"

#include <time.h>
#include <unistd.h>

#include "core/objects.h"

/* With a sanitizer, each look takes the thread longer than it sleeps. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { PARTS_OF_FOUR = 4 };
#else
enum { PARTS_OF_FOUR = 3 };
#endif

static uint64_t clock_of(clockid_t id)
{
    struct timespec now;

    CHECK(!clock_gettime(id, &now));
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void the_thread_sleeps(void)
{
    static const char data[100] = {[99] = 7};
    const struct soft_rec rec = {.op = SOFT_OP_SEND,
                                 .flags = SOFT_REC_FIRST | SOFT_REC_LAST,
                                 .length = sizeof data,
                                 .total = sizeof data};
    struct raw_peer peer;
    struct raw_lane lane;
    struct end end;

    end_open(&end, &(struct end_options){.channel = true});
    const struct address self = end_address(&end);
    raw_meet(&peer, self.qpn >> SOFT_QPN_INDEX_BITS);
    struct address to = self;
    to.qpn = raw_qpn(&peer, 7);
    end_connect(&end, &to, NULL);
    raw_attach(&lane, &peer, to.qpn, self.qpn, IBV_QPT_RC);
    post_recv(&end, 1, 0, sizeof data);
    OK(ibv_req_notify_cq(end.recv_cq, 0));
    struct soft_lock *lock = &to_qp(end.qp)->sq_lock;
    CHECK(soft_trylock(lock));
    raw_record(&lane, rec, NULL, data);
    raw_publish(&lane);
    const uint64_t begin = clock_of(CLOCK_MONOTONIC), spent = clock_of(CLOCK_PROCESS_CPUTIME_ID);
    usleep(200000); /* this thread takes none of the time that is counted */
    const uint64_t cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID) - spent, all = clock_of(CLOCK_MONOTONIC) - begin;
    soft_unlock(lock);
    if (PARTS_OF_FOUR < 4 && cpu > all / 4 * PARTS_OF_FOUR)
        FAIL("the device's thread took %lu of %lu us", (unsigned long)cpu / 1000, (unsigned long)all / 1000);
    expect_event(end.channel, end.recv_cq);
    expect_wc(end.recv_cq, 1, IBV_WC_SUCCESS);
    raw_lane_drop(&lane);
    raw_close(&peer);
    end_close(&end);
}

TEST_MAIN(TEST(the_thread_sleeps))
