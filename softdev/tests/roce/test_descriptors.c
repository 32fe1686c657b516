/* A queue pair that is connected while descriptors are short: the error says so, and it can be connected later. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/harness.h"

enum { PLACES = 128 };

static void says_so(void)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .max_dest_rd_atomic = 1, .min_rnr_timer = 1};
    struct rlimit limit;
    int taken[PLACES], n = 0, failures = 0, err;
    struct end a, b;

    pair_open(&a, &b, NULL);
    end_to_init(&a, 0);
    const struct address peer = end_address(&b);
    attr.dest_qp_num = peer.qpn;
    attr.rq_psn = peer.psn;
    attr.ah_attr =
        (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.dgid = peer.gid, .hop_limit = 1}};
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
    CHECK(!setrlimit(RLIMIT_NOFILE, &(struct rlimit){PLACES, limit.rlim_max}));
    while (n < PLACES && (taken[n] = fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0)
        n++;
    CHECK_EQ(errno, EMFILE);
    /* Each step of what it needs descriptors for is short of one once. */
    while ((err = ibv_modify_qp(a.qp, &attr,
                                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))) {
        CHECK_EQ(err, EMFILE);
        CHECK_EQ(end_state(&a), IBV_QPS_INIT);
        failures++;
        CHECK(n);
        close(taken[--n]);
    }
    CHECK(failures > 1);
    CHECK_EQ(end_state(&a), IBV_QPS_RTR);
    while (n)
        close(taken[--n]);
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
    pair_close(&a, &b);
}

static const struct test tests[] = {TEST(says_so)};

int main(int argc, char **argv)
{
    setenv("SOFTDEV_WIRE", "only", 1); /* before the device is opened */
    return test_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
