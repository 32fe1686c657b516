/* fork(): the child must not touch what it inherited, can open its own context, and the parent continues
 * undisturbed. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct end a, b;

static void talk(struct end *from, struct end *to, unsigned seed)
{
    fill(from->buf, 100, seed);
    post_recv(to, seed, 4096, 100);
    do_send(from, 0, 100);
    expect_wc(to->recv_cq, seed, IBV_WC_SUCCESS);
    CHECK(holds(to->buf + 4096, 100, seed));
}

static void inherited(void)
{
    struct ibv_sge sge = end_sge(&a, 0, 8);
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad_recv;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    struct ibv_wc wc;

    CHECK(!ibv_alloc_pd(a.context));
    CHECK_EQ(errno, EIO);
    CHECK(!ibv_reg_mr(a.pd, a.buf, 4096, IBV_ACCESS_LOCAL_WRITE));
    CHECK_EQ(errno, EIO);
    CHECK(!ibv_create_cq(a.context, 4, NULL, NULL, 0));
    CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) != 0);
    CHECK(ibv_post_send(a.qp, &wr, &bad) != 0);
    CHECK(ibv_post_recv(a.qp, &recv, &bad_recv) != 0);
    CHECK(ibv_poll_cq(a.send_cq, 1, &wc) <= 0);
    CHECK(ibv_destroy_qp(a.qp) != 0);
}

static void own(void)
{
    struct end c, d;

    pair_open(&c, &d, NULL);
    pair_connect(&c, &d, NULL);
    for (unsigned i = 0; i < 20; i++)
        talk(&c, &d, i);
    pair_close(&c, &d);
}

static void in_child(int fd, void *argument)
{
    (void)fd;
    ((void (*)(void))argument)();
}

static void child_of_a_user(void)
{
#ifdef __SANITIZE_THREAD__ /* it cannot follow threads started in the child of a process with threads */
    static void (*const what[])(void) = {inherited};
#else
    static void (*const what[])(void) = {inherited, own};
#endif

    pair_open(&a, &b, &(struct end_options){.channel = true});
    pair_connect(&a, &b, NULL);
    talk(&a, &b, 1);
    for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
        struct child child = child_start_beside_threads(in_child, (void *)what[i]);

        for (unsigned j = 0; j < 50; j++)
            talk(j % 2 ? &a : &b, j % 2 ? &b : &a, j);
        child_join(&child);
        talk(&a, &b, 77);
    }
    pair_close(&a, &b);
    own();
}

/* Ending a child, in the usual way or by _exit, must not break the parent's connections. */
static void children_that_end(void)
{
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    for (unsigned i = 0; i < 4; i++) {
        int status;
        int pid = fork();

        CHECK(pid >= 0);
        if (!pid && i)
            _exit(0);
        if (!pid)
            exit(0);
        talk(&a, &b, i);
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK_EQ(status, 0);
        talk(&b, &a, i);
    }
    pair_close(&a, &b);
}

/* The child frees what it inherited by closing the context: memory only. */
static void close_in_child(void)
{
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    int status, pid = fork();

    CHECK(pid >= 0);
    if (!pid)
        _exit(ibv_close_device(a.context) ? 1 : 0);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    talk(&a, &b, 1);
    pair_close(&a, &b);
}

TEST_MAIN(TEST(child_of_a_user), TEST(children_that_end), TEST(close_in_child))
