/* Shared receive queues: order, sharing, limit events, the last receive of a failed QP, sizes. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>

static struct end a, b;

static void open_pair(const struct end_options *options)
{
    pair_open(&a, &b, options);
    pair_connect(&a, &b, NULL);
}

static void send_one(struct end *end, uint64_t wr_id)
{
    post_send(end, wr_id, 0, 8, IBV_SEND_SIGNALED);
    expect_wc(end->send_cq, wr_id, IBV_WC_SUCCESS);
}

static void receive(void)
{
    open_pair(&(struct end_options){.srq = true});
    fill(a.buf, 8, 1);
    for (uint64_t i = 0; i < 5; i++)
        post_recv(&b, i, i * 8, 8);
    for (uint64_t i = 0; i < 5; i++)
        send_one(&a, i);
    for (uint64_t i = 0; i < 5; i++) {
        struct ibv_wc wc = expect_wc(b.recv_cq, i, IBV_WC_SUCCESS);

        CHECK_EQ(wc.qp_num, b.qp->qp_num);
        CHECK_EQ(wc.byte_len, 8);
        CHECK(holds(b.buf + i * 8, 8, 1));
    }
    /* The QP has no receive queue of its own. */
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
    CHECK(ibv_post_recv(b.qp, &wr, &bad) != 0);
    CHECK_EQ(ibv_destroy_srq(b.srq), EBUSY);
    pair_close(&a, &b);
}

/* Two QPs share one SRQ: the first message takes the first receive, on either QP. */
static void shared(void)
{
    struct end c, d;
    struct ibv_qp_init_attr init;

    open_pair(&(struct end_options){.srq = true, .cqe = 256});
    end_open(&c, NULL);
    /* d: a second QP of b's PD, CQs and SRQ */
    d = b;
    init = (struct ibv_qp_init_attr){.send_cq = b.send_cq,
                                     .recv_cq = b.recv_cq,
                                     .srq = b.srq,
                                     .cap = {.max_send_wr = 4, .max_send_sge = 1},
                                     .qp_type = IBV_QPT_RC};
    d.qp = ibv_create_qp(b.pd, &init);
    CHECK(d.qp);
    pair_connect(&c, &d, NULL);
    for (uint64_t i = 0; i < 10; i++)
        post_recv(&b, i, 0, 8);
    for (uint64_t i = 0; i < 10; i++) {
        send_one(i % 2 ? &a : &c, i);
        CHECK_EQ(expect_wc(b.recv_cq, i, IBV_WC_SUCCESS).qp_num, i % 2 ? b.qp->qp_num : d.qp->qp_num);
    }
    OK(ibv_destroy_qp(d.qp));
    end_close(&c);
    pair_close(&a, &b);
}

static void waits_for_a_receive(void)
{
    open_pair(&(struct end_options){.srq = true});
    for (unsigned i = 0; i < 20; i++) {
        fill(a.buf, 8, i);
        post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
        expect_empty(a.send_cq);
        post_recv(&b, 2, 0, 8);
        expect_wc(b.recv_cq, 2, IBV_WC_SUCCESS);
        expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
        CHECK(holds(b.buf, 8, i));
    }
    pair_close(&a, &b);
}

static void limit(void)
{
    struct ibv_srq_attr attr = {.srq_limit = 3};
    struct ibv_async_event event;

    open_pair(&(struct end_options){.srq = true});
    for (uint64_t i = 0; i < 6; i++)
        post_recv(&b, i, 0, 8);
    OK(ibv_modify_srq(b.srq, &attr, IBV_SRQ_LIMIT));
    OK(ibv_query_srq(b.srq, &attr));
    CHECK_EQ(attr.srq_limit, 3);
    for (uint64_t i = 0; i < 3; i++)
        send_one(&a, i); /* 3 left: not below the limit yet */
    CHECK(!readable(b.context->async_fd));
    send_one(&a, 3);
    OK(ibv_get_async_event(b.context, &event));
    CHECK_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    CHECK(event.element.srq == b.srq);
    ibv_ack_async_event(&event);
    /* It fires once for each arming. */
    OK(ibv_query_srq(b.srq, &attr));
    CHECK_EQ(attr.srq_limit, 0);
    send_one(&a, 4);
    CHECK(!readable(b.context->async_fd));
    pair_close(&a, &b);
}

/* A failed QP of an SRQ: no flushed receives, but an event once it takes no more from it. */
static void last_wqe_reached(void)
{
    struct ibv_async_event event;

    open_pair(&(struct end_options){.srq = true});
    post_recv(&b, 1, 0, 8);
    end_to_error(&b);
    OK(ibv_get_async_event(b.context, &event));
    CHECK_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    CHECK(event.element.qp == b.qp);
    ibv_ack_async_event(&event);
    expect_empty(b.recv_cq);
    pair_close(&a, &b);
}

/* The receive that a refused WRITE had taken comes back as flushed, before the event: else each such peer would take one
 * buffer from all. */
