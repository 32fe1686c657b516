#include "harness.h"

#include "softdev.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LONG_SECONDS = 20 };

static const char *running = "?";
static uint64_t began;

_Noreturn void test_fail(const char *file, int line, const char *format, ...)
{
    int saved = errno;
    va_list args;

    fprintf(stderr, "%s:%d: in %s: ", file, line, running);
    errno = saved;
    va_start(args, format);
    vfprintf(stderr, format, args); // NOLINT(clang-analyzer-valist.Uninitialized): it is, two lines above
    va_end(args);
    fputc('\n', stderr);
    _exit(1);
}

void test_check_status(const char *file, int line, const struct ibv_wc *wc, enum ibv_wc_status wanted)
{
    if (wc->status != wanted)
        test_fail(file, line, "wr_id %llu completed with \"%s\" (%d), not \"%s\" (%d)",
                  (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status), wc->status,
                  ibv_wc_status_str(wanted), wanted);
}

int test_main(int argc, char **argv, const struct test *tests, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool wanted = argc < 2;

        for (int a = 1; a < argc; a++)
            wanted |= !strcmp(argv[a], tests[i].name);
        if (!wanted)
            continue;
        running = tests[i].name;
        fprintf(stderr, "%s\n", running);
        alarm(HANG_SECONDS);
        began = test_now_ns();
        tests[i].run();
        alarm(0);
    }
    return 0;
}

struct ibv_context *test_open(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    struct ibv_context *context = NULL;

    CHECK(list);
    for (int i = 0; i < count && !context; i++)
        if (!strcmp(ibv_get_device_name(list[i]), "soft0")) {
            context = ibv_open_device(list[i]);
            CHECK(context);
        }
    ibv_free_device_list(list);
    CHECK(context);
    return context;
}

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value ? value : otherwise;
}

void end_open(struct end *end, const struct end_options *given)
{
    struct end_options none = {0};
    const struct end_options *options = given ? given : &none;
    int access = options->access ? options->access : ACCESS_ALL;
    int cqe = options->cqe ? options->cqe : 64;

    *end = (struct end){.owns_context = !options->context, .size = options->size ? options->size : 65536};
    end->context = options->context ? options->context : test_open();
    end->pd = ibv_alloc_pd(end->context);
    CHECK(end->pd);
    end->slab = options->slab;
    if (end->slab)
        end->buf = softdev_alloc(end->pd, end->size);
    else
        CHECK(!posix_memalign((void **)&end->buf, 4096, end->size));
    CHECK(end->buf);
    memset(end->buf, 0, end->size);
    end->mr = ibv_reg_mr(end->pd, end->buf, end->size, access);
    CHECK(end->mr);
    if (options->channel) {
        end->channel = ibv_create_comp_channel(end->context);
        CHECK(end->channel);
    }
    end->recv_cq = ibv_create_cq(end->context, cqe, end, end->channel, 0);
    CHECK(end->recv_cq);
    end->send_cq = options->one_cq ? end->recv_cq : ibv_create_cq(end->context, cqe, end, end->channel, 0);
    CHECK(end->send_cq);
    if (options->srq) {
        struct ibv_srq_init_attr attr = {
            .attr = {.max_wr = or_default(options->recv_wr, 16), .max_sge = or_default(options->sge, 4)}};

        end->srq = ibv_create_srq(end->pd, &attr);
        CHECK(end->srq);
    }
    struct ibv_qp_init_attr attr = {
        .qp_context = end,
        .send_cq = end->send_cq,
        .recv_cq = end->recv_cq,
        .srq = end->srq,
        .cap = {.max_send_wr = or_default(options->send_wr, 16),
                .max_recv_wr = or_default(options->recv_wr, 16),
                .max_send_sge = or_default(options->sge, 4),
                .max_recv_sge = or_default(options->sge, 4),
                .max_inline_data = or_default(options->inline_bytes, 64)},
        .qp_type = options->type ? options->type : IBV_QPT_RC,
        .sq_sig_all = options->sq_sig_all,
    };
    end->qp = ibv_create_qp(end->pd, &attr);
    CHECK(end->qp);
    OK(ibv_query_gid(end->context, 1, 0, &end->gid));
}

