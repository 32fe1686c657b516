/* Memory that goes away between the look whether it is there and the copy into a packet, which leaves by itself because the
 * kernel does not take it in a run: the peer never takes the packet for an answer. */
#include <dlfcn.h>
#include <errno.h>
#include <linux/udp.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/harness.h"

enum { LENGTH = 8192, BEFORE = 3584 }; /* of packets of 1024 bytes, the fourth lies on two pages */

/* ---- a network device that does not split runs ---------------------------------------------------------- */

static atomic_uint refused;

static bool is_run(const struct msghdr *header)
{
    struct msghdr copy = *header; /* the macros want one that may change */

    for (struct cmsghdr *c = header->msg_controllen ? CMSG_FIRSTHDR(&copy) : NULL; c;
         c = CMSG_NXTHDR(&copy, c))
        if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_SEGMENT)
            return true;
    return false;
}

static bool refuses(const struct msghdr *header)
{
    const bool refusal = is_run(header);

    refused += refusal;
    if (refusal)
        errno = EIO;
    return refusal;
}

ssize_t sendmsg(int fd, const struct msghdr *header, int flags)
{
    ssize_t (*real)(int, const struct msghdr *, int) =
        (ssize_t(*)(int, const struct msghdr *, int))(uintptr_t)dlsym(RTLD_NEXT, "sendmsg");

    return refuses(header) ? -1 : real(fd, header, flags);
}

int sendmmsg(int fd, struct mmsghdr *messages, unsigned int n, int flags)
{
    return !n ? 0 : sendmsg(fd, &messages->msg_hdr, flags) < 0 ? -1 : 1;
}

/* ---- memory --------------------------------------------------------------------------------------------- */

static uint8_t *first, *second; /* pages */
static size_t page;
static atomic_uint faults;
static struct sigaction before;

/* The first page was looked at, and the second is not there yet: now it is, and the first is gone. */
static void missing(int number, siginfo_t *info, void *context)
{
    if (faults++ == 0) {
        mprotect(second, page, PROT_READ | PROT_WRITE);
        mprotect(first, page, PROT_NONE);
        return;
    }
    before.sa_sigaction(number, info, context);
}

static void between_look_and_copy(void)
{
    struct sigaction action = {.sa_sigaction = missing, .sa_flags = SA_SIGINFO | SA_NODEFER};
    struct address peer;
    struct end a, b;

    page = (size_t)sysconf(_SC_PAGESIZE);
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    uint8_t *at = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    memset(at, 7, 4 * page);
    first = at + page;
    second = first + page;
    struct ibv_mr *mr = ibv_reg_mr(b.pd, at, 4 * page, ACCESS_ALL);
    CHECK(mr);
    peer = end_address(&b);
    peer.addr = (uintptr_t)second - BEFORE;
    peer.rkey = mr->rkey;
    CHECK(!sigaction(SIGSEGV, &action, &before));
    CHECK(before.sa_flags & SA_SIGINFO);
    OK(mprotect(second, page, PROT_NONE));
    post_rdma(&a, 1, IBV_WR_RDMA_READ, 0, LENGTH, &peer, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 1, IBV_WC_REM_OP_ERR);
    CHECK(faults > 1);
    CHECK(refused);
    CHECK(!sigaction(SIGSEGV, &before, NULL));
    OK(ibv_dereg_mr(mr));
    munmap(at, 4 * page);
    pair_close(&a, &b);
}

static const struct test tests[] = {TEST(between_look_and_copy)};

int main(int argc, char **argv)
{
    setenv("SOFTDEV_WIRE", "only", 1); /* before the device is opened */
    return test_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
