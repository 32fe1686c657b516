/* A peer that fills its own bell faster than who rings it can empty it: the ring ends all the same. */
#include "tests/harness.h"
#include "tests/shm/raw_peer.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BELL = 4096, MOST_READS = 16, MESSAGES = 100 };

static pthread_mutex_t filling = PTHREAD_MUTEX_INITIALIZER;
static int bell = -1; /* the end that fills it */
static atomic_uint reads;

static void keep_full(int fd)
{
    pthread_mutex_lock(&filling);
    bell = fd;
    pthread_mutex_unlock(&filling);
}

/* The device's calls come here: the program is first in the linker's scope. After each read the pipe is full again. */
ssize_t read(int fd, void *buf, size_t nbytes)
{
    static const char zeros[BELL];
    const ssize_t got = syscall(SYS_read, fd, buf, nbytes);

    if (got != BELL)
        return got;
    pthread_mutex_lock(&filling);
    if (bell >= 0) {
        atomic_fetch_add(&reads, 1);
        CHECK(write(bell, zeros, sizeof zeros) == BELL);
    }
    pthread_mutex_unlock(&filling);
    return got;
}

static void a_bell_that_stays_full(void)
{
    static const char zeros[BELL], data[100] = {[99] = 7};
    struct soft_message msg = {.type = SOFT_ATTACH, .qp_type = IBV_QPT_RC, .attempt = 1, .event_id = 5};
    struct raw_peer peer;
    struct raw_lane lane;
    struct end end;
    int fds[SOFT_PACKET_FDS], ends[2];

    end_open(&end, NULL);
    const struct address self = end_address(&end);
    raw_meet(&peer, self.qpn >> SOFT_QPN_INDEX_BITS);
    struct address to = self;
    to.qpn = raw_qpn(&peer, 7);
    end_connect(&end, &to, NULL);
    CHECK(!pipe2(ends, O_CLOEXEC | O_NONBLOCK));
    CHECK(fcntl(ends[1], F_SETPIPE_SZ, BELL) == BELL);
    msg.src_qpn = to.qpn;
    msg.dst_qpn = self.qpn;
    CHECK(raw_send(peer.ask_fd, &msg, &ends[1], 1));
    do
        CHECK(raw_wait(peer.ask_fd, &msg, fds));
    while (msg.type == SOFT_ABSENT);
    CHECK_EQ(msg.type, SOFT_ATTACHED);
    raw_lane_take(&lane, &peer, &msg, fds[0]);
    raw_close_all(fds);
    CHECK(write(ends[1], zeros, sizeof zeros) == BELL);
    keep_full(ends[1]);
    for (uint64_t i = 1; i <= MESSAGES; i++) {
        const struct soft_rec rec = {.op = SOFT_OP_SEND,
                                     .flags = SOFT_REC_FIRST | SOFT_REC_LAST,
                                     .length = sizeof data,
                                     .total = sizeof data};

        atomic_store(&peer.own->cq[0].armed, i * SOFT_ARM_NUMBER | SOFT_ARM_ANY);
        atomic_store(&reads, 0);
        post_recv(&end, i, 0, sizeof data);
        raw_record(&lane, rec, NULL, data);
        atomic_store(&lane.seg->want_ack, i);
        raw_publish(&lane);
        expect_wc(end.recv_cq, i, IBV_WC_SUCCESS);
        while (atomic_load(&lane.seg->acked) < i || !atomic_load(&reads))
            expect_empty(end.recv_cq); /* another thread acknowledges it */
        CHECK(atomic_load(&reads) <= MOST_READS);
    }
    keep_full(-1);
    raw_lane_drop(&lane);
    raw_close(&peer);
    end_close(&end);
    close(ends[0]);
    close(ends[1]);
}

TEST_MAIN(TEST(a_bell_that_stays_full))
