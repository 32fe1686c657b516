/* Thousands of completion queues: a program that has two for each connection meets no limit before that of queue pairs. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>

enum { MANY = 2500, WRITES = 100 };

static struct ibv_cq *make_cq(struct ibv_context *context)
{
    return ibv_create_cq(context, 1, NULL, NULL, 0);
}

static void make_many(struct ibv_context *context, struct ibv_cq **queues, int n)
{
    for (int i = 0; i < n; i++) {
        queues[i] = make_cq(context);
        CHECK(queues[i]);
    }
}

static void destroy_many(struct ibv_cq **queues, int n)
{
    for (int i = 0; i < n; i++)
        OK(ibv_destroy_cq(queues[i]));
}

/* An end whose queues come after many others. */
static void last_of_many(int fd, void *unused)
{
    static struct ibv_cq *others[MANY];
    struct ibv_context *context = test_open();
    struct end end;

    (void)unused;
    make_many(context, others, MANY);
    end_open(&end, &(struct end_options){.context = context, .channel = true});
    end_to_init(&end, 0);
    for (uint64_t i = 0; i < 4; i++)
        post_recv(&end, i, 0, 64);
    const struct address peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    rendezvous(fd);
    /* By turns, so that each sleeps and is woken. */
    for (uint64_t i = 0; i < WRITES; i++) {
        const bool mine = i % 2 == (end_address(&end).qpn > peer.qpn);

        if (mine) {
            post_send(&end, 100 + i, 0, 64, IBV_SEND_SIGNALED);
            CHECK_EQ(sleep_wc(end.channel, end.send_cq).wr_id, 100 + i);
        } else {
            const struct ibv_wc wc = sleep_wc(end.channel, end.recv_cq);

            CHECK_EQ(wc.status, IBV_WC_SUCCESS);
            post_recv(&end, wc.wr_id, 0, 64);
        }
    }
    rendezvous(fd);
    end_close(&end);
    destroy_many(others, MANY);
    OK(ibv_close_device(context));
}

static void doors_of_late_queues(void)
{
    struct child child = child_start(last_of_many, NULL);

    last_of_many(child.fd, NULL);
    child_join(&child);
}

/* As many as the device says, and no more; a place that is free again is found. */
static void as_many_as_it_says(void)
{
#ifdef __SANITIZE_THREAD__ /* half a minute there */
    return;
#endif
    struct ibv_context *context = test_open();
    struct ibv_device_attr attr;

    OK(ibv_query_device(context, &attr));
    CHECK(attr.max_cq >= attr.max_qp);
    struct ibv_cq **queues = calloc((size_t)attr.max_cq, sizeof *queues);
    CHECK(queues);
    make_many(context, queues, attr.max_cq);
    CHECK(!make_cq(context));
    CHECK_EQ(errno, ENOMEM);
    OK(ibv_destroy_cq(queues[attr.max_cq / 3]));
    queues[attr.max_cq / 3] = make_cq(context);
    CHECK(queues[attr.max_cq / 3]);
    CHECK(!make_cq(context));
    destroy_many(queues, attr.max_cq);
    free(queues);
    OK(ibv_close_device(context));
}

TEST_MAIN(TEST(doors_of_late_queues), TEST(as_many_as_it_says))
