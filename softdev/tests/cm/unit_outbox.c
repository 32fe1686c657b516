/* The outbox: what a full socket does not take arrives later, in order; what nobody will read is dropped. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cm/outbox.h"
#include "tests/harness.h"

enum { MANY = 1000 };

static struct sockaddr_un name;
static socklen_t length;
static int epoll_fd;

static int receiver(int number)
{
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);

    memset(&name, 0, sizeof name);
    name.sun_family = AF_UNIX;
    const int n =
        snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "softdev-unit-%d-%d", getpid(), number);
    length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&name, length));
    return fd;
}

static void send_all(uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        CHECK(cm_outbox_send(&name, length, &i, sizeof i));
}

/* Reads what is there; false when nothing is. */
static bool read_one(int fd, uint32_t wanted)
{
    uint32_t got;
    const ssize_t n = recv(fd, &got, sizeof got, 0);

    if (n < 0) {
        CHECK_EQ(errno, EAGAIN);
        return false;
    }
    CHECK_EQ(n, sizeof got);
    CHECK_EQ(got, wanted);
    return true;
}

static void go_on(void)
{
    struct epoll_event event;

    while (epoll_wait(epoll_fd, &event, 1, 0) == 1)
        CHECK(cm_outbox_go_on(event.data.fd));
}

static void all_arrive_in_order(void)
{
    int fd = receiver(1);
    uint32_t got = 0;

    cm_outbox_watch(epoll_fd);
    send_all(0, MANY);
    CHECK(!cm_outbox_is_empty());
    while (got < MANY / 2) {
        while (read_one(fd, got))
            got++;
        go_on();
    }
    send_all(MANY, MANY + 5); /* behind those that wait */
    while (got < MANY + 5) {
        while (read_one(fd, got))
            got++;
        go_on();
    }
    CHECK(cm_outbox_is_empty());
    CHECK(!cm_outbox_go_on(fd)); /* none of its descriptors */
    close(fd);
}

/* One that does not read holds up no other. */
static void a_full_one_is_alone(void)
{
    int full = receiver(2), fd;
    const struct sockaddr_un full_name = name;

    send_all(0, MANY);
    fd = receiver(3);
    for (uint32_t i = 0; i < 3 * MANY; i++) {
        send_all(i, i + 1);
        while (!read_one(fd, i))
            go_on();
    }
    CHECK(!cm_outbox_is_empty());
    name = full_name;
    for (uint32_t i = 0; i < MANY; i++)
        while (!read_one(full, i))
            go_on();
    CHECK(cm_outbox_is_empty());
    close(full);
    close(fd);
}

static void nobody_reads(void)
{
    int fd = receiver(4);
    const uint32_t one = 1;

    send_all(0, MANY);
    CHECK(!cm_outbox_is_empty());
    close(fd);
    while (!cm_outbox_is_empty())
        go_on();
    CHECK(!cm_outbox_send(&name, length, &one, sizeof one));
}

/* Where no thread would go on, a message that does not fit is lost, and the call returns. */
static void without_a_thread(void)
{
    int fd = receiver(5);
    uint32_t got = 0;

    cm_outbox_watch(-1);
    send_all(0, MANY);
    CHECK(cm_outbox_is_empty());
    while (read_one(fd, got))
        got++;
    CHECK(got > 0 && got < MANY);
    cm_outbox_watch(epoll_fd);
    close(fd);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {TEST(all_arrive_in_order), TEST(a_full_one_is_alone),
                                        TEST(nobody_reads), TEST(without_a_thread)};

    epoll_fd = epoll_create1(0);
    return test_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
