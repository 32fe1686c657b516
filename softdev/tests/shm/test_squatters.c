/* Another user binds every abstract name of this user's slots, before its processes start or while they run: they
 * still find each other. In a network namespace of its own, so that other tests are not disturbed; needs root. */
#include "base/names.h"
#include "tests/harness.h"

#include <net/if.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { SLOTS = 1024, NOBODY = 65534 };

static bool alone_on_a_network(void)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd;

    if (geteuid() || unshare(CLONE_NEWNET))
        return false;
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(!ioctl(fd, SIOCSIFFLAGS, &lo));
    close(fd);
    return true;
}

static void squatter(int fd, void *argument)
{
    struct rlimit many = {2 * SLOTS, 2 * SLOTS};
    char byte;

    (void)argument;
    take(fd, &byte, 1);
    CHECK(!setrlimit(RLIMIT_NOFILE, &many));
    CHECK(!setgid(NOBODY) && !setuid(NOBODY));
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, SOFT_SLOT_NAME ".0.%u", slot);
        int one = socket(AF_UNIX, SOCK_SEQPACKET, 0);

        CHECK(one >= 0);
        if (!bind(one, (struct sockaddr *)&address,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)))
            CHECK(!listen(one, 16)); /* and answers */
    }
    give(fd, "s", 1);
    take(fd, &byte, 1);
}

static void peer_process(int fd, void *argument)
{
    struct address peer;
    struct end end;
    char byte;

    (void)argument;
    take(fd, &byte, 1);
    end_open(&end, NULL);
    end_to_init(&end, 0);
    post_recv(&end, 1, 0, 100);
    peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    expect_wc(end.recv_cq, 1, IBV_WC_SUCCESS);
    give(fd, "d", 1);
    take(fd, &byte, 1);
    end_close(&end);
}

/* first: this process has its slot before the names are taken. */
static void converse(bool first)
{
    struct child squat, other;
    struct address peer;
    struct end end;
    char byte;

    /* Both before this process has a thread: TSan cannot follow threads of the child of a process with threads. */
    squat = child_start(squatter, NULL);
    other = child_start(peer_process, NULL);
    if (first)
        end_open(&end, NULL);
    give(squat.fd, "b", 1);
    take(squat.fd, &byte, 1);
    if (!first)
        end_open(&end, NULL);
    give(other.fd, "b", 1);
    end_to_init(&end, 0);
    peer = exchange(other.fd, &end);
    end_connect(&end, &peer, NULL);
    do_send(&end, 0, 100);
    take(other.fd, &byte, 1);
    give(other.fd, "e", 1);
    child_join(&other);
    end_close(&end);
    give(squat.fd, "e", 1);
    child_join(&squat);
}

static void names_taken_before(void)
{
    converse(false);
}

static void names_taken_meanwhile(void)
{
    converse(true);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {TEST(names_taken_before), TEST(names_taken_meanwhile)};

    if (!alone_on_a_network())
        return 77;
    return test_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
