/* A process that is killed at any instruction of its last post: the peer has all of it, and knows that nothing was held
 * back, or it has not, and knows that. There is no instruction at which it has all and knows nothing. */
#include "softdev.h"
#include "tests/harness.h"

#include <endian.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIECE = 16384, RECEIVES = 10, SIZE = (RECEIVES + 1) * PIECE };

struct plan {
    /* Prepares in the process that is killed; connected, and with all of its threads. */
    void (*prepare)(struct end *end);
    /* The instructions at which it is killed. */
    void (*last)(struct end *end);
    int before, messages; /* how many there are when they begin, and in all */
};

static void victim(int fd, void *argument)
{
    const struct plan *plan = argument;
    struct end end;

    end_open(&end, &(struct end_options){.size = SIZE, .send_wr = 64});
    struct address peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    do_send(&end, 0, 64); /* the lane is there */
    softdev_holds(end.qp, 0);
    plan->prepare(&end);
    CHECK(!ptrace(PTRACE_TRACEME, 0, NULL, NULL));
    raise(SIGSTOP);
    plan->last(&end);
    raise(SIGSTOP);
    _exit(0);
}

struct outcome {
    bool at_end, all, whole;
    long steps;
    uint64_t note;
    uint8_t message[SOFTDEV_WILL_BYTES]; /* the last one */
};

/* Kills it after so many instructions (-1: at the end), and says what its peer has then. */
static struct outcome killed_after(const struct plan *plan, long steps)
{
    struct child child = child_start(victim, (void *)plan);
    struct outcome outcome = {0};
    int status, thread, got = 0;
    struct ibv_wc wc;
    struct end end;

    end_open(&end, &(struct end_options){.size = SIZE, .recv_wr = 64});
    end_to_init(&end, 0);
    post_recv(&end, 0, 0, 64);
    struct address peer = exchange(child.fd, &end);
    end_connect(&end, &peer, NULL);
    expect_wc(end.recv_cq, 0, IBV_WC_SUCCESS);
    CHECK_EQ(waitpid(child.pid, &status, 0), child.pid);
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    thread = stop_progress(child.pid); /* what its main thread leaves undone stays undone */
    for (uint64_t i = 0; i < RECEIVES; i++)
        post_recv(&end, i, (i + 1) * PIECE, PIECE);
    for (; got < plan->before; got++) /* makes room */
        CHECK_EQ(next_wc(end.recv_cq).status, IBV_WC_SUCCESS);
    for (; outcome.steps != steps; outcome.steps++) {
        CHECK(!ptrace(PTRACE_SINGLESTEP, child.pid, NULL, NULL));
        CHECK_EQ(waitpid(child.pid, &status, 0), child.pid);
        CHECK(WIFSTOPPED(status));
        if (WSTOPSIG(status) == SIGSTOP) {
            outcome.at_end = true;
            break;
        }
        CHECK_EQ(WSTOPSIG(status), SIGTRAP);
    }
    CHECK_EQ(softdev_left_note(end.qp), 0);
    CHECK(!kill(child.pid, SIGKILL));
    CHECK_EQ(waitpid(thread, &status, __WALL), thread);
    CHECK_EQ(waitpid(child.pid, &status, 0), child.pid);
    close(child.fd);
    while (end_state(&end) != IBV_QPS_ERR)
        usleep(100);
    while (ibv_poll_cq(end.recv_cq, 1, &wc))
        if (wc.status == IBV_WC_SUCCESS) {
            memcpy(outcome.message, end.buf + (wc.wr_id + 1) * PIECE, sizeof outcome.message);
            got++;
        }
    outcome.all = got == plan->messages;
    outcome.whole = softdev_left_whole(end.qp) == 1;
    outcome.note = softdev_left_note(end.qp);
    end_close(&end);
    if (outcome.all != outcome.whole)
        FAIL("after %ld instructions the peer has %d of %d messages, and knows that %s", outcome.steps, got,
             plan->messages, outcome.whole ? "nothing was held back" : "something was held back");
    return outcome;
}

/* There are some hundred instructions, some thousand with a sanitizer. Each is tried near the one by which the message
 * becomes visible, and elsewhere about a hundred of them. What the peer has and what it knows must agree each time. That
 * instruction may be another one in another life: the clock is read in a loop that is left when no tick comes between. */
static void at_every_instruction(const struct plan *plan)
{
    enum { NEAR = 60, ELSEWHERE = 100 };
    struct outcome end = killed_after(plan, -1);
    long before = 0, after = end.steps;
    int arrived = 0, tried = 0;

    CHECK(end.at_end && end.all);
    CHECK(!killed_after(plan, 0).all);
    while (after - before > 1) {
        long middle = before + (after - before) / 2;
        if (killed_after(plan, middle).all)
            after = middle;
        else
            before = middle;
    }
    for (long i = after > NEAR ? after - NEAR : 0; i < after + NEAR && i < end.steps; i++, tried++)
        arrived += killed_after(plan, i).all;
    CHECK(0 < arrived && arrived < tried);
    for (long i = 0; i < end.steps; i += 1 + end.steps / ELSEWHERE)
        killed_after(plan, i);
}

/* ---- what the program holds goes by one post ---------------------------------------------------------- */

static void holds_some(struct end *end)
{
    softdev_holds(end->qp, 1);
}

