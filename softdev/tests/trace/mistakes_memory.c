/* Planted mistakes: keys, bounds and rights of memory. */
#include "tests/trace/mistakes.h"

#include <stdlib.h>

static struct end a, b;

static void open_pair(void)
{
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
}

/* One request, its completion, and the end. */
static void ask(enum ibv_wr_opcode opcode, const struct address *there, size_t offset, size_t length)
{
    post_rdma(&a, 1, opcode, 0, length, there, offset, IBV_SEND_SIGNALED);
    any_wc(a.send_cq);
    pair_close(&a, &b);
}

static void unknown_remote_key(void)
{
    open_pair();
    struct address there = end_address(&b);
    there.rkey ^= 0x5a5a00;
    ask(IBV_WR_RDMA_WRITE, &there, 0, 8);
}

static void behind_the_remote_region(void)
{
    open_pair();
    struct address there = end_address(&b);
    ask(IBV_WR_RDMA_WRITE, &there, b.size - 4, 8);
}

static void region_without_remote_write(void)
{
    open_pair();
    struct ibv_mr *mr = ibv_reg_mr(b.pd, b.buf, b.size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    CHECK(mr);
    struct address there = end_address(&b);
    there.rkey = mr->rkey;
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, &there, 0, IBV_SEND_SIGNALED);
    any_wc(a.send_cq);
    OK(ibv_dereg_mr(mr));
    pair_close(&a, &b);
}

static void pair_without_remote_write(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    options.access = IBV_ACCESS_REMOTE_READ;
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, &options);
    struct address there = end_address(&b);
    ask(IBV_WR_RDMA_WRITE, &there, 0, 8);
}

static void deregistered_there(void)
{
    open_pair();
    struct ibv_mr *mr = ibv_reg_mr(b.pd, b.buf, b.size, ACCESS_ALL);
    CHECK(mr);
    struct address there = end_address(&b);
    there.rkey = mr->rkey;
    OK(ibv_dereg_mr(mr));
    ask(IBV_WR_RDMA_WRITE, &there, 0, 8);
}

static void other_domain_there(void)
{
    open_pair();
    struct ibv_pd *pd = ibv_alloc_pd(b.context);
    struct ibv_mr *mr = ibv_reg_mr(pd, b.buf, b.size, ACCESS_ALL);
    CHECK(mr);
    struct address there = end_address(&b);
    there.rkey = mr->rkey;
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, &there, 0, IBV_SEND_SIGNALED);
    any_wc(a.send_cq);
    OK(ibv_dereg_mr(mr));
    OK(ibv_dealloc_pd(pd));
    pair_close(&a, &b);
}

static void post_with(struct ibv_sge sge)
{
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr = {.rdma = {.remote_addr = (uintptr_t)b.buf, .rkey = b.mr->rkey}}},
                       *bad;

    OK(ibv_post_send(a.qp, &wr, &bad));
    any_wc(a.send_cq);
    pair_close(&a, &b);
}

static void unknown_local_key(void)
{
    open_pair();
    struct ibv_sge sge = end_sge(&a, 0, 8);
    sge.lkey ^= 0x5a5a00;
    post_with(sge);
}

static void behind_the_local_region(void)
{
    open_pair();
    post_with(end_sge(&a, a.size - 4, 8));
}

static void receive_into_memory_for_reading(void)
{
    open_pair();
    struct ibv_mr *mr = ibv_reg_mr(a.pd, a.buf, a.size, 0);
    CHECK(mr);
    struct ibv_sge sge = {.addr = (uintptr_t)a.buf, .length = 64, .lkey = mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;
    OK(ibv_post_recv(a.qp, &wr, &bad));
    post_send(&b, 2, 0, 8, IBV_SEND_SIGNALED);
    any_wc(a.recv_cq);
    any_wc(b.send_cq);
    OK(ibv_dereg_mr(mr));
    pair_close(&a, &b);
}

static void remote_without_local(void)
{
    end_open(&a, NULL);
    ibv_reg_mr(a.pd, a.buf, a.size, IBV_ACCESS_REMOTE_WRITE);
    end_close(&a);
}

/* Each with another length, as of a program that tries on. */
static void refused_in_a_loop(void)
{
    end_open(&a, NULL);
    for (size_t n = 1; n <= 1000; n++)
        CHECK(!ibv_reg_mr(a.pd, (void *)4096, n, IBV_ACCESS_LOCAL_WRITE));
    end_close(&a);
}

static void odd_address(void)
{
    open_pair();
    struct address there = end_address(&b);
    struct ibv_sge sge = end_sge(&a, 0, 8);
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr = {.atomic = {.remote_addr = there.addr + 4, .rkey = there.rkey}}},
                       *bad;
    OK(ibv_post_send(a.qp, &wr, &bad));
    any_wc(a.send_cq);
    pair_close(&a, &b);
}

