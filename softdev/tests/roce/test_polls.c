/* A program that polls all the time, or is woken: an acknowledgement leaves behind the program's answer, or as soon as
 * it does something else, and in any case soon; and at once, if the program does not usually answer. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "softdev.h"
#include "tests/harness.h"

enum {
    POLLED_NS = 3000000,
    QUIET_NS = 1000000,
    LAST_POLLS = TIMES(1000),
    ATTEMPTS = 4000,
    WANTED = 5,  /* or one, on a machine so busy that it is rare: each proves it */
    ENOUGH = 50, /* attempts */
    TURNS = 40,
    EXCHANGES = 20,    /* after which an answer is expected */
    WOKEN_NS = 200000, /* in which an acknowledgement would leave that does not wait */
    LENGTH = 100
};

/* The receiver's next action. */
enum next { ANSWERS, SLEEPS, STOPS, POLLS, WOKEN_ANSWERS, WOKEN_STOPS };

static uint64_t sent(void)
{
    return softdev_wire_count("sent");
}

/* Polls until the device has noticed the polling, and a little longer. */
static void poll_on(struct end *end)
{
    for (const uint64_t until = test_now_ns() + POLLED_NS; test_now_ns() < until;)
        expect_empty(end->recv_cq);
}

static void wait_for(uint64_t ns)
{
    for (const uint64_t until = test_now_ns() + ns; test_now_ns() < until;)
        ;
}

/* Answers messages, so that the device expects answers. Both functions have one receive posted, and leave one. */
static void answer_some(struct end *end, int fd)
{
    give(fd, "g", 1);
    for (int i = 0; i < EXCHANGES; i++) {
        expect_wc(end->recv_cq, 0, IBV_WC_SUCCESS);
        post_recv(end, 0, 0, LENGTH);
        do_send(end, 0, LENGTH);
    }
}

static void ask_some(struct end *end, int fd)
{
    char byte;

    take(fd, &byte, 1);
    for (int i = 0; i < EXCHANGES; i++) {
        do_send(end, 0, LENGTH);
        expect_wc(end->recv_cq, 2, IBV_WC_SUCCESS);
        post_recv(end, 2, 200, LENGTH);
    }
}

/*
 * Reports for each message whether its acknowledgement was pending when it was received, and had left after
 * the receiver's next action. Not every time: the progress thread may have received it, and be about to
 * acknowledge it.
 */
static void receiver(int fd, void *argument)
{
    const enum next next = *(enum next *)argument;
    struct end end;
    struct address peer;
    bool more = true;

    end_open(&end, &(struct end_options){.channel = true});
    end_to_init(&end, 0);
    post_recv(&end, 0, 0, LENGTH);
    peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    while (more) {
        poll_on(&end);
        answer_some(&end, fd);
        poll_on(&end);
        if (next >= WOKEN_ANSWERS)
            OK(ibv_req_notify_cq(end.recv_cq, 0));
        const uint64_t before = sent();
        give(fd, "g", 1);
        if (next >= WOKEN_ANSWERS)
            expect_event(end.channel, end.recv_cq);
        expect_wc(end.recv_cq, 0, IBV_WC_SUCCESS);
        if (next >= WOKEN_ANSWERS)
            wait_for(WOKEN_NS);
        bool waits = sent() == before;

        post_recv(&end, 0, 0, LENGTH);
        if (next == ANSWERS || next == WOKEN_ANSWERS) {
            post_send(&end, 1, 0, LENGTH, IBV_SEND_SIGNALED);
            waits &= sent() == before + 2;
            expect_wc(end.send_cq, 1, IBV_WC_SUCCESS);
        } else if (next == SLEEPS) {
            OK(ibv_req_notify_cq(end.recv_cq, 0));
            waits &= sent() == before + 1;
        } else if (next == POLLS) {
            expect_empty(end.recv_cq);
            waits &= sent() == before + 1;
        }
        give(fd, &waits, 1);
        take(fd, &more, 1);
    }
    end_close(&end);
}

