/* The explanation names planted mistakes: each program runs as a process of its own under the recorder, and the first
 * finding that is printed for it must be the mistake. */
#include "tests/trace/mistakes.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trace/explain/explain.h"

enum { MOST = 4 };

struct ibv_wc any_wc(struct ibv_cq *cq)
{
    return next_wc(cq);
}

static int progress;

void last_call(void)
{
    CHECK_EQ(write(progress, "l", 1), 1);
}

static void take_byte(int fd, char *byte)
{
    CHECK_EQ(read(fd, byte, 1), 1);
}

/* ---- recordings of one run ---- */

struct run {
    struct trace_recording recordings[MOST];
    struct story stories[MOST];
    size_t count;
};

/* What a recording is made to say before it is told: what no software device does. NULL: nothing. */
static void (*as_if)(struct trace_recording *recording);

static void load(struct run *run, const char *directory)
{
    DIR *found = opendir(directory);
    struct dirent *entry;

    memset(run, 0, sizeof *run);
    CHECK(found);
    while ((entry = readdir(found))) {
        char path[PATH_MAX];

        if (!strstr(entry->d_name, ".rec"))
            continue;
        CHECK(run->count < MOST);
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        /* A process may be about to make its file. */
        if (!trace_load_file(&run->recordings[run->count], path))
            run->count++;
    }
    closedir(found);
    for (size_t n = 0; n < run->count; n++) {
        if (as_if)
            as_if(&run->recordings[n]);
        CHECK(story_tell(&run->stories[n], &run->recordings[n]));
    }
}

static void unload(struct run *run)
{
    for (size_t n = 0; n < run->count; n++) {
        story_free(&run->stories[n]);
        trace_free(&run->recordings[n]);
    }
}

static void remove_all(const char *directory)
{
    DIR *found = opendir(directory);
    struct dirent *entry;

    CHECK(found);
    while ((entry = readdir(found)))
        if (entry->d_name[0] != '.')
            CHECK(!unlinkat(dirfd(found), entry->d_name, 0));
    closedir(found);
    CHECK(!rmdir(directory));
}

/* ---- one mistake ---- */

/* Whether the last thing of a recording is a call that has not returned, or polls in a loop. */
static bool in_a_call(const char *directory)
{
    struct run run;
    bool waits = false;

    load(&run, directory);
    for (size_t n = 0; n < run.count; n++) {
        const struct trace_recording *from = &run.recordings[n];
        const struct trace_record *last = from->count ? &from->items[from->count - 1].record : NULL;

        waits |= last && (last->kind == TRACE_WAIT || last->kind == TRACE_ENTERED ||
                          (last->kind == TRACE_EMPTY && last->empty.count > 100000));
    }
    unload(&run);
    return waits;
}

static void run_program(const struct mistake *one, const char *directory)
{
    int status, pipes[2];

    CHECK(!pipe(pipes));
    fflush(NULL);
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        alarm(60);
        progress = pipes[1];
        setenv("SOFTDEV_TRACE", directory, 1);
        one->run();
        exit(0);
    }
    if (one->hangs) {
        char byte;

        close(pipes[1]);
        take_byte(pipes[0], &byte);
        while (!in_a_call(directory))
            sched_yield();
        CHECK(!kill(pid, SIGKILL));
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    close(pipes[0]);
    if (!one->hangs)
        close(pipes[1]);
    if (one->hangs)
        CHECK(WIFSIGNALED(status));
    else if (!WIFEXITED(status) || WEXITSTATUS(status))
        FAIL("\"%s\" ended with status 0x%x", one->name, (unsigned)status);
}

/* The story of the process that made the mistake: the only one, or the parent of the other. */
static size_t author(const struct run *run)
{
    for (size_t n = 0; n < run->count; n++)
        for (size_t other = 0; other < run->count; other++)
            if (run->recordings[other].header.parent == run->recordings[n].header.pid)
                return n;
    return 0;
}

/* The word after FAILED, WRONG or ADVICE in the first finding. */
static void first_finding(const char *text, char *name, size_t size)
{
    static const char *const words[] = {"\n  FAILED ", "\n  WRONG ", "\n  ADVICE "};
    const char *at = NULL;

    for (size_t n = 0; n < sizeof words / sizeof *words && !at; n++) {
        at = strstr(text, words[n]);
        if (at)
            at += strlen(words[n]);
    }
    snprintf(name, size, "%.*s", at ? (int)strcspn(at, ",") : 0, at ? at : "");
}

static bool has_words(const char *text, const char *words)
{
    char flat[8192];
    size_t length = 0;

    /* Without the breaks of lines and what indents them. */
    for (; *text && length < sizeof flat - 1; text++)
        if (*text != '\n' && (*text != ' ' || !length || flat[length - 1] != ' '))
            flat[length++] = *text;
        else if (*text == '\n' && length && flat[length - 1] != ' ')
            flat[length++] = ' ';
    flat[length] = '\0';
    return strstr(flat, words) != NULL;
}