static void registered_for_each_message(void)
{
    open_pair();
    struct address there = end_address(&b);
    for (unsigned i = 0; i < 50; i++) {
        struct ibv_mr *mr = ibv_reg_mr(a.pd, a.buf, 4096, IBV_ACCESS_LOCAL_WRITE);
        CHECK(mr);
        struct ibv_sge sge = {.addr = (uintptr_t)a.buf, .length = 4096, .lkey = mr->lkey};
        struct ibv_send_wr wr = {.wr_id = i,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .wr = {.rdma = {.remote_addr = there.addr, .rkey = there.rkey}}},
                           *bad;
        OK(ibv_post_send(a.qp, &wr, &bad));
        expect_wc(a.send_cq, i, IBV_WC_SUCCESS);
        OK(ibv_dereg_mr(mr));
    }
    pair_close(&a, &b);
}

/* The send waits for a receive, so that it surely has not completed. */
static void deregistered_in_use(void)
{
    open_pair();
    struct ibv_mr *mr = ibv_reg_mr(a.pd, a.buf, a.size, ACCESS_ALL);
    CHECK(mr);
    struct ibv_sge sge = {.addr = (uintptr_t)a.buf, .length = 8, .lkey = mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    OK(ibv_post_send(a.qp, &wr, &bad));
    OK(ibv_dereg_mr(mr));
    pair_close(&a, &b);
}

static void domain_in_use(void)
{
    end_open(&a, NULL);
    ibv_dealloc_pd(a.pd);
    end_close(&a);
}

static void registered_for_nothing(void)
{
    struct end end;

    end_open(&end, NULL);
    for (int n = 0; n < 100; n++) {
        struct ibv_mr *mr = ibv_reg_mr(end.pd, end.buf, end.size, IBV_ACCESS_LOCAL_WRITE);

        CHECK(mr);
        OK(ibv_dereg_mr(mr));
    }
    end_close(&end);
}

const struct mistake mistakes_memory[] = {
    {"a wrong rkey", "wrong-rkey", unknown_remote_key, false},
    {"a WRITE behind the end of the peer's region", "remote-out-of-bounds", behind_the_remote_region, false},
    {"a region without REMOTE_WRITE", "remote-rights", region_without_remote_write, false},
    {"qp_access_flags without REMOTE_WRITE", "qp-access-flags", pair_without_remote_write, false},
    {"an rkey of memory that was deregistered", "rkey-deregistered", deregistered_there, false},
    {"an rkey of another protection domain", "remote-other-pd", other_domain_there, false},
    {"a wrong lkey", "wrong-lkey", unknown_local_key, false},
    {"a WRITE from behind the end of the region", "local-out-of-bounds", behind_the_local_region, false},
    {"a receive into memory without LOCAL_WRITE", "local-rights", receive_into_memory_for_reading, false},
    {"REMOTE_WRITE without LOCAL_WRITE", "access-flags", remote_without_local, false},
    {"memory that is not there, in a loop", "register-fault", refused_in_a_loop, false},
    {"an atomic operation at an odd address", "atomic-unaligned", odd_address, false},
    {"a registration for each message", "registration-per-message", registered_for_each_message, false},
    {"registrations that no work request uses", "registration-churn", registered_for_nothing, false},
    {"memory deregistered while it is sent", "dereg-in-use", deregistered_in_use, false},
    {"a protection domain freed before its objects", "destroy-in-use", domain_in_use, false},
    MISTAKES_END,
};
