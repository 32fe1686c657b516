/* Black-box tests of a verbs device on the public ibv_* API: shared helpers.
 *
 * A test is a program: exit status 0 passed, 1 failed, 77 not applicable. Tests wait by polling or on
 * descriptors; alarm() only ends a hang. */
#ifndef SOFTDEV_TESTS_HARNESS_H
#define SOFTDEV_TESTS_HARNESS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How often a test repeats what depends on chance: `make softdev-test` does a quarter, with PERCENT=100 all. */
#ifndef PERCENT
#define PERCENT 100
#endif
#define TIMES(all) (((all)*PERCENT + 99) / 100)
/* After which a test or its child is taken for hanging. */
#define HANG_SECONDS (120 * SLOWER)

#define FAIL(...) test_fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            FAIL("not true: %s (errno: %m)", #condition);                                                    \
    } while (0)
#define CHECK_EQ(got, wanted)                                                                                \
    do {                                                                                                     \
        long long got_ = (long long)(got), wanted_ = (long long)(wanted);                                    \
        if (got_ != wanted_)                                                                                 \
            FAIL("%s is %lld, not %s (%lld)", #got, got_, #wanted, wanted_);                                 \
    } while (0)
#define CHECK_STATUS(wc, wanted) test_check_status(__FILE__, __LINE__, (wc), (wanted))
/* An ibv_* call that returns 0 or an errno. */
#define OK(call)                                                                                             \
    do {                                                                                                     \
        int error_ = (call);                                                                                 \
        if (error_)                                                                                          \
            FAIL("%s failed: %d (errno: %m)", #call, error_);                                                \
    } while (0)

_Noreturn void test_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void test_check_status(const char *file, int line, const struct ibv_wc *wc, enum ibv_wc_status wanted);

struct test {
    const char *name;
    void (*run)(void);
};
/* Runs all tests, or those named on the command line. */
int test_main(int argc, char **argv, const struct test *tests, size_t count);
#define TEST_MAIN(...)                                                                                       \
    int main(int argc, char **argv)                                                                          \
    {                                                                                                        \
        static const struct test tests[] = {__VA_ARGS__};                                                    \
        return test_main(argc, argv, tests, sizeof tests / sizeof *tests);                                   \
    }
#define TEST(name)                                                                                           \
    {                                                                                                        \
#name, name                                                                                          \
    }

/* A context, PD, CQs, one registered buffer and a QP: one side of a conversation. */
struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t *buf;
    size_t size;
    union ibv_gid gid;
    bool owns_context, slab;
};

struct end_options {
    enum ibv_qp_type type;                        /* 0: RC */
    struct ibv_context *context;                  /* NULL: a context of its own */
    size_t size;                                  /* of the buffer; 0: 64 KiB */
    uint32_t send_wr, recv_wr, sge, inline_bytes; /* 0: 16, 16, 4, 64 */
    int cqe;                                      /* 0: 64 */
    int access;                                   /* of the MR; 0: everything */
    bool channel;                                 /* one completion channel for both CQs */
    bool one_cq;
    bool srq;
    bool sq_sig_all;
    bool slab; /* the buffer is memory of the device that peers may map */
};

struct ibv_context *test_open(void);
void end_open(struct end *end, const struct end_options *given);
void end_close(struct end *end);

/* What each side needs from the other. */
struct address {
    union ibv_gid gid;
    uint64_t addr;
    uint32_t qpn, psn, rkey;
};
struct address end_address(const struct end *end);

struct connect_options {
    uint8_t rnr_retry, retry_cnt, timeout, min_rnr_timer; /* the same as in the attributes */
    uint8_t max_rd_atomic;
    int access; /* qp_access_flags; 0: everything */
};
#define CONNECT_DEFAULTS                                                                                     \
    {                                                                                                        \
        .rnr_retry = 7, .retry_cnt = 7, .timeout = 14, .min_rnr_timer = 1, .max_rd_atomic = 16               \
    }
#define ACCESS_ALL                                                                                           \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

void end_to_init(struct end *end, int access);
void end_to_rtr(struct end *end, const struct address *peer, const struct connect_options *options);
void end_to_rts(struct end *end, const struct address *peer, const struct connect_options *options);
/* From RESET to RTS, with defaults when options is NULL. */
void end_connect(struct end *end, const struct address *peer, const struct connect_options *options);
void pair_open(struct end *a, struct end *b, const struct end_options *options);
void pair_connect(struct end *a, struct end *b, const struct connect_options *options);
void pair_close(struct end *a, struct end *b);
void end_to_error(struct end *end);
enum ibv_qp_state end_state(const struct end *end);

/* Work requests on the end's buffer: offset and length in bytes. */
struct ibv_sge end_sge(const struct end *end, size_t offset, size_t length);
void post_recv(struct end *end, uint64_t wr_id, size_t offset, size_t length);
void post_send(struct end *end, uint64_t wr_id, size_t offset, size_t length, unsigned int flags);
void post_rdma(struct end *end, uint64_t wr_id, enum ibv_wr_opcode opcode, size_t offset, size_t length,
               const struct address *peer, size_t remote_offset, unsigned int flags);

/* Waits for the next completion without limit. */
struct ibv_wc next_wc(struct ibv_cq *cq);
/* The next completion must be this one. */
struct ibv_wc expect_wc(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status);
/* Checks that no completion is present. For work that must be complete once another completion was seen. */
void expect_empty(struct ibv_cq *cq);

void fill(uint8_t *to, size_t length, unsigned int seed);
bool holds(const uint8_t *data, size_t length, unsigned int seed);
bool all_bytes(const uint8_t *data, size_t length, uint8_t value);

bool readable(int fd);
/* The result of a system call is that it does not exist: QEMU's user mode has not all of Linux'. Says so. */
bool kernel_lacks(long result, const char *call);
/* Waits on the channel, gets and acknowledges one event, which must be of this CQ. */
void expect_event(struct ibv_comp_channel *channel, struct ibv_cq *cq);
void set_nonblocking(int fd);

/* Two processes: the child runs with one end of a socket pair, the parent gets the other. */
struct child {
    int pid, fd;
};
struct child child_start(void (*run)(int fd, void *argument),
                         void *argument); /* before the device has a thread */
struct child child_start_beside_threads(void (*run)(int fd, void *argument), void *argument);
/* Checks that the child exited with success. */
void child_join(struct child *child);
void child_kill(struct child *child);
/* Runs a test as a child of this process, whose device is of that personality: a process has one. NULL: of the usual one,
 * so that this process gets none of the test's threads. */
void run_as(const char *personality, void (*body)(void));
#define AS(personality, body)                                                                                \
    static void body##_##personality(void)                                                                   \
    {                                                                                                        \
        run_as(#personality, body);                                                                          \
    }
void give(int fd, const void *data, size_t length);
void take(int fd, void *data, size_t length);
/* false: the other side is gone. */
bool try_take(int fd, void *data, size_t length);
/* Whether a test can stop threads of a child (ptrace). Says so if not. */
bool can_stop_threads(void);
/* Stops the progress thread of a child, and nothing else of it. Its number, for PTRACE_DETACH. */
int stop_progress(int pid);
struct address exchange(int fd, const struct end *end);
/* Exchanges addresses and connects, with the usual options. */
struct address end_meet(int fd, struct end *end);
/* Waits until both processes have reached this point. */
void rendezvous(int fd);

/* Posts a send or RDMA request and waits for its successful completion. */
void do_send(struct end *end, size_t offset, size_t length);
void do_rdma(struct end *end, enum ibv_wr_opcode opcode, size_t offset, size_t length,
             const struct address *peer, size_t remote_offset);

/* Sleeps on the channel until the CQ has a completion, as event-driven programs do. */
struct ibv_wc sleep_wc(struct ibv_comp_channel *channel, struct ibv_cq *cq);

/* From a monotonic clock (CLOCK_MONOTONIC). */
uint64_t test_now_ns(void);
/* Open descriptors of this process, and one to count them by. */
int test_count_fds(void);
/* Whether this test has run for 20 seconds. The machine is so busy then that a few repetitions of what depends on
 * chance have to do. */
bool test_takes_long(void);

/* A small seeded generator: every run draws the same numbers. */
uint32_t test_random(uint32_t *state);

#endif