static void posts_what_it_held(struct end *end)
{
    struct ibv_sge first = end_sge(end, 0, 1000), second = end_sge(end, 1000, 44);
    struct ibv_send_wr *bad, message = {.sg_list = &second, .num_sge = 1, .opcode = IBV_WR_SEND},
                             before = {.next = &message,
                                       .sg_list = &first,
                                       .num_sge = 1,
                                       .opcode = IBV_WR_SEND,
                                       .send_flags = IBV_SEND_SOLICITED};

    softdev_holds(end->qp, 2);
    (void)!ibv_post_send(end->qp, &before, &bad);
    softdev_holds(end->qp, 0);
}

static void what_was_held(void)
{
    at_every_instruction(&(struct plan){holds_some, posts_what_it_held, 0, 2});
}

/* ---- the device itself has to wait for room ----------------------------------------------------------- */

/* As much as a lane takes, and a message more, which waits in this process. */
static void fills_the_lane(struct end *end)
{
    for (uint64_t i = 0; i < 7; i++)
        post_send(end, i, 0, PIECE, 0);
    post_send(end, 7, 0, 15000, 0);
    post_send(end, 8, 0, 1024, IBV_SEND_SIGNALED);
}

static void goes_on(struct end *end)
{
    struct ibv_wc wc;

    (void)!ibv_poll_cq(end->send_cq, 1, &wc);
}

static void what_waited_for_room(void)
{
    at_every_instruction(&(struct plan){fills_the_lane, goes_on, 8, 9});
}

/* ---- what is accepted behind that is held again ------------------------------------------------------- */

static void posted_what_it_held(struct end *end)
{
    holds_some(end);
    posts_what_it_held(end);
    softdev_holds(end->qp, 1);
}

static void nothing(struct end *end)
{
    (void)end;
}

static void what_is_held_again(void)
{
    struct plan plan = {posted_what_it_held, nothing, 2, 3}; /* the third is what is held */

    CHECK(!killed_after(&plan, 0).whole);
}

/* Where the post is refused, or fails to hold all, it settles nothing. */
static void posts_in_vain(struct end *end)
{
    struct ibv_sge sge = end_sge(end, 0, 44);
    struct ibv_send_wr *bad, wrong = {.sg_list = &sge, .num_sge = 1, .opcode = (enum ibv_wr_opcode)99},
                             good = {.next = &wrong, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};

    holds_some(end);
    softdev_holds(end->qp, 2);
    CHECK(ibv_post_send(end->qp, &good, &bad));
}

static void what_was_refused(void)
{
    struct plan plan = {posts_in_vain, nothing, 1, 2};

    CHECK(!killed_after(&plan, 0).whole);
}

/* ---- what is held is left as a message ---------------------------------------------------------------- */

static void will(struct end *end, uint8_t value)
{
    uint8_t message[SOFTDEV_WILL_BYTES];

    memset(message, value, sizeof message);
    softdev_will(end->qp, message, sizeof message, htobe32(value));
}

static void leaves_a_message(struct end *end)
{
    will(end, 1);
}

static void what_was_left(void)
{
    at_every_instruction(&(struct plan){holds_some, leaves_a_message, 0, 1});
}

static void has_left_a_message(struct end *end)
{
    holds_some(end);
    will(end, 1);
}

static void leaves_another(struct end *end)
{
    will(end, 2);
}

static void what_was_left_instead(void)
{
    const struct plan plan = {has_left_a_message, leaves_another, 0, 1};
    struct outcome first = killed_after(&plan, 0), last = killed_after(&plan, -1);

    CHECK(first.whole && all_bytes(first.message, sizeof first.message, 1));
    CHECK(last.whole && all_bytes(last.message, sizeof last.message, 2));
    for (long i = 0; i < last.steps; i += 1 + last.steps / 200) {
        struct outcome one = killed_after(&plan, i);
        CHECK(one.whole);
        CHECK(all_bytes(one.message, sizeof one.message, 1) || all_bytes(one.message, sizeof one.message, 2));
    }
}

static void posts_behind_it(struct end *end)
{
    has_left_a_message(end);
    post_send(end, 1, 0, 44, 0);
}

static void holds_more(struct end *end)
{
    has_left_a_message(end);
    holds_some(end);
}

static void holds_nothing_more(struct end *end)
{
    has_left_a_message(end);
    softdev_holds(end->qp, 2);
    post_send(end, 1, 0, 44, 0);
}

static void what_does_not_count_any_more(void)
{
    CHECK(!killed_after(&(struct plan){posts_behind_it, nothing, 1, 2}, 0).whole);
    CHECK(!killed_after(&(struct plan){holds_more, nothing, 0, 1}, 0).whole);
    CHECK(killed_after(&(struct plan){holds_nothing_more, nothing, 1, 1}, 0).whole);
}

/* ---- and a number -------------------------------------------------------------------------------------- */

static void notes(struct end *end)
{
    softdev_note(end->qp, 7);
    softdev_note(end->qp, UINT64_C(1) << 40);
}

static void a_number(void)
{
    CHECK_EQ(killed_after(&(struct plan){notes, nothing, 0, 0}, 0).note, UINT64_C(1) << 40);
    CHECK_EQ(killed_after(&(struct plan){nothing, nothing, 0, 0}, 0).note, 0);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {TEST(what_was_held),
                                        TEST(what_waited_for_room),
                                        TEST(what_is_held_again),
                                        TEST(what_was_refused),
                                        TEST(what_was_left),
                                        TEST(what_was_left_instead),
                                        TEST(what_does_not_count_any_more),
                                        TEST(a_number)};
    const char *wire = getenv("SOFTDEV_WIRE");

    if ((wire && !strcmp(wire, "only")) || !can_stop_threads())
        return 77; /* on the wire nothing of a dead process is left to be carried out */
    return test_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
