/* A process without file descriptors left: its connections go on, asleep on events, new ones fail with the reason on
 * both sides, and once there are descriptors again, new ones work. */
#include "softdev.h"
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MESSAGES = 200, PLACES = 256 };

static struct ibv_qp *another_qp(const struct end *end)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = end->send_cq,
        .recv_cq = end->recv_cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    struct ibv_qp *qp = ibv_create_qp(end->pd, &attr);

    CHECK(qp);
    return qp;
}

static void echo(struct end *end, bool begin)
{
    for (unsigned i = 0; i < MESSAGES; i++) {
        struct ibv_wc wc;

        if (begin)
            post_send(end, 2, 1000, 100, IBV_SEND_SIGNALED);
        wc = sleep_wc(end->channel, end->recv_cq);
        CHECK_STATUS(&wc, IBV_WC_SUCCESS);
        post_recv(end, 1, 0, 100);
        if (!begin)
            post_send(end, 2, 1000, 100, IBV_SEND_SIGNALED);
        wc = sleep_wc(end->channel, end->send_cq);
        CHECK_STATUS(&wc, IBV_WC_SUCCESS);
    }
}

/* A refusal comes at once; the timeout (0.5 s, seven times) is for processes that do not get to run. */
static const struct connect_options patient = {
    .rnr_retry = 7, .retry_cnt = 7, .timeout = 17, .min_rnr_timer = 1, .max_rd_atomic = 16};

/* Another QP of the end, ready to receive, and the peer's address. */
static struct address begin_more(int fd, const struct end *first, struct end *more)
{
    struct address peer;

    *more = *first;
    more->qp = another_qp(first);
    end_to_init(more, 0);
    post_recv(more, 3, 4000, 100);
    peer = exchange(fd, more);
    end_to_rtr(more, &peer, &patient);
    return peer;
}

/*
 * Sends a message on the new QP: how that ended. (late) Not before the device knows whether there is a way to the peer;
 * were it slower than that, the test would be the same as the other.
 */
static enum ibv_wc_status send_more(struct end *more, const struct address *peer, bool late)
{
    struct ibv_wc wc;

    end_to_rts(more, peer, &patient);
    if (late)
        usleep(50000);
    post_send(more, 4, 5000, 100, IBV_SEND_SIGNALED);
    wc = next_wc(more->send_cq);
    CHECK_EQ(wc.wr_id, 4);
    return wc.status;
}

static void end_more(int fd, struct end *more)
{
    rendezvous(fd);
    OK(ibv_destroy_qp(more->qp));
}

static void connect_more(int fd, const struct end *first)
{
    struct end more;
    struct address peer = begin_more(fd, first, &more);
    struct ibv_wc wc;

    rendezvous(fd);
    CHECK_EQ(send_more(&more, &peer, false), IBV_WC_SUCCESS);
    wc = next_wc(more.recv_cq);
    CHECK_EQ(wc.wr_id, 3);
    CHECK_STATUS(&wc, IBV_WC_SUCCESS);
    end_more(fd, &more);
}

/* Fails to connect another QP: the reason is a shortage here, or (peer) there. */
static void fail_more(int fd, const struct end *first, bool peer, bool late)
{
    struct end more;
    struct address other = begin_more(fd, first, &more);
    struct ibv_wc wc;

    rendezvous(fd);
    CHECK_EQ(send_more(&more, &other, late), peer ? IBV_WC_REM_OP_ERR : IBV_WC_LOC_QP_OP_ERR);
    CHECK_EQ(softdev_shortage(peer), EMFILE);
    CHECK_EQ(softdev_shortage(!peer), 0);
    wc = next_wc(more.recv_cq);
    CHECK_EQ(wc.wr_id, 3);
    CHECK_STATUS(&wc, IBV_WC_WR_FLUSH_ERR);
    end_more(fd, &more);
}

/* The other end of fail_more(), which does not send. */
static void attend_more(int fd, const struct end *first)
{
    struct end more;

    begin_more(fd, first, &more);
    rendezvous(fd);
    end_more(fd, &more);
}

static struct end_options options = {.channel = true};

static void peer_process(int fd, void *argument)
{
    struct address peer;
    struct end end;

    (void)argument;
    end_open(&end, &options);
    end_to_init(&end, 0);
    post_recv(&end, 1, 0, 100);
    peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    echo(&end, false);
    fail_more(fd, &end, true, false);
    fail_more(fd, &end, true, true);
    attend_more(fd, &end);
    attend_more(fd, &end);
    echo(&end, false);
    connect_more(fd, &end);
    end_close(&end);
}