void end_close(struct end *end)
{
    if (end->qp)
        OK(ibv_destroy_qp(end->qp));
    if (end->srq)
        OK(ibv_destroy_srq(end->srq));
    if (end->send_cq != end->recv_cq)
        OK(ibv_destroy_cq(end->send_cq));
    OK(ibv_destroy_cq(end->recv_cq));
    if (end->channel)
        OK(ibv_destroy_comp_channel(end->channel));
    if (end->mr)
        OK(ibv_dereg_mr(end->mr));
    if (end->slab)
        OK(softdev_free(end->pd, end->buf, end->size));
    else
        free(end->buf);
    OK(ibv_dealloc_pd(end->pd));
    if (end->owns_context)
        OK(ibv_close_device(end->context));
    memset(end, 0, sizeof *end);
}

struct address end_address(const struct end *end)
{
    return (struct address){
        .gid = end->gid,
        .addr = (uintptr_t)end->buf,
        .qpn = end->qp->qp_num,
        .psn = end->qp->qp_num & 0xffffff,
        .rkey = end->mr->rkey,
    };
}

void end_to_init(struct end *end, int access)
{
    bool ud = end->qp->qp_type == IBV_QPT_UD;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qkey = 0x11111111,
                               .qp_access_flags = (unsigned int)(access ? access : ACCESS_ALL)};

    OK(ibv_modify_qp(end->qp, &attr,
                     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                         (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
}

void end_to_rtr(struct end *end, const struct address *peer, const struct connect_options *options)
{
    static const struct connect_options defaults = CONNECT_DEFAULTS;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    int mask = IBV_QP_STATE;

    if (!options)
        options = &defaults;
    if (end->qp->qp_type != IBV_QPT_UD) {
        attr.path_mtu = IBV_MTU_1024;
        attr.dest_qp_num = peer->qpn;
        attr.rq_psn = peer->psn;
        attr.ah_attr =
            (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .hop_limit = 64}};
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    }
    if (end->qp->qp_type == IBV_QPT_RC) {
        attr.max_dest_rd_atomic = options->max_rd_atomic;
        attr.min_rnr_timer = options->min_rnr_timer;
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    }
    OK(ibv_modify_qp(end->qp, &attr, mask));
}

void end_to_rts(struct end *end, const struct address *peer, const struct connect_options *options)
{
    static const struct connect_options defaults = CONNECT_DEFAULTS;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .sq_psn = end_address(end).psn};
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

    (void)peer;
    if (!options)
        options = &defaults;
    if (end->qp->qp_type == IBV_QPT_RC) {
        attr.timeout = options->timeout;
        attr.retry_cnt = options->retry_cnt;
        attr.rnr_retry = options->rnr_retry;
        attr.max_rd_atomic = options->max_rd_atomic;
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    OK(ibv_modify_qp(end->qp, &attr, mask));
}

void end_connect(struct end *end, const struct address *peer, const struct connect_options *options)
{
    end_to_init(end, options ? options->access : 0);
    end_to_rtr(end, peer, options);
    end_to_rts(end, peer, options);
}

void pair_open(struct end *a, struct end *b, const struct end_options *options)
{
    end_open(a, options);
    end_open(b, options);
}

void pair_connect(struct end *a, struct end *b, const struct connect_options *options)
{
    struct address of_a = end_address(a), of_b = end_address(b);

    end_connect(a, &of_b, options);
    end_connect(b, &of_a, options);
}

void pair_close(struct end *a, struct end *b)
{
    end_close(a);
    end_close(b);
}

void end_to_error(struct end *end)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

    OK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE));
}

enum ibv_qp_state end_state(const struct end *end)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    OK(ibv_query_qp(end->qp, &attr, IBV_QP_STATE, &init));
    return attr.qp_state;
}

struct ibv_sge end_sge(const struct end *end, size_t offset, size_t length)
{
    return (struct ibv_sge){
        .addr = (uintptr_t)end->buf + offset, .length = (uint32_t)length, .lkey = end->mr->lkey};
}

void post_recv(struct end *end, uint64_t wr_id, size_t offset, size_t length)
{
    struct ibv_sge sge = end_sge(end, offset, length);
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

    if (end->srq)
        OK(ibv_post_srq_recv(end->srq, &wr, &bad));
    else
        OK(ibv_post_recv(end->qp, &wr, &bad));
}

void post_send(struct end *end, uint64_t wr_id, size_t offset, size_t length, unsigned int flags)
{
    struct ibv_sge sge = end_sge(end, offset, length);
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = flags},
                       *bad;

    OK(ibv_post_send(end->qp, &wr, &bad));
}

