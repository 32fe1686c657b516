/* Memory segments: what of a peer is mapped, and that neither limits nor a lack of memory end in a signal. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "tests/harness.h"

enum { LENGTH = 4 << 20 };

/* Exit status of what runs in a process of its own; a signal is a failure. */
static int apart(int (*run)(void))
{
    int status;
    pid_t child = fork();

    CHECK(child >= 0);
    if (!child)
        _exit(run());
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status))
        FAIL("killed by signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

static int made(unsigned flags, off_t length, int seals)
{
    int fd = memfd_create("test", flags | MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -1;
    CHECK(!ftruncate(fd, length));
    CHECK(!fcntl(fd, F_ADD_SEALS, seals));
    return fd;
}

static void refused(int fd, size_t length)
{
    errno = 0;
    CHECK(!soft_memfd_map(fd, length, PROT_READ));
    CHECK_EQ(errno, EINVAL);
    close(fd);
}

static void peers_segments(void)
{
    int fd = made(0, LENGTH, F_SEAL_SHRINK);
    void *map = soft_memfd_map(fd, LENGTH, PROT_READ | PROT_WRITE);

    CHECK(map);
    munmap(map, LENGTH);
    refused(fd, LENGTH + 1);
    refused(made(0, LENGTH, F_SEAL_GROW), LENGTH);
    refused(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), 4096);
    refused(open("/dev/zero", O_RDWR | O_CLOEXEC), 4096);
}

static void huge_pages(void)
{
    int fd = made(MFD_HUGETLB, LENGTH, F_SEAL_SHRINK);

    if (fd < 0)
        fputs("  left out: this kernel has no huge pages for memfds\n", stderr);
    else
        refused(fd, LENGTH);
}

static int beyond_the_limit(void)
{
    const struct rlimit limit = {LENGTH - 1, LENGTH - 1};
    void *map;

    CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
    signal(SIGXFSZ, SIG_DFL);
    CHECK_EQ(soft_memfd_create("test", LENGTH, &map), -1);
    CHECK_EQ(errno, EFBIG);
    CHECK(soft_memfd_create("test", LENGTH / 2, &map) >= 0);
    return 0;
}

static void size_of_files(void)
{
    CHECK_EQ(apart(beyond_the_limit), 0);
}

/* Bytes of the pages that a new segment has. */
static blkcnt_t populated(void)
{
    struct stat st;
    void *map;
    int fd = soft_memfd_create("test", LENGTH, &map);

    CHECK(fd >= 0);
    CHECK(!fstat(fd, &st));
    return st.st_blocks * 512;
}

static int counted_strictly(void)
{
    char name[] = "/tmp/softdev-test-XXXXXX";
    int fd = mkstemp(name);

    CHECK(fd >= 0);
    CHECK_EQ(write(fd, "2\n", 2), 2);
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount(name, "/proc/sys/vm/overcommit_memory", NULL, MS_BIND, NULL)) {
        unlink(name);
        return 77;
    }
    unlink(name);
    CHECK(soft_memfd_strict());
    CHECK_EQ(populated(), LENGTH);
    return 0;
}

static void strict(void)
{
    int status = apart(counted_strictly);

    if (status == 77)
        fputs("  left out: this user cannot mount anything\n", stderr);
    else
        CHECK_EQ(status, 0);
}

static void sparse(void)
{
    if (!soft_memfd_strict())
        CHECK_EQ(populated(), 0);
}

TEST_MAIN(TEST(peers_segments), TEST(size_of_files), TEST(huge_pages), TEST(strict), TEST(sparse))