static void receives(enum next next)
{
    struct child child = child_start(receiver, &next);
    struct end end;
    struct address peer;
    bool waited = false, more = true;
    int seen = 0;
    char byte;

    end_open(&end, NULL);
    end_to_init(&end, 0);
    post_recv(&end, 2, 200, LENGTH);
    peer = exchange(child.fd, &end);
    end_connect(&end, &peer, NULL);
    /* The system may stop either process at any time, so that it no longer polls all the time. */
    for (int i = 0; more; i++) {
        ask_some(&end, child.fd);
        take(child.fd, &byte, 1);
        const uint64_t before = sent();

        do_send(&end, 0, LENGTH);
        /* Not asked again; the answer may have arrived and been acknowledged. */
        const bool answers = next == ANSWERS || next == WOKEN_ANSWERS;
        const bool once = sent() <= before + 1 + answers;
        if (answers) {
            expect_wc(end.recv_cq, 2, IBV_WC_SUCCESS);
            post_recv(&end, 2, 200, LENGTH);
        }
        take(child.fd, &waited, 1);
        seen += waited && once;
        more = seen < (i < ENOUGH && !test_takes_long() ? WANTED : 1) && i < ATTEMPTS;
        give(child.fd, &more, 1);
    }
    CHECK(seen > 0);
    child_join(&child);
    end_close(&end);
}

static void who_answers(void)
{
    receives(ANSWERS);
}

static void who_goes_to_sleep(void)
{
    receives(SLEEPS);
}

static void who_stops_polling(void)
{
    receives(STOPS);
}

static void who_is_woken_and_answers(void)
{
    receives(WOKEN_ANSWERS);
}

static void who_is_woken_and_does_not(void)
{
    receives(WOKEN_STOPS);
}

static void who_polls_again(void)
{
    receives(POLLS);
}

/*
 * Polls all the time, and ends without closing anything, as soon as it has a message with a pending
 * acknowledgement. The progress thread receives and acknowledges some messages itself: more of them on a
 * busier machine.
 */
static void leaving(int fd, void *argument)
{
    struct end end;
    struct address peer;
    bool waits = false;

    (void)argument;
    end_open(&end, NULL);
    end_to_init(&end, 0);
    post_recv(&end, 0, 0, LENGTH);
    peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    while (!waits) {
        poll_on(&end);
        answer_some(&end, fd);
        poll_on(&end);
        const uint64_t before = sent();
        give(fd, "g", 1);
        expect_wc(end.recv_cq, 0, IBV_WC_SUCCESS);
        waits = sent() == before;
        if (!waits)
            post_recv(&end, 0, 0, LENGTH);
        give(fd, &waits, 1);
    }
    exit(0);
}

static void who_exits(void)
{
    for (int i = 0; i < WANTED && !(i && test_takes_long()); i++) {
        struct child child = child_start(leaving, NULL);
        struct end end;
        char byte;
        bool waited = false;

        end_open(&end, NULL);
        end_to_init(&end, 0);
        post_recv(&end, 2, 200, LENGTH);
        const struct address peer = exchange(child.fd, &end);
        end_connect(&end, &peer, NULL);
        for (int attempt = 0; !waited; attempt++) {
            CHECK(attempt < ATTEMPTS);
            ask_some(&end, child.fd);
            take(child.fd, &byte, 1);
            do_send(&end, 0, LENGTH);
            take(child.fd, &waited, 1);
        }
        child_join(&child);
        end_close(&end);
    }
}

/* Polls all the time, closes, and then a peer writes to it whose packets only the progress thread can
 * find. */
static void written_to(int fd, void *argument)
{
    struct end end;
    struct address peer;
    char byte;

    (void)argument;
    struct ibv_context *const context = test_open(); /* the sockets stay open */
    for (int turn = 0; turn < TURNS; turn++) {
        end_open(&end, &(struct end_options){.context = context});
        end_to_init(&end, 0);
        peer = exchange(fd, &end);
        end_connect(&end, &peer, NULL);
        give(fd, "c", 1);
        if (turn % 2 == 0)
            poll_on(&end);
        take(fd, &byte, 1);
        end_close(&end);
        /* Without any queue pair for longer than the interval of the timer's checks. */
        for (const uint64_t until = test_now_ns() + POLLED_NS; test_now_ns() < until;)
            ;
    }
    OK(ibv_close_device(context));
}

static void who_polled_once(void)
{
    struct child child = child_start(written_to, NULL);
    struct end end;
    char byte;

    for (int turn = 0; turn < TURNS; turn++) {
        end_open(&end, NULL);
        end_to_init(&end, 0);
        const struct address peer = exchange(child.fd, &end);
        end_connect(&end, &peer, NULL);
        take(child.fd, &byte, 1);
        if (turn % 2)
            do_rdma(&end, IBV_WR_RDMA_WRITE, 0, LENGTH, &peer, 0);
        give(child.fd, "d", 1);
        end_close(&end);
    }
    child_join(&child);
}