static void running_connections_go_on(void)
{
    struct child child = child_start(peer_process, NULL);
    struct rlimit limit;
    int taken[PLACES], n = 0;
    struct address peer;
    struct end end;

    end_open(&end, &options);
    end_to_init(&end, 0);
    post_recv(&end, 1, 0, 100);
    peer = exchange(child.fd, &end);
    end_connect(&end, &peer, NULL);
    echo(&end, true);
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
    CHECK(!setrlimit(RLIMIT_NOFILE, &(struct rlimit){PLACES, limit.rlim_max}));
    while (n < PLACES && (taken[n] = fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0)
        n++;
    CHECK_EQ(errno, EMFILE);
    attend_more(child.fd, &end);
    attend_more(child.fd, &end);
    CHECK_EQ(softdev_shortage(0), EMFILE); /* what was refused to the peer */
    fail_more(child.fd, &end, false, false);
    fail_more(child.fd, &end, false, true);
    echo(&end, true);
    while (n)
        close(taken[--n]);
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
    connect_more(child.fd, &end);
    child_join(&child);
    end_close(&end);
}

/* ---- datagrams ---------------------------------------------------------------------------------------- */

enum { QKEY = 7, DATAGRAMS = 16, SLOT = 256 };
static const uint64_t patience_ns = 20000000000; /* of a test, for another process to do something */

static void open_for_datagrams(struct end *end)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};

    end_open(end, &(struct end_options){.type = IBV_QPT_UD, .recv_wr = DATAGRAMS, .channel = true});
    OK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    attr.qp_state = IBV_QPS_RTR;
    OK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RTS;
    OK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
    for (uint64_t i = 0; i < DATAGRAMS; i++)
        post_recv(end, i, i * SLOT, SLOT);
}

/* Lanes for datagrams that are mapped into this process. */
static int lanes(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    int n = 0;

    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        n += strstr(line, "softdev-ud") != NULL;
    fclose(maps);
    return n;
}

static void send_datagram(struct end *end, struct ibv_ah *ah, uint32_t qpn)
{
    struct ibv_sge sge = end_sge(end, 40000, 100);
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.ud = {ah, qpn, QKEY}},
                       *bad;

    OK(ibv_post_send(end->qp, &wr, &bad));
    expect_wc(end->send_cq, 0, IBV_WC_SUCCESS);
}

static struct ibv_ah *route(const struct end *end, const struct address *peer)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid}};
    struct ibv_ah *ah = ibv_create_ah(end->pd, &attr);

    CHECK(ah);
    return ah;
}

/* The first datagram to a process may be lost. */
static void send_until_told(int fd, struct end *end, struct ibv_ah *ah, uint32_t qpn)
{
    const uint64_t until = test_now_ns() + patience_ns;
    char byte;

    while (!readable(fd)) {
        CHECK(test_now_ns() < until);
        send_datagram(end, ah, qpn);
    }
    take(fd, &byte, 1);
}

static void take_and_tell(int fd, struct end *end)
{
    struct ibv_wc wc = next_wc(end->recv_cq);

    CHECK_STATUS(&wc, IBV_WC_SUCCESS);
    give(fd, "t", 1);
}

static void two_receivers(int fd, void *argument)
{
    struct address peer;
    struct end ends[2];
    char byte;

    (void)argument;
    for (int i = 0; i < 2; i++) {
        open_for_datagrams(&ends[i]);
        peer = exchange(fd, &ends[i]);
    }
    struct ibv_ah *ah = route(&ends[0], &peer);
    take_and_tell(fd, &ends[0]);
    send_until_told(fd, &ends[0], ah, peer.qpn);
    take(fd, &byte, 1);
    /* The lane that the sender could not take is dropped. */
    for (const uint64_t until = test_now_ns() + patience_ns; lanes() != 2;)
        CHECK(test_now_ns() < until);
    give(fd, "d", 1);
    take_and_tell(fd, &ends[1]);
    take(fd, &byte, 1);
    OK(ibv_destroy_ah(ah));
    end_close(&ends[0]);
    end_close(&ends[1]);
}

/* Datagrams to a queue pair are lost while there are no descriptors for a lane to it, and no longer. */
static void datagrams_go_on(void)
{
    struct child child = child_start(two_receivers, NULL);
    struct address peers[2];
    struct rlimit limit;
    int taken[PLACES], n = 0;
    struct end end;
    char byte;

    open_for_datagrams(&end);
    for (int i = 0; i < 2; i++)
        peers[i] = exchange(child.fd, &end);
    struct ibv_ah *ah = route(&end, &peers[0]);
    send_until_told(child.fd, &end, ah, peers[0].qpn);
    take_and_tell(child.fd, &end); /* there is no more to set up between the two processes */
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
    CHECK(!setrlimit(RLIMIT_NOFILE, &(struct rlimit){PLACES, limit.rlim_max}));
    while (n < PLACES && (taken[n] = fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0)
        n++;
    CHECK_EQ(errno, EMFILE);
    send_datagram(&end, ah, peers[1].qpn); /* lost, as soon as there is no lane */
    /* Another thread asks for the lane, and may have to wait for a CPU: until then, none is released. */
    const uint64_t until = test_now_ns() + patience_ns;
    int missing;
    while (!(missing = softdev_shortage(0)))
        CHECK(test_now_ns() < until);
    CHECK_EQ(missing, EMFILE);
    while (n)
        close(taken[--n]);
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
    give(child.fd, "d", 1);
    take(child.fd, &byte, 1);
    send_until_told(child.fd, &end, ah, peers[1].qpn);
    give(child.fd, "e", 1);
    child_join(&child);
    OK(ibv_destroy_ah(ah));
    end_close(&end);
}

TEST_MAIN(TEST(running_connections_go_on), TEST(datagrams_go_on))