static void is_refused(struct end *to)
{
    struct ibv_async_event event;

    do {
        OK(ibv_get_async_event(to->context, &event));
        ibv_ack_async_event(&event);
    } while (event.event_type == IBV_EVENT_QP_ACCESS_ERR);
    CHECK_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    expect_wc(to->recv_cq, 5, IBV_WC_WR_FLUSH_ERR);
}

static void ask_in_vain(struct end *end, struct address there)
{
    there.rkey ^= 0x5500;
    post_rdma(end, 1, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8, &there, 0, IBV_SEND_SIGNALED);
    expect_wc(end->send_cq, 1, IBV_WC_REM_ACCESS_ERR);
}

static void refused(void)
{
    open_pair(&(struct end_options){.srq = true});
    post_recv(&b, 5, 0, 8);
    ask_in_vain(&a, end_address(&b));
    is_refused(&b);
    pair_close(&a, &b);
}

static void other_process(int fd, void *unused)
{
    (void)unused;
    end_open(&b, &(struct end_options){.srq = true});
    post_recv(&b, 5, 0, 8);
    end_meet(fd, &b);
    rendezvous(fd);
    is_refused(&b);
    end_close(&b);
}

static void refused_in_another_process(void)
{
    struct child child = child_start(other_process, NULL);

    end_open(&a, NULL);
    struct address there = end_meet(child.fd, &a);
    rendezvous(child.fd);
    ask_in_vain(&a, there);
    child_join(&child);
    end_close(&a);
}

static void sizes(void)
{
    struct ibv_device_attr device;
    struct ibv_srq_init_attr init;
    struct ibv_srq_attr attr;
    struct ibv_srq *srq;
    struct ibv_sge sge;
    unsigned posted = 0;
    uint32_t number;

    open_pair(NULL);
    OK(ibv_query_device(a.context, &device));
    init = (struct ibv_srq_init_attr){.srq_context = &a, .attr = {.max_wr = 10, .max_sge = 2}};
    srq = ibv_create_srq(a.pd, &init);
    CHECK(srq && srq->srq_context == &a && srq->pd == a.pd);
    CHECK(init.attr.max_wr >= 10 && init.attr.max_sge >= 2);
    OK(ibv_query_srq(srq, &attr));
    CHECK_EQ(attr.max_wr, init.attr.max_wr);
    sge = end_sge(&a, 0, 8);
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    while (!ibv_post_srq_recv(srq, &wr, &bad))
        posted++;
    CHECK(bad == &wr);
    CHECK(posted >= 10);
    CHECK_EQ(posted, attr.max_wr);
    wr.num_sge = (int)init.attr.max_sge + 1;
    CHECK(ibv_post_srq_recv(srq, &wr, &bad) != 0);
    wr.num_sge = 1;

    attr.max_wr = 1000;
    OK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
    OK(ibv_query_srq(srq, &attr));
    CHECK(attr.max_wr >= 1000);
    OK(ibv_post_srq_recv(srq, &wr, &bad));
    attr.srq_limit = attr.max_wr + 1;
    CHECK_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL);
    attr.max_wr = (uint32_t)device.max_srq_wr + 1;
    CHECK_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EINVAL);
    if (!ibv_get_srq_num(srq, &number))
        CHECK(number < 1 << 24);
    CHECK_EQ(ibv_dealloc_pd(a.pd), EBUSY);
    OK(ibv_destroy_srq(srq));

    init.attr = (struct ibv_srq_attr){.max_wr = (uint32_t)device.max_srq_wr + 1, .max_sge = 1};
    CHECK(!ibv_create_srq(a.pd, &init));
    init.attr = (struct ibv_srq_attr){.max_wr = 1, .max_sge = (uint32_t)device.max_srq_sge + 1};
    CHECK(!ibv_create_srq(a.pd, &init));
    pair_close(&a, &b);
}

/* A receive from the SRQ that is too small fails its QP, and leaves the rest of the SRQ intact. */
static void errors(void)
{
    struct end c;

    open_pair(&(struct end_options){.srq = true});
    end_open(&c, NULL);
    post_recv(&b, 1, 0, 4);
    post_recv(&b, 2, 0, 8);
    post_send(&a, 3, 0, 8, 0);
    expect_wc(a.send_cq, 3, IBV_WC_REM_INV_REQ_ERR);
    expect_wc(b.recv_cq, 1, IBV_WC_LOC_LEN_ERR);
    expect_empty(b.recv_cq);

    struct ibv_qp_init_attr init = {
        .send_cq = b.send_cq, .recv_cq = b.recv_cq, .srq = b.srq, .qp_type = IBV_QPT_RC};
    struct end d = b;
    d.qp = ibv_create_qp(b.pd, &init);
    CHECK(d.qp);
    pair_connect(&c, &d, NULL);
    send_one(&c, 4);
    expect_wc(b.recv_cq, 2, IBV_WC_SUCCESS);
    OK(ibv_destroy_qp(d.qp));
    end_close(&c);
    pair_close(&a, &b);
}

TEST_MAIN(TEST(receive), TEST(shared), TEST(waits_for_a_receive), TEST(limit), TEST(last_wqe_reached),
          TEST(refused), TEST(refused_in_another_process), TEST(sizes), TEST(errors))
