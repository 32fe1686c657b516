/*
 * `softdev trace` at a terminal: what is typed there reaches the program once, and what is sent to the command, too.
 *
 * test_signals TOOL runs itself, as "program", under the tool.
 */
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int program(void)
{
    int number = 0, interrupts = 0;
    sigset_t these;

    sigemptyset(&these);
    sigaddset(&these, SIGINT);
    sigaddset(&these, SIGTERM);
    CHECK(!sigprocmask(SIG_BLOCK, &these, NULL));
    puts("ready");
    fflush(stdout);
    while (number != SIGTERM) {
        CHECK(!sigwait(&these, &number));
        interrupts += number == SIGINT;
        puts(number == SIGINT ? "interrupted" : "terminated");
        fflush(stdout);
    }
    return interrupts;
}

static void wait_for(FILE *from, const char *word)
{
    char line[4096];

    do
        CHECK(fgets(line, sizeof line, from) != NULL);
    while (!strstr(line, word));
}

int main(int argc, char **argv)
{
    int status;

    if (argc == 2 && !strcmp(argv[1], "program"))
        return program();
    CHECK(argc == 2);
    alarm(100);
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    CHECK(terminal >= 0 && !grantpt(terminal) && !unlockpt(terminal));
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        CHECK(setsid() > 0);
        const int here = open(ptsname(terminal), O_RDWR);
        CHECK(here >= 0 && !ioctl(here, TIOCSCTTY, 0));
        for (int fd = 0; fd < 3; fd++)
            dup2(here, fd);
        execl(argv[1], argv[1], argv[0], "program", (char *)NULL);
        _exit(127);
    }
    FILE *said = fdopen(terminal, "r+");
    CHECK(said);
    wait_for(said, "ready");
    CHECK(write(terminal, "\003", 1) == 1); /* Ctrl-C */
    wait_for(said, "interrupted");
    /* If the command had passed that on, too, it would have come before this one does. */
    CHECK(!kill(pid, SIGTERM));
    wait_for(said, "terminated");
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 1);
    fclose(said);
    return 0;
}