/* same: how many findings have the name of the first. says: NULL, or words that the explanation has. */
static bool named(const struct mistake *one, const char *says, unsigned *same)
{
    char directory[] = "/tmp/softdev-mistake-XXXXXX", name[64], *text;
    struct findings findings;
    struct story stories[MOST];
    struct run run;
    size_t length;

    CHECK(mkdtemp(directory));
    run_program(one, directory);
    load(&run, directory);
    CHECK(run.count > 0);
    /* That of the mistake first: it is explained, and the other one is a peer. */
    const size_t own = author(&run);
    size_t count = 0;
    stories[count++] = run.stories[own];
    for (size_t n = 0; n < run.count; n++)
        if (n != own)
            stories[count++] = run.stories[n];
    explain(&findings, stories, count, 1);
    CHECK(findings.count < 100); /* however often a program does it */
    FILE *to = open_memstream(&text, &length);
    CHECK(to);
    explain_print(to, &findings);
    fclose(to);
    first_finding(text, name, sizeof name);
    *same = 0;
    for (size_t n = 0; n < findings.count; n++)
        *same += !strcmp(findings.list[n].name, name);
    const bool right =
        (one->finding ? *name && strstr(one->finding, name) : !*name) && (!says || has_words(text, says));
    fprintf(stderr, "%s %s: %s\n%s", right ? "ok " : "NOT", one->name, *name ? name : "nothing", text);
    free(text);
    findings_free(&findings);
    unload(&run);
    remove_all(directory);
    return right;
}

static void check(const struct mistake *list)
{
    unsigned all = 0, right = 0, same;

    for (; list->name; list++, all++)
        right += named(list, NULL, &same);
    fprintf(stderr, "%u of %u are named\n", right, all);
    CHECK_EQ(right, all);
}

static void states(void)
{
    check(mistakes_states);
}

static void queues(void)
{
    check(mistakes_queues);
}

static void memory(void)
{
    check(mistakes_memory);
}

static void pairs(void)
{
    check(mistakes_pairs);
}

static void events(void)
{
    check(mistakes_events);
}

static void vain(void)
{
    check(mistakes_vain);
}

static void words(void)
{
    unsigned same, wrong = 0;

    for (const struct wording *list = mistakes_words; list->says; list++)
        wrong += !named(&list->one, list->says, &same);
    CHECK_EQ(wrong, 0);
}

/* The address vector of the queue pair that was connected last. */
static struct trace_address *last_address(struct trace_recording *recording)
{
    for (size_t i = recording->count; i-- > 0;)
        if (recording->items[i].record.kind == TRACE_ADDRESS)
            return &recording->items[i].record.address;
    FAIL("no queue pair was connected");
}

static void with_roce_v1(struct trace_recording *recording)
{
    last_address(recording)->gid_type = TRACE_GID_ROCE_V1;
    last_address(recording)->sgid_index = 3;
}

static void with_another_gid(struct trace_recording *recording)
{
    last_address(recording)->sgid[15] ^= 1;
    last_address(recording)->sgid_index = 3;
}

/* Ends whose GIDs differ, as on cards with several: the recording of ends that differ in their packet numbers, and so hear
 * nothing of each other either. */
static void gids(void)
{
    const struct {
        void (*as_if)(struct trace_recording *recording);
        const char *name, *says;
    } cases[] = {
        {with_roce_v1, "gid-type", "RoCE v2 here, and GID index 3 is RoCE v1 there"},
        {with_another_gid, "wrong-gid", "(its GID index 3)"},
    };
    unsigned same;

    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const struct mistake one = {cases[n].name, cases[n].name, wrong_packet_number, false};

        as_if = cases[n].as_if;
        CHECK(named(&one, cases[n].says, &same));
    }
    as_if = NULL;
}

static void other_limits(void)
{
    struct end end;

    end_open(&end, NULL);
    for (int i = 0; i < 4; i++) {
        struct ibv_qp_init_attr attr = {.send_cq = end.send_cq,
                                        .recv_cq = end.recv_cq,
                                        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1},
                                        .qp_type = IBV_QPT_RC};
        if (i % 2)
            attr.cap.max_send_sge = 200;
        else
            attr.cap.max_send_wr = 1 << 20;
        CHECK(!ibv_create_qp(end.pd, &attr));
    }
    end_close(&end);
}

static void other_sizes(void)
{
    struct end end;

    end_open(&end, NULL);
    for (int i = 0; i < 4; i++)
        CHECK(!ibv_create_cq(end.context, i % 2 ? 0 : 1 << 30, NULL, NULL, 0));
    end_close(&end);
}

/* Two mistakes that have the same name and the same errno, each made twice. */
static void alike(void)
{
    static const struct mistake both[] = {
        {"more work requests, and more pieces, than the device has", "qp-limits", other_limits, false},
        {"more completions than the device has, and none", "cq-limits", other_sizes, false},
    };

    for (size_t n = 0; n < sizeof both / sizeof *both; n++) {
        unsigned same;
        CHECK(named(&both[n], NULL, &same));
        CHECK_EQ(same, 2);
    }
}

TEST_MAIN(TEST(states), TEST(queues), TEST(memory), TEST(pairs), TEST(events), TEST(vain), TEST(words),
          TEST(gids), TEST(alike))
