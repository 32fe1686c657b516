/* A process without file descriptors left: its connections go on, asleep on events, new ones fail with the reason on
 * both sides, and once there are descriptors again, new ones work. */
#include "softdev.h"
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
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

/* Sends a message on the new QP: how that ended. */
static enum ibv_wc_status send_more(struct end *more, const struct address *peer)
{
    struct ibv_wc wc;

    end_to_rts(more, peer, &patient);
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
    CHECK_EQ(send_more(&more, &peer), IBV_WC_SUCCESS);
    wc = next_wc(more.recv_cq);
    CHECK_EQ(wc.wr_id, 3);
    CHECK_STATUS(&wc, IBV_WC_SUCCESS);
    end_more(fd, &more);
}

/* Fails to connect another QP: the reason is a shortage here, or (peer) there. */
static void fail_more(int fd, const struct end *first, bool peer)
{
    struct end more;
    struct address other = begin_more(fd, first, &more);
    struct ibv_wc wc;

    rendezvous(fd);
    CHECK_EQ(send_more(&more, &other), peer ? IBV_WC_REM_OP_ERR : IBV_WC_LOC_QP_OP_ERR);
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
    fail_more(fd, &end, true);
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
    CHECK_EQ(softdev_shortage(0), EMFILE); /* what was refused to the peer */
    fail_more(child.fd, &end, false);
    echo(&end, true);
    while (n)
        close(taken[--n]);
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
    connect_more(child.fd, &end);
    child_join(&child);
    end_close(&end);
}

TEST_MAIN(TEST(running_connections_go_on))