void post_rdma(struct end *end, uint64_t wr_id, enum ibv_wr_opcode opcode, size_t offset, size_t length,
               const struct address *peer, size_t remote_offset, unsigned int flags)
{
    struct ibv_sge sge = end_sge(end, offset, length);
    struct ibv_send_wr wr =
                           {
                               .wr_id = wr_id,
                               .sg_list = &sge,
                               .num_sge = 1,
                               .opcode = opcode,
                               .send_flags = flags,
                               .imm_data = htobe32((uint32_t)wr_id),
                               .wr = {.rdma = {.remote_addr = peer->addr + remote_offset,
                                               .rkey = peer->rkey}},
                           },
                       *bad;

    OK(ibv_post_send(end->qp, &wr, &bad));
}

struct ibv_wc next_wc(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int n;

    while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
        sched_yield();
    CHECK_EQ(n, 1);
    return wc;
}

struct ibv_wc expect_wc(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
    struct ibv_wc wc = next_wc(cq);

    CHECK_STATUS(&wc, status);
    CHECK_EQ(wc.wr_id, wr_id);
    return wc;
}

void expect_empty(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int n = ibv_poll_cq(cq, 1, &wc);

    if (n)
        FAIL("poll gave %d: wr_id %llu, \"%s\"", n, (unsigned long long)wc.wr_id,
             ibv_wc_status_str(wc.status));
}

static uint8_t pattern(size_t i, unsigned int seed)
{
    return (uint8_t)((i * 31 + (i >> 8) * 7 + seed * 101) ^ 0x5a);
}

void fill(uint8_t *to, size_t length, unsigned int seed)
{
    for (size_t i = 0; i < length; i++)
        to[i] = pattern(i, seed);
}

bool holds(const uint8_t *data, size_t length, unsigned int seed)
{
    for (size_t i = 0; i < length; i++)
        if (data[i] != pattern(i, seed))
            return false;
    return true;
}

bool all_bytes(const uint8_t *data, size_t length, uint8_t value)
{
    for (size_t i = 0; i < length; i++)
        if (data[i] != value)
            return false;
    return true;
}

bool kernel_lacks(long result, const char *call)
{
    if (result >= 0 || errno != ENOSYS)
        return false;
    fprintf(stderr, "left out: this kernel has no %s\n", call);
    return true;
}

bool readable(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};

    CHECK(poll(&one, 1, 0) >= 0);
    return one.revents & POLLIN;
}

void expect_event(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
    struct ibv_cq *got;
    void *context;

    OK(ibv_get_cq_event(channel, &got, &context));
    CHECK(got == cq);
    CHECK(context == cq->cq_context);
    ibv_ack_cq_events(got, 1);
}

void set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    CHECK(flags >= 0);
    CHECK(!fcntl(fd, F_SETFL, flags | O_NONBLOCK));
}

void do_send(struct end *end, size_t offset, size_t length)
{
    post_send(end, 1, offset, length, IBV_SEND_SIGNALED);
    expect_wc(end->send_cq, 1, IBV_WC_SUCCESS);
}

void do_rdma(struct end *end, enum ibv_wr_opcode opcode, size_t offset, size_t length,
             const struct address *peer, size_t remote_offset)
{
    post_rdma(end, 1, opcode, offset, length, peer, remote_offset, IBV_SEND_SIGNALED);
    expect_wc(end->send_cq, 1, IBV_WC_SUCCESS);
}

struct ibv_wc sleep_wc(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int n = ibv_poll_cq(cq, 1, &wc);

    while (!n) {
        /* Arm, then poll again: what arrived before the arming causes no event. */
        OK(ibv_req_notify_cq(cq, 0));
        n = ibv_poll_cq(cq, 1, &wc);
        if (!n) {
            struct ibv_cq *got;
            void *context;

            /* The event may belong to another CQ of this channel that the test waited for earlier. */
            OK(ibv_get_cq_event(channel, &got, &context));
            ibv_ack_cq_events(got, 1);
            n = ibv_poll_cq(cq, 1, &wc);
        }
    }
    CHECK_EQ(n, 1);
    return wc;
}

int test_count_fds(void)
{
    DIR *all = opendir("/proc/self/fd");
    int count = 0;

    CHECK(all != NULL);
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

uint64_t test_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

bool test_takes_long(void)
{
    return test_now_ns() - began > LONG_SECONDS * UINT64_C(1000000000);
}

uint32_t test_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}
