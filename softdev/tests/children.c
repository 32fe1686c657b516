/* A test's other processes: how they begin, end and talk, and how their threads are stopped. */
#include "harness.h"

#include "softdev.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* 0: none has that name (yet). */
static int find_thread(int pid, const char *wanted)
{
    char path[300], name[32];
    int found = 0;

    snprintf(path, sizeof(path), "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    CHECK(tasks);
    for (struct dirent *entry; !found && (entry = readdir(tasks));) {
        snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", pid, entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file)
            continue;
        if (fgets(name, sizeof(name), file) && !strcmp(name, wanted))
            found = atoi(entry->d_name);
        fclose(file);
    }
    closedir(tasks);
    return found;
}

struct child child_start_beside_threads(void (*run)(int fd, void *argument), void *argument)
{
    struct child child;
    int fds[2];

    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
    fflush(NULL);
    child.pid = fork();
    CHECK(child.pid >= 0);
    if (!child.pid) {
        close(fds[0]);
        CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL));
        alarm(HANG_SECONDS);
        run(fds[1], argument);
        fflush(NULL);
        _exit(0); /* without the leak check: the child must not free what it inherited */
    }
    close(fds[1]);
    child.fd = fds[0];
    return child;
}

/*
 * A child inherits the locks of threads that it does not have: AddressSanitizer's of its memory, and then a thread of the
 * child's device waits for ever.
 */
struct child child_start(void (*run)(int fd, void *argument), void *argument)
{
    for (int i = 0; find_thread(getpid(), "softdev\n"); i++) {
        if (i == 1000)
            FAIL("this process has a thread of the device: start the child first");
        usleep(1000); /* one that has ended is to be seen for a moment more */
    }
    return child_start_beside_threads(run, argument);
}

void child_join(struct child *child)
{
    int status;

    CHECK_EQ(waitpid(child->pid, &status, 0), child->pid);
    close(child->fd);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        FAIL("the child process ended with status 0x%x", (unsigned int)status);
}

struct part {
    const char *personality;
    void (*body)(void);
};

static void play(int fd, void *argument)
{
    const struct part *part = argument;

    (void)fd;
    if (part->personality)
        CHECK(!setenv("SOFTDEV_PERSONALITY", part->personality, 1));
    part->body();
}

void run_as(const char *personality, void (*body)(void))
{
    struct part part = {personality, body};
    struct child child = child_start(play, &part);

    child_join(&child);
}

void child_kill(struct child *child)
{
    int status;

    CHECK(!kill(child->pid, SIGKILL));
    CHECK_EQ(waitpid(child->pid, &status, 0), child->pid);
    close(child->fd);
}

bool can_stop_threads(void)
{
    return !kernel_lacks(ptrace(PTRACE_SEIZE, getpid(), NULL, NULL), "ptrace");
}

int stop_progress(int pid)
{
    int found;

    /* The thread gives itself its name, once it runs. */
    while (!(found = find_thread(pid, "softdev\n")))
        usleep(1000);
    CHECK(!ptrace(PTRACE_SEIZE, found, NULL, NULL));
    CHECK(!ptrace(PTRACE_INTERRUPT, found, NULL, NULL));
    CHECK_EQ(waitpid(found, NULL, __WALL), found);
    return found;
}

void give(int fd, const void *data, size_t length)
{
    CHECK_EQ(send(fd, data, length, MSG_NOSIGNAL), length);
}

bool try_take(int fd, void *data, size_t length)
{
    return recv(fd, data, length, MSG_WAITALL) == (ssize_t)length;
}

void take(int fd, void *data, size_t length)
{
    CHECK(try_take(fd, data, length));
}

struct address exchange(int fd, const struct end *end)
{
    struct address mine = end_address(end), theirs;

    give(fd, &mine, sizeof mine);
    take(fd, &theirs, sizeof theirs);
    return theirs;
}

struct address end_meet(int fd, struct end *end)
{
    struct address peer = exchange(fd, end);

    end_connect(end, &peer, NULL);
    return peer;
}

void rendezvous(int fd)
{
    char byte = 'r';

    give(fd, &byte, 1);
    take(fd, &byte, 1);
}
