/* A receive completes after its sender can see that the message has arrived: an answer overtakes nothing. */
#include "tests/harness.h"
#include "tests/shm/raw_peer.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MESSAGES = 50 };

static atomic_int wake_fd = -1;
static struct raw_lane lane;
static _Atomic(uint64_t) acked; /* plus one, as it was when the program was woken for the completion */

/* The device's calls come here: the program is first in the linker's scope. */
ssize_t write(int fd, const void *buf, size_t n)
{
    if (fd == atomic_load(&wake_fd))
        atomic_store(&acked, atomic_load(&lane.seg->acked) + 1);
    return syscall(SYS_write, fd, buf, n);
}

/* The only member of the channel's set, while no peer has a bell. */
static int wake_of(const struct ibv_comp_channel *channel)
{
    char path[64], line[200];
    int fd = -1;

    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", channel->fd);
    FILE *info = fopen(path, "r");
    CHECK(info);
    while (fd < 0 && fgets(line, sizeof line, info))
        (void)sscanf(line, "tfd: %d", &fd);
    fclose(info);
    CHECK(fd >= 0);
    return fd;
}

static void before_the_completion(void)
{
    static const char data[100] = {[99] = 7};
    struct raw_peer peer;
    struct end end;

    end_open(&end, &(struct end_options){.channel = true});
    const int wake = wake_of(end.channel);
    const struct address self = end_address(&end);
    raw_meet(&peer, self.qpn >> SOFT_QPN_INDEX_BITS);
    struct address to = self;
    to.qpn = raw_qpn(&peer, 7);
    end_connect(&end, &to, NULL);
    raw_attach(&lane, &peer, to.qpn, self.qpn, IBV_QPT_RC);
    atomic_store(&wake_fd, wake);
    for (uint64_t i = 1; i <= MESSAGES; i++) {
        const struct soft_rec rec = {.op = SOFT_OP_SEND,
                                     .flags = SOFT_REC_FIRST | SOFT_REC_LAST,
                                     .length = sizeof data,
                                     .total = sizeof data};

        atomic_store(&acked, 0);
        post_recv(&end, i, 0, sizeof data);
        OK(ibv_req_notify_cq(end.recv_cq, 0));
        raw_record(&lane, rec, NULL, data);
        atomic_store(&lane.seg->want_ack, i);
        raw_publish(&lane);
        while (!atomic_load(&acked)) /* nobody polls: the device's thread takes it */
            sched_yield();
        CHECK_EQ(atomic_load(&acked) - 1, i);
        expect_event(end.channel, end.recv_cq);
        expect_wc(end.recv_cq, i, IBV_WC_SUCCESS);
    }
    atomic_store(&wake_fd, -1);
    raw_lane_drop(&lane);
    raw_close(&peer);
    end_close(&end);
}

TEST_MAIN(TEST(before_the_completion))