/* Sends on request, and stops, so that it cannot ask again for an acknowledgement that does not arrive. */
static void stops_behind_each_send(int fd, void *argument)
{
    struct end end;
    char byte;
    bool more = true;

    (void)argument;
    end_open(&end, NULL);
    end_to_init(&end, 0);
    const struct address peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    while (more) {
        take(fd, &byte, 1);
        const uint64_t before = sent();
        post_send(&end, 0, 0, LENGTH, IBV_SEND_SIGNALED);
        while (sent() == before)
            ;
        OK(raise(SIGSTOP));
        expect_wc(end.send_cq, 0, IBV_WC_SUCCESS);
        take(fd, &more, 1);
    }
    end_close(&end);
}

/*
 * The progress thread finds that no thread polls any more, and just then one polls, receives, and goes to
 * sleep. Each left the acknowledgement to the other, about once in a thousand times.
 */
static void who_sleeps_after_one_more_poll(void)
{
    struct child child = child_start(stops_behind_each_send, NULL);
    struct end end;
    struct ibv_wc wc;
    unsigned int seed = 1;
    int status;

    end_open(&end, &(struct end_options){.channel = true});
    end_to_init(&end, 0);
    post_recv(&end, 0, 0, LENGTH);
    const struct address peer = exchange(child.fd, &end);
    end_connect(&end, &peer, NULL);
    for (int turn = 0; turn < LAST_POLLS; turn++) {
        const bool more = turn < LAST_POLLS - 1;

        poll_on(&end);
        const uint64_t before = sent(), until = test_now_ns() + QUIET_NS + (uint64_t)rand_r(&seed) % QUIET_NS;
        give(child.fd, "g", 1);
        while (test_now_ns() < until)
            ;
        int found = ibv_poll_cq(end.recv_cq, 1, &wc);
        OK(ibv_req_notify_cq(end.recv_cq, 0));
        for (int i = 0; sent() == before; i++) {
            CHECK(i < 200000);
            usleep(100);
        }
        CHECK_EQ(waitpid(child.pid, &status, WUNTRACED), child.pid);
        CHECK(WIFSTOPPED(status));
        OK(kill(child.pid, SIGCONT));
        for (; !found; found = ibv_poll_cq(end.recv_cq, 1, &wc)) {
            expect_event(end.channel, end.recv_cq);
            OK(ibv_req_notify_cq(end.recv_cq, 0));
        }
        CHECK_STATUS(&wc, IBV_WC_SUCCESS);
        post_recv(&end, 0, 0, LENGTH);
        give(child.fd, &more, 1);
    }
    child_join(&child);
    end_close(&end);
}

/* From here on the kernel has no memory for watching another file, for any thread of this process. */
static void watch_nothing_more(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, EPOLL_CTL_ADD, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};

    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    OK((int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter));
}

static void without_memory(int fd, void *argument)
{
    struct end end;
    struct address peer;

    (void)argument;
    end_open(&end, &(struct end_options){.channel = true});
    end_to_init(&end, 0);
    post_recv(&end, 0, 0, LENGTH);
    peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    poll_on(&end);
    watch_nothing_more();
    for (int i = 0; i < WANTED; i++) {
        OK(ibv_req_notify_cq(end.recv_cq, 0));
        expect_empty(end.recv_cq);
        give(fd, "g", 1);
        expect_event(end.channel, end.recv_cq);
        expect_wc(end.recv_cq, 0, IBV_WC_SUCCESS);
        post_recv(&end, 0, 0, LENGTH);
    }
    end_close(&end);
}

static void who_cannot_be_woken(void)
{
    const uint32_t action = SECCOMP_RET_ERRNO;

    if (kernel_lacks(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action), "seccomp"))
        return;
    struct child child = child_start(without_memory, NULL);
    struct end end;
    char byte;

    end_open(&end, NULL);
    end_to_init(&end, 0);
    const struct address peer = exchange(child.fd, &end);
    end_connect(&end, &peer, NULL);
    for (int i = 0; i < WANTED; i++) {
        take(child.fd, &byte, 1);
        do_send(&end, 0, LENGTH);
    }
    child_join(&child);
    end_close(&end);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(who_answers),        TEST(who_goes_to_sleep),        TEST(who_stops_polling),
        TEST(who_polls_again),    TEST(who_is_woken_and_answers), TEST(who_is_woken_and_does_not),
        TEST(who_exits),          TEST(who_polled_once),          TEST(who_sleeps_after_one_more_poll),
        TEST(who_cannot_be_woken)};

    setenv("SOFTDEV_WIRE", "only", 1); /* before the device is opened */
    /* Nobody polls all the time whom other programs take the processor from. Not each user may ask for more. */
    if (setpriority(PRIO_PROCESS, 0, -15))
        fprintf(stderr, "at ordinary priority: %m\n");
    return test_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
